/* Groups of ranks: a grid of 2 x 2 ranks in one job, whose rows and columns sum at the same time; wrong lists; ranks
 * that do not come, leave or die. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { ROWS = 3000, STEPS = 6 };

/* A group as this rank sees it: `as` has its place and size for a rank's and a world's. Each group's gradients are
 * others, by its steps. */
struct member {
  zenps_group_t *group;
  zenps_tensor_t *tensor;
  struct rank as;
  uint64_t first_step;
  struct spec spec;
};

static void member_open(struct member *member, const struct rank *rank, const char *name, const int *ranks,
                        uint32_t n) {
  *member = (struct member){.as = *rank};
  member->as.world = (int)n;
  member->as.rank = 0;
  for (uint32_t i = 0; i < n; i++) {
    member->as.rank += ranks[i] < rank->rank;
    member->first_step += (uint64_t)ranks[i] * 1000 * (i + 1);
  }
  CHECK_OK(zenps_group_open(rank->zenps, name, ranks, n, &member->group));
}

static void member_tensor(struct member *member, const char *name, const struct spec *spec, const char *scheme,
                          zenps_op_t op) {
  member->spec = *spec;
  if (!spec->options.struct_size) ZENPS_TENSOR_OPTIONS_INIT(&member->spec.options);
  member->spec.options.scheme = scheme;
  member->spec.options.op = op;
  member->spec.options.group = member->group;
  member->tensor = tensor_open(&member->as, name, &member->spec);
}

/* Rows {0, 1} and {2, 3}, columns {0, 2} and {1, 3}; one list backwards. */
static void grid_open(struct rank *rank, struct member *row, struct member *column) {
  const int r = rank->rank / 2, c = rank->rank % 2;
  char name[32];
  snprintf(name, sizeof name, "row/%d", r);
  member_open(row, rank, name, rank->rank % 2 ? (const int[]){2 * r + 1, 2 * r} : (const int[]){2 * r, 2 * r + 1}, 2);
  row->first_step = 1000 * (uint64_t)(r + 1);
  snprintf(name, sizeof name, "column/%d", c);
  member_open(column, rank, name, (const int[]){c, c + 2}, 2);
  column->first_step = 1000 * (uint64_t)(c + 3);
}

/* ------------------------------------------------------------ sums */

struct flying {
  struct member *member;
  uint64_t step;
  zenps_grad_t in, out;
  zenps_request_t *request;
};

static void fly(struct flying *flying, struct member *member, uint64_t step) {
  *flying = (struct flying){.member = member, .step = member->first_step + step};
  grad_make(&member->spec, member->as.rank, flying->step, &flying->in);
  out_make(&member->spec, &flying->in, &flying->out);
  CHECK_OK(zenps_allreduce(member->tensor, flying->step, &flying->in, &flying->out, &flying->request));
}

static void land(struct flying *flying) {
  const struct member *member = flying->member;
  CHECK_OK(zenps_wait(flying->request, SOON_MS));
  out_check(&member->spec, member->as.world, flying->step, &flying->out);
  zenps_request_free(flying->request);
  out_free(&member->spec, &flying->in, &flying->out);
  grad_free(&flying->in);
}

/* All at once: each step's sums of the row, the column and the job are in flight together, and so are the next step's.
 */
static void grid_sums(struct rank *rank) {
  const char *const scheme = rank->arg;
  const struct spec spec = {.rows = ROWS,
                            .width = 4,
                            .dtype = ZENPS_F32,
                            .density = 0.1,
                            .odd_values = true,
                            .rows_out = strcmp(scheme, "omnireduce") == 0}; /* other schemes count blocks */
  struct member row, column, all = {.as = *rank};
  rank_open(rank);
  all.as.zenps = rank->zenps;
  grid_open(rank, &row, &column);
  member_tensor(&row, "w", &spec, scheme, ZENPS_OP_SUM);
  member_tensor(&column, "w", &spec, scheme, ZENPS_OP_MEAN);
  member_tensor(&all, "w", &spec, scheme, ZENPS_OP_SUM);
  CHECK(row.tensor != column.tensor && row.tensor != all.tensor);
  struct flying flying[2][3];
  for (uint64_t step = 0; step <= STEPS; step++) {
    struct flying *now = flying[step % 2], *before = flying[(step + 1) % 2];
    const bool starts_with_row = rank->rank < 2;
    if (step < STEPS) {
      fly(&now[0], starts_with_row ? &row : &column, step);
      fly(&now[1], starts_with_row ? &column : &row, step);
      fly(&now[2], &all, step);
    }
    for (unsigned i = 3; step > 0 && i-- > 0;) land(&before[i]);
  }
  rank_close(rank);
}

static void test_grid_over_servers(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, grid_sums, "balanced", 0);
  ranks_run(cluster_shared(), 4, grid_sums, "sparse-ps", 0);
  ranks_run(cluster_shared(), 4, grid_sums, "dense-ps", 0);
  ranks_run(cluster_shared(), 4, grid_sums, "omnireduce", 0);
}

/* Between the ranks of a group. Schemes add in orders of their own, of which two ranks' sums show nothing. Those that
 * keep the greatest rows drop sums of zero, which other values have. */
static void grid_between(struct rank *rank) {
  const char *const scheme = rank->arg;
  const bool keeps_greatest = strcmp(scheme, "oktopk") == 0 || strstr(scheme, "top");
  struct spec spec = {.rows = ROWS, .width = 4, .dtype = ZENPS_F32, .density = 0.1, .few_values = !keeps_greatest};
  struct member row, column;
  rank_open(rank);
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  char text[64];
  snprintf(text, sizeof text, "%s%s", scheme, keeps_greatest ? ":density=1" : "");
  grid_open(rank, &row, &column);
  member_tensor(&row, "w", &spec, text, ZENPS_OP_SUM);
  member_tensor(&column, "w", &spec, text, ZENPS_OP_MEAN);
  struct flying flying[2];
  for (uint64_t step = 0; step < 4 * STEPS; step++) { /* several choices of auto's */
    fly(&flying[0], step % 2 ? &row : &column, step);
    fly(&flying[1], step % 2 ? &column : &row, step);
    land(&flying[0]);
    land(&flying[1]);
  }
  rank_close(rank);
}

static void test_grid_between_ranks(void **state) {
  (void)state;
  static const char *const schemes[] = {"recursive-doubling",
                                        "split-allgather",
                                        "agsparse",
                                        "dsar",
                                        "bitmap-split",
                                        "ring",
                                        "rabenseifner",
                                        "two-level",
                                        "blueconnect",
                                        "dense-split",
                                        "hierarchical",
                                        "hierarchical:ring",
                                        "oktopk",
                                        "gtopk",
                                        "topka",
                                        "topkdsa",
                                        "auto",
                                        "auto:any"};
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
    ranks_run(cluster_shared(), 4, grid_between, schemes[i], 0);
}

/* Three of five ranks: the others have nothing to do with it. */
static void some_ranks(struct rank *rank) {
  const struct spec spec = {
      .rows = ROWS, .width = 3, .dtype = ZENPS_F64, .rows_in = true, .rows_out = true, .repeats = 2, .density = 0.2};
  const struct spec few = {.rows = ROWS, .width = 3, .dtype = ZENPS_F32, .density = 0.2, .few_values = true};
  struct member some;
  rank_open(rank);
  if (rank->rank % 2 == 0) {
    member_open(&some, rank, "even", (const int[]){4, 0, 2}, 3);
    member_tensor(&some, "lists", &spec, "balanced", ZENPS_OP_SUM);
    for (uint64_t step = 0; step < STEPS; step++) step_run(some.tensor, &some.spec, &some.as, step);
    member_tensor(&some, "mean", &spec, "balanced", ZENPS_OP_MEAN);
    for (uint64_t step = 0; step < STEPS; step++) step_run(some.tensor, &some.spec, &some.as, step);
    struct spec absent = spec; /* only every other rank has something */
    absent.empty = 2;
    member_tensor(&some, "present", &absent, "balanced", ZENPS_OP_MEAN_PRESENT);
    for (uint64_t step = 0; step < STEPS; step++) step_run(some.tensor, &some.spec, &some.as, step);
    /* Links between them alone, while the others wait in the barrier. */
    member_tensor(&some, "between", &few, "agsparse", ZENPS_OP_SUM);
    for (uint64_t step = 0; step < STEPS; step++) step_run(some.tensor, &some.spec, &some.as, step);
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_some_ranks(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 5, some_ranks, NULL, 0);
}

/* ------------------------------------------------------------ the other operations */

static void wait_ok(zenps_request_t *request) {
  CHECK_OK(zenps_wait(request, SOON_MS));
  zenps_request_free(request);
}

/* Each rank gives a row of its own, and all ones to the sum. */
static void parts(struct member *member) {
  enum { N = 8 };
  const int me = member->as.rank, n = member->as.world;
  const struct spec spec = {.rows = N, .width = 1, .dtype = ZENPS_F32};
  zenps_grad_t in, out;
  zenps_request_t *request;
  float ones[N], sum[N], row = (float)(100 * (me + 1));
  int64_t id = me;
  member_tensor(member, "parts", &spec, "balanced", ZENPS_OP_SUM);
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_DENSE;
  for (int i = 0; i < N; i++) ones[i] = (float)(me + 1);
  in.values = ones;
  out.values = sum;
  const float total = (float)(n * (n + 1) / 2);
  CHECK_OK(zenps_push(member->tensor, 1, &in, &request));
  wait_ok(request);
  CHECK_OK(zenps_pull(member->tensor, 1, NULL, &out, &request));
  wait_ok(request);
  for (int i = 0; i < N; i++) CHECK(sum[i] == total);
  const zenps_rows_t mine = ZENPS_ROWS_RANGE((uint64_t)me, 1);
  CHECK_OK(zenps_reduce_scatter(member->tensor, 2, &in, &mine, &out, &request));
  wait_ok(request);
  CHECK(sum[0] == total);
  in.layout = ZENPS_ROWS;
  in.nnz = 1;
  in.row_ids = &id;
  in.values = &row;
  CHECK_OK(zenps_allgather(member->tensor, 1, &in, &out, &request));
  wait_ok(request);
  for (int i = 0; i < N; i++) CHECK(sum[i] == (i < n ? (float)(100 * (i + 1)) : 0));
}

static void collectives(struct member *member, unsigned word, int root, bool is_root) {
  char text[100] = "";
  for (unsigned i = 0; i < 5; i++) {
    atomic_fetch_add(&member->as.words[word], 1);
    CHECK_OK(zenps_group_barrier(member->group));
    CHECK(atomic_load(&member->as.words[word]) >= (i + 1) * (unsigned)member->as.world);
  }
  if (is_root) snprintf(text, sizeof text, "group %u has this", word);
  CHECK_OK(zenps_group_broadcast(member->group, text, sizeof text, root));
  char wanted[100] = "";
  snprintf(wanted, sizeof wanted, "group %u has this", word);
  CHECK(strcmp(text, wanted) == 0);
}

static void grid_operations(struct rank *rank) {
  struct member row, column;
  rank_open(rank);
  grid_open(rank, &row, &column);
  parts(&column);
  parts(&row);
  const int last_of_row = rank->rank | 1;
  collectives(&row, (unsigned)rank->rank / 2, last_of_row, rank->rank == last_of_row);
  CHECK_STATUS(zenps_group_broadcast(row.group, &row, 1, (rank->rank + 2) % 4), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "is none of group row/");
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_grid_operations(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, grid_operations, NULL, 0);
}

/* ------------------------------------------------------------ trouble */

static void refused(const struct rank *rank, const int *ranks, uint32_t n, const char *says) {
  zenps_group_t *group;
  CHECK_STATUS(zenps_group_open(rank->zenps, "g", ranks, n, &group), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, says);
}

static void wrong_lists(struct rank *rank) {
  zenps_group_t *group, *again;
  zenps_tensor_options_t options;
  zenps_tensor_t *tensor;
  const int me = rank->rank, other = 1 - me;
  rank_open(rank);
  refused(rank, (const int[]){me, other, me}, 3, "3 ranks; 1 to 2 can be");
  refused(rank, (const int[]){me, me}, 2, "is in its list twice");
  refused(rank, (const int[]){me, 2}, 2, "ranks[1] is 2, in a world of 2");
  refused(rank, (const int[]){-1, me}, 2, "ranks[0] is -1");
  refused(rank, (const int[]){other}, 1, "but is none of its ranks");
  refused(rank, (const int[]){me}, 0, "0 ranks");
  CHECK_STATUS(zenps_group_open(rank->zenps, "@g", (const int[]){me}, 1, &group), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_group_open(rank->zenps, "both", (const int[]){0, 1}, 2, &group));
  CHECK_OK(zenps_group_open(rank->zenps, "both", (const int[]){1, 0}, 2, &again));
  CHECK(group == again);
  CHECK_STATUS(zenps_group_open(rank->zenps, "both", (const int[]){me}, 1, &again), ZENPS_ERR_SHAPE);
  CHECK_SAYS(zenps_last_error()->text, "group both is open with 2 ranks");
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.group = group;
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", 10, 1, ZENPS_F32, &options, &tensor));
  CHECK_OK(zenps_group_close(group));
  CHECK_STATUS(zenps_tensor_open(rank->zenps, "u", 10, 1, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "the group is none that this job has open");
  CHECK_STATUS(zenps_group_close(group), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_group_close(NULL));
  CHECK_OK(zenps_barrier(rank->zenps));
  if (me) CHECK_OK(zenps_group_open(rank->zenps, "both", (const int[]){me}, 1, &again)); /* the name is free */
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
}

static void test_wrong_lists(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, wrong_lists, NULL, 0);
}

/* Under one name: both hear of it, at once, whoever comes first. */
static void two_lists(struct rank *rank) {
  zenps_group_t *group;
  rank_open(rank);
  if (rank->rank < 2) {
    const uint64_t before = now_ms();
    CHECK_STATUS(zenps_group_open(rank->zenps, "g", (const int[]){1, 0, 2}, rank->rank ? 2 : 3, &group),
                 ZENPS_ERR_SHAPE);
    CHECK(now_ms() - before < SOON_MS);
    CHECK_SAYS(zenps_last_error()->text, "group 'g' is of ranks 0, 1");
    CHECK_SAYS(zenps_last_error()->text, "rank 0");
    CHECK_SAYS(zenps_last_error()->text, "rank 1");
  }
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_group_open(rank->zenps, "g", (const int[]){0, 1, 2}, 3, &group));
  rank_close(rank);
}

static void test_two_lists_of_one_name(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, two_lists, NULL, 0);
}

static void half_a_group(struct rank *rank) {
  zenps_group_t *group;
  zenps_status_t status;
  if (rank->rank == 0) rank->round_timeout_ms = 3000;
  rank_open(rank);
  if (rank->rank == 0) {
    CHECK_STATUS(zenps_group_open(rank->zenps, "half", (const int[]){0, 1, 2}, 3, &group), ZENPS_ERR_MISSING);
    CHECK_SAYS(zenps_last_error()->text, "group 'half': after");
    CHECK_SAYS(zenps_last_error()->text, "these ranks have not opened it: 1, 2");
    atomic_store(&rank->words[0], 1);
  }
  rank_await(rank, 0, 1);
  do { /* It may be tried again; and once more, where the others take longer than rank 0 waits. */
    status = zenps_group_open(rank->zenps, "half", (const int[]){0, 1, 2}, 3, &group);
  } while (status == ZENPS_ERR_MISSING);
  CHECK_OK(status);
  CHECK_OK(zenps_group_barrier(group));
  rank_close(rank);
}

static void test_half_a_group(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 3, half_a_group, NULL, 0);
}

/* Servers wait for the group's ranks alone, and name those. */
static void absent(struct rank *rank) {
  const struct spec spec = {.rows = ROWS, .width = 1, .dtype = ZENPS_F32, .density = 0.1};
  struct member pair;
  struct flying flying;
  rank->round_timeout_ms = 3000;
  rank_open(rank);
  if (rank->rank > 0) {
    member_open(&pair, rank, "pair", (const int[]){1, 3}, 2);
    member_tensor(&pair, "t", &spec, "balanced", ZENPS_OP_SUM);
    if (rank->rank == 1) {
      fly(&flying, &pair, 1);
      CHECK_STATUS(zenps_wait(flying.request, SOON_MS), ZENPS_ERR_MISSING);
      const zenps_error_t *error = zenps_request_error(flying.request);
      CHECK(error->n_missing == 1 && error->missing_ranks[0] == 3);
      CHECK_SAYS(error->text, "rank 3 (1 of 2 ranks are here)");
      zenps_request_free(flying.request);
      out_free(&pair.spec, &flying.in, &flying.out);
      grad_free(&flying.in);
      atomic_store(&rank->words[0], 1);
    }
  }
  rank_await(rank, 0, 1);
  rank_close(rank);
}

static void absent_of_four(struct rank *rank) {
  if (rank->rank == 2) { /* it has no part in the group, and leaves early */
    rank_open(rank);
    rank_close(rank);
    return;
  }
  absent(rank);
}

static void test_absent_rank_of_a_group(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, absent_of_four, NULL, 0);
}

/* A rank that leaves ends nothing of groups that it is not in; one that dies ends the job. */
static void others_go(struct rank *rank) {
  const struct spec spec = {.rows = ROWS, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  struct member pair;
  rank_open(rank);
  if (rank->rank == 2) {
    rank_close(rank);
    atomic_store(&rank->words[0], 1);
    return;
  }
  if (rank->rank == 3) {
    rank_await(rank, 1, 2);
    raise(SIGKILL);
  }
  member_open(&pair, rank, "pair", (const int[]){0, 1}, 2);
  member_tensor(&pair, "t", &spec, "balanced", ZENPS_OP_SUM);
  rank_await(rank, 0, 1);
  for (uint64_t step = 0; step < STEPS; step++) step_run(pair.tensor, &pair.spec, &pair.as, step);
  atomic_fetch_add(&rank->words[1], 1);
  zenps_status_t status = ZENPS_OK;
  for (uint64_t step = STEPS; status == ZENPS_OK && step < 1000000; step++) {
    zenps_request_t *request;
    zenps_grad_t in, out;
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    in.layout = out.layout = ZENPS_ROWS;
    status = zenps_allreduce(pair.tensor, step, &in, &out, &request);
    if (status != ZENPS_OK) break;
    status = zenps_wait(request, SOON_MS);
    zenps_request_free(request);
  }
  CHECK_STATUS(status, ZENPS_ERR_PEER_LOST);
  CHECK_SAYS(zenps_last_error()->text, "rank 3");
  rank_close(rank);
}

static void test_others_go(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, others_go, NULL, 1u << 3);
}

const struct CMUnitTest api_group_tests[] = {
    cmocka_unit_test(test_grid_over_servers),
    cmocka_unit_test(test_grid_between_ranks),
    cmocka_unit_test(test_some_ranks),
    cmocka_unit_test(test_grid_operations),
    cmocka_unit_test(test_wrong_lists),
    cmocka_unit_test(test_half_a_group),
    cmocka_unit_test(test_absent_rank_of_a_group),
    cmocka_unit_test(test_others_go),
    cmocka_unit_test(test_two_lists_of_one_name),
};
const size_t n_api_group_tests = sizeof api_group_tests / sizeof api_group_tests[0];
