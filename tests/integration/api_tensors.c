/* What tensors can do besides sums: rows of zeros that stay, means of the ranks that are present, and their end. */
#include "tests/integration/api_test.h"
#include "tests/support/sanitized.h"
#include "tests/support/thin.h"

#if defined SANITIZED_ADDRESS || defined SANITIZED_THREAD
static const bool counts_memory = false; /* freed memory is kept */
#else
static const bool counts_memory = true;
#endif

static const char *const keeping[] = {"balanced", "sparse-ps",    "recursive-doubling",    "split-allgather",
                                      "agsparse", "hierarchical", "hierarchical:agsparse", "auto"};
enum { N_KEEPING = sizeof keeping / sizeof keeping[0] };

/* Two ranks a host, so that schemes which look at hosts have something to do. */
static void open_on_hosts(struct rank *rank) {
  char host[16];
  snprintf(host, sizeof host, "host%d", rank->rank / 2);
  setenv("ZENPS_HOST", host, 1);
  rank_open(rank);
}

/* ------------------------------------------------------------ rows of zeros */

static zenps_tensor_t *open_keeping(const struct rank *rank, const char *name, const char *scheme, int keep) {
  zenps_tensor_t *tensor;
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  options.keep_zero_rows = keep;
  CHECK_OK(zenps_tensor_open(rank->zenps, name, 50, 2, ZENPS_F32, &options, &tensor));
  return tensor;
}

/* The rows that an optimiser such as SparseAdam is to see: of gradients that vanish, cancel within a rank, or cancel
 * between ranks. */
static void vanishing(struct rank *rank) {
  const float sign = rank->rank % 2 ? -1 : 1;
  int64_t rows[] = {40, 7, 30 + rank->rank, 20, 40};
  float values[] = {3, -1, 0, -0.0f, 0, 0, sign, sign, -3, 1};
  open_on_hosts(rank);
  for (unsigned i = 0; i < 2 * N_KEEPING; i++) {
    const char *const scheme = keeping[i / 2];
    const int keep = i % 2;
    char name[64];
    snprintf(name, sizeof name, "%s %d", scheme, keep);
    zenps_tensor_t *const tensor = open_keeping(rank, name, scheme, keep);
    for (uint64_t step = 0; step < 3; step++) {
      zenps_grad_t in, out;
      zenps_request_t *request;
      ZENPS_GRAD_INIT(&in);
      ZENPS_GRAD_INIT(&out);
      in.layout = out.layout = ZENPS_ROWS;
      in.nnz = 5;
      in.row_ids = rows;
      in.values = values;
      CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
      CHECK_OK(zenps_wait(request, -1));
      if (keep) {
        const int64_t wanted[] = {7, 20, 30, 31, 32, 33, 40};
        CHECK(out.nnz == 7 && memcmp(out.row_ids, wanted, sizeof wanted) == 0);
      } else { /* 20, whose values cancel between ranks, may or may not be there */
        CHECK(out.nnz <= 1 && (out.nnz == 0 || out.row_ids[0] == 20));
      }
      for (uint64_t v = 0; v < 2 * out.nnz; v++) CHECK(((const float *)out.values)[v] == 0);
      zenps_request_free(request);
    }
  }
  rank_close(rank);
}

static void test_zero_rows(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, vanishing, NULL, 0);
}

static void many_steps(struct rank *rank) {
  const struct spec *const given = rank->arg;
  open_on_hosts(rank);
  for (unsigned i = 0; i < N_KEEPING; i++) {
    struct spec spec = *given;
    spec.options.scheme = keeping[i];
    zenps_tensor_t *const tensor = tensor_open(rank, keeping[i], &spec);
    for (uint64_t step = 0; step < 4; step++) step_run(tensor, &spec, rank, step);
  }
  rank_close(rank);
}

/* A third of the values are zero, so that rows vanish in every way; nearly full ones, too. */
static void test_zero_rows_many(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 16; bits++) {
    if (thin_skips_repeated()) continue;
    struct spec spec = {.rows = bits & 8 ? 60 : 3001,
                        .width = bits & 1 ? 2 : 1,
                        .dtype = bits & 2 ? ZENPS_F64 : ZENPS_F32,
                        .rows_in = true,
                        .rows_out = bits & 4 || bits & 8,
                        .repeats = 2,
                        .density = bits & 8 ? 3 : 0.05,
                        .few_values = true,
                        .own_arrays = bits & 1};
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.keep_zero_rows = 1;
    spec.options.op = (bits & 6) == 6 ? ZENPS_OP_MAX : bits & 2 ? ZENPS_OP_MEAN : ZENPS_OP_SUM;
    if (spec.options.op == ZENPS_OP_MEAN && bits & 1) spec.options.codec = ZENPS_CODEC_PAPER;
    ranks_run(cluster_shared(), 4, many_steps, &spec, 0);
  }
  struct spec halves = {
      .rows = 900, .width = 1, .dtype = ZENPS_BF16, .rows_in = true, .rows_out = true, .repeats = 2, .density = 0.2};
  halves.few_values = true;
  ZENPS_TENSOR_OPTIONS_INIT(&halves.options);
  halves.options.keep_zero_rows = 1;
  ranks_run(cluster_shared(), 4, many_steps, &halves, 0);
}

static void disagreeing(struct rank *rank) {
  zenps_tensor_t *tensor;
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "balanced";
  rank_open(rank);
  if (rank->rank == 0) {
    open_keeping(rank, "t", "balanced", 1);
    atomic_store(&rank->words[0], 1);
    rank_await(rank, 1, 1);
  } else {
    rank_await(rank, 0, 1);
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t", 50, 2, ZENPS_F32, &options, &tensor), ZENPS_ERR_SHAPE);
    CHECK_SAYS(zenps_last_error()->text, "keep_zero_rows 1");
    options.keep_zero_rows = 2;
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 50, 2, ZENPS_F32, &options, &tensor), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "keep_zero_rows is 2; 0 or 1");
    options.keep_zero_rows = 1;
    options.scheme = "ring";
    CHECK_STATUS(zenps_tensor_open(rank->zenps, "t2", 50, 2, ZENPS_F32, &options, &tensor), ZENPS_ERR_UNSUPPORTED);
    CHECK_SAYS(zenps_last_error()->text, "do not tell which rows ranks sent");
    atomic_store(&rank->words[1], 1);
  }
  rank_close(rank);
}

static void test_zero_rows_refused(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, disagreeing, NULL, 0);
}

/* ------------------------------------------------------------ ranks that have nothing */

static void means(struct rank *rank) {
  static const char *const schemes[] = {"balanced", "sparse-ps", "dense-ps", "auto"}; /* omnireduce counts blocks */
  struct spec spec = *(const struct spec *)rank->arg;
  rank_open(rank);
  for (unsigned i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
    spec.options.scheme = schemes[i];
    if (i >= 2 && spec.rows_out) continue; /* results with all rows */
    if (i >= 2 && spec.options.values > ZENPS_VALUES_RAW) continue;
    zenps_tensor_t *const tensor = tensor_open(rank, schemes[i], &spec);
    for (uint64_t step = 0; step < 4; step++) step_run(tensor, &spec, rank, step);
  }
  rank_close(rank);
}

static void test_contributors(void **state) {
  (void)state;
  static const zenps_op_t ops[] = {ZENPS_OP_MEAN_PRESENT, ZENPS_OP_SUM, ZENPS_OP_MEAN};
  for (unsigned bits = 0; bits < 12; bits++) {
    if (thin_skips_repeated()) continue;
    struct spec spec = {.rows = bits & 1 ? 40 : 20001,
                        .width = bits & 2 ? 3 : 1,
                        .dtype = bits & 2 ? ZENPS_F64 : ZENPS_F32,
                        .rows_in = bits != 11,
                        .rows_out = bits & 1,
                        .repeats = 2,
                        .density = 0.2,
                        .empty = 2 + bits % 3}; /* ranks 0 and 2, 3, or 4 of 5 */
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.op = ops[bits / 4];
    ranks_run(cluster_shared(), 5, means, &spec, 0);
  }
  struct spec halves = {.rows = 3000, .width = 2, .dtype = ZENPS_F16, .rows_in = true, .density = 0.2, .empty = 3};
  ZENPS_TENSOR_OPTIONS_INIT(&halves.options);
  halves.options.op = ZENPS_OP_MEAN_PRESENT;
  ranks_run(cluster_shared(), 4, means, &halves, 0);
}

/* Ranks run out one after the other; at last none has anything. One counts although its list is empty. By allreduce,
 * and by push and pull. */
static void running_out(struct rank *rank) {
  zenps_tensor_options_t options;
  zenps_tensor_t *tensor;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = "balanced";
  options.op = ZENPS_OP_MEAN_PRESENT;
  rank_open(rank);
  CHECK_OK(zenps_tensor_open(rank->zenps, "t", 1000, 1, ZENPS_F32, &options, &tensor));
  for (int step = 0; step <= 2 * rank->world + 1; step++) {
    const int left = rank->world - step / 2; /* ranks that have data */
    int64_t row = 7;
    float value = (float)(3 * (rank->rank + 1));
    float sum = 0, dense[1000];
    zenps_grad_t in, out;
    zenps_request_t *request, *pulling = NULL;
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    in.layout = ZENPS_ROWS;
    in.nnz = rank->rank < left;
    in.row_ids = &row;
    in.values = &value;
    in.contributes = step == 1 && rank->rank == rank->world - 1;
    if (in.contributes) in.nnz = 0;
    out.layout = step % 3 ? ZENPS_ROWS : ZENPS_DENSE;
    if (out.layout == ZENPS_DENSE) out.values = dense;
    if (step % 2) {
      CHECK_OK(zenps_allreduce(tensor, (uint64_t)step, &in, &out, &request));
    } else {
      CHECK_OK(zenps_push(tensor, (uint64_t)step, &in, &request));
      CHECK_OK(zenps_pull(tensor, (uint64_t)step, NULL, &out, &pulling));
    }
    CHECK_OK(zenps_wait(request, -1));
    if (pulling) CHECK_OK(zenps_wait(pulling, -1));
    for (int r = 0; r < left && !(step == 1 && r == rank->world - 1); r++) sum += (float)(3 * (r + 1));
    CHECK(out.contributors == left);
    if (left > 0) sum *= 1.0f / (float)left;
    CHECK(out.nnz == (left > 0));
    const float got = out.layout == ZENPS_DENSE ? dense[7] : left > 0 ? *(float *)out.values : 0;
    CHECK(memcmp(&got, &sum, sizeof sum) == 0);
    zenps_request_free(request);
    zenps_request_free(pulling);
  }
  rank_close(rank);
}

static void test_running_out(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, running_out, NULL, 0);
}

/* ------------------------------------------------------------ many at once */

/* How often zenpsctl shows a tensor of this job. */
static unsigned tensors_shown(const struct rank *rank) {
  char command[512], line[4096];
  unsigned n = 0;
  snprintf(command, sizeof command, "%s --endpoint %s -o json tensors --internal", getenv("ZENPSCTL"),
           rank->cluster->address);
  FILE *const out = popen(command, "r");
  CHECK(out);
  while (fgets(line, sizeof line, out))
    for (const char *at = line; (at = strstr(at, rank->job)) != NULL; at++) n++;
  CHECK(pclose(out) == 0);
  return n;
}

static void opening(struct rank *rank) {
  enum { N = 40 };
  static const char *const schemes[] = {"balanced", "sparse-ps", "auto:balanced,sparse-ps", "agsparse", "hierarchical"};
  zenps_tensor_options_t options[5];
  zenps_tensor_spec_t specs[N];
  zenps_tensor_t *tensors[N] = {NULL}, *again[N];
  char names[N][16];
  open_on_hosts(rank);
  for (unsigned i = 0; i < N; i++) {
    ZENPS_TENSOR_OPTIONS_INIT(&options[i % 5]);
    options[i % 5].scheme = schemes[i % 5];
    options[i % 5].keep_zero_rows = 1;
    snprintf(names[i], sizeof names[i], "t%u", i == N - 1 ? 0 : i); /* the last one is the first one again */
    specs[i] = (zenps_tensor_spec_t){.struct_size = sizeof specs[i],
                                     .name = names[i],
                                     .rows = 1000 + i % 5,
                                     .width = 2,
                                     .dtype = ZENPS_F32,
                                     .options = &options[i % 5]};
  }
  specs[N - 1] = specs[0];
  /* Nothing is open, where one cannot be. */
  CHECK_OK(zenps_barrier(rank->zenps));
  const unsigned shown = tensors_shown(rank);
  CHECK_OK(zenps_barrier(rank->zenps));
  specs[7].width = 0;
  CHECK_STATUS(zenps_tensor_open_many(rank->zenps, specs, N, tensors), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "tensor t7: 1002 x 0");
  specs[7].width = 2;
  specs[3].struct_size = 0;
  CHECK_STATUS(zenps_tensor_open_many(rank->zenps, specs, N, tensors), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "specs[3].struct_size is 0");
  specs[3].struct_size = sizeof specs[3];
  CHECK_STATUS(zenps_tensor_open_many(NULL, specs, N, tensors), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_tensor_open_many(rank->zenps, NULL, 0, NULL));
  CHECK(!tensors[0] && tensors_shown(rank) == shown);
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK_OK(zenps_tensor_open_many(rank->zenps, specs, N, tensors));
  CHECK(tensors[N - 1] == tensors[0]);
  CHECK_OK(zenps_tensor_open_many(rank->zenps, specs, N, again));
  CHECK(memcmp(tensors, again, sizeof again) == 0);
  for (unsigned i = 0; i < N; i++) {
    const struct spec spec = {.rows = specs[i].rows,
                              .width = 2,
                              .dtype = ZENPS_F32,
                              .rows_in = true,
                              .density = 0.05,
                              .few_values = true,
                              .options = *specs[i].options};
    CHECK(tensor_open(rank, specs[i].name, &spec) == tensors[i]);
    step_run(tensors[i], &spec, rank, i);
  }
  /* Ranks that do not agree on one. */
  for (unsigned i = 0; i < 3; i++) snprintf(names[i], sizeof names[i], "u%u", i);
  specs[1].rows += (uint64_t)rank->rank;
  memset(tensors, 0, sizeof tensors);
  const zenps_status_t status = zenps_tensor_open_many(rank->zenps, specs, 3, tensors);
  CHECK(status == ZENPS_ERR_SHAPE ? !tensors[0] && !tensors[2] : status == ZENPS_OK && tensors[2]);
  if (status == ZENPS_ERR_SHAPE) CHECK_SAYS(zenps_last_error()->text, "tensor 'u1'");
  atomic_fetch_add(&rank->words[0], status == ZENPS_OK);
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK(atomic_load(&rank->words[0]) == 1);
  rank_close(rank);
}

static void test_open_many(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, opening, NULL, 0);
}

/* ------------------------------------------------------------ closed, and opened anew */

/* Bytes of memory that a process has. */
static uint64_t resident_bytes(pid_t pid) {
  char path[64];
  unsigned long long pages = 0, resident = 0;
  snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
  FILE *const in = fopen(path, "re");
  CHECK(in && fscanf(in, "%llu %llu", &pages, &resident) == 2);
  fclose(in);
  return resident * 4096;
}

static uint64_t daemons_bytes(const struct cluster *cluster) {
  uint64_t bytes = resident_bytes(cluster->coordinator);
  for (unsigned i = 0; i < cluster->n_servers; i++) bytes += resident_bytes(cluster->servers[i]);
  return bytes;
}

static void open_and_close(struct rank *rank, struct spec *spec, uint64_t from, uint64_t until) {
  for (uint64_t i = from; i < until; i++) {
    spec->rows = 1000 + i % 7; /* another shape each time */
    zenps_tensor_t *const tensor = tensor_open(rank, "bucket", spec);
    step_run(tensor, spec, rank, 0);
    CHECK_OK(zenps_tensor_close(tensor));
  }
}

/* As where buckets are rebuilt, and models come and go. */
static void test_close_many_rank(struct rank *rank) {
  enum { WARM = 300, MANY = 1000 };
  struct spec spec = {.width = 2, .dtype = ZENPS_F32, .rows_in = true, .density = 0.02};
  ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
  spec.options.scheme = "balanced";
  rank_open(rank);
  zenps_tensor_t *const stays = tensor_open(rank, "stays", &plain_spec);
  open_and_close(rank, &spec, 0, WARM);
  CHECK_OK(zenps_barrier(rank->zenps));
  const uint64_t before = daemons_bytes(rank->cluster), before_here = resident_bytes(getpid());
  const unsigned shown = tensors_shown(rank);
  CHECK_OK(zenps_barrier(rank->zenps)); /* each has looked before one goes on */
  open_and_close(rank, &spec, WARM, WARM + MANY);
  CHECK_OK(zenps_barrier(rank->zenps));
  /* A tensor takes several kilobytes of each server, and of each rank. */
  const uint64_t after = daemons_bytes(rank->cluster), after_here = resident_bytes(getpid());
  if (counts_memory) CHECK(after < before + (1u << 20) && after_here < before_here + (1u << 20));
  CHECK(tensors_shown(rank) == shown);
  step_run(stays, &plain_spec, rank, 5);
  rank_close(rank);
}

static void test_close_many(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start(&cluster, 2);
  ranks_run(&cluster, 2, test_close_many_rank, NULL, 0);
  cluster_stop(&cluster);
}

/* With steps in flight that were given up: their ends are awaited. */
static void close_canceled(zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank) {
  enum { STEPS = 8 };
  zenps_request_t *requests[STEPS];
  zenps_grad_t in, outs[STEPS];
  grad_make(spec, rank->rank, 1, &in);
  for (uint64_t i = 0; i < STEPS; i++) {
    out_make(spec, &in, &outs[i]);
    CHECK_OK(zenps_allreduce(tensor, 1 + i, &in, &outs[i], &requests[i]));
  }
  for (uint64_t i = 0; i < STEPS; i++) CHECK_OK(zenps_cancel(requests[i]));
  CHECK_OK(zenps_tensor_close(tensor));
  for (uint64_t i = 0; i < STEPS; i++) {
    zenps_request_free(requests[i]);
    out_free(spec, &in, &outs[i]);
  }
  grad_free(&in);
}

/* Of each kind, with what of the library's own belongs to it; opened anew, under another scheme. */
static void closing(struct rank *rank) {
  static const char *const schemes[] = {"balanced", "hierarchical", "agsparse", "auto", "dense-ps", "oktopk:density=1"};
  enum { N = sizeof schemes / sizeof schemes[0] };
  struct spec spec = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  open_on_hosts(rank);
  CHECK_OK(zenps_barrier(rank->zenps)); /* a barrier opens a tensor of its own */
  const unsigned shown = tensors_shown(rank);
  CHECK_OK(zenps_barrier(rank->zenps));
  zenps_tensor_t *tensor = NULL, *other = tensor_open(rank, "w/other", &spec);
  for (unsigned i = 0; i < 2 * N; i++) {
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.scheme = schemes[i % N];
    const bool drops_zeros = i % N == 5;
    spec.rows = 3000 + i;
    const bool keeps = i % N < 4; /* sums of few values are the same in any order */
    spec.rows_in = spec.rows_out = spec.few_values = keeps;
    spec.options.keep_zero_rows = keeps;
    tensor = tensor_open(rank, "w", &spec);
    for (uint64_t step = 0; step < 3 && !drops_zeros; step++) step_run(tensor, &spec, rank, step);
    int64_t row = rank->rank;
    float values[2] = {1, 2};
    zenps_grad_t in, out;
    zenps_request_t *request;
    ZENPS_GRAD_INIT(&in);
    ZENPS_GRAD_INIT(&out);
    in.layout = out.layout = ZENPS_ROWS;
    in.nnz = 1;
    in.row_ids = &row;
    in.values = values;
    CHECK_OK(zenps_allgather(tensor, 7, &in, &out, &request));
    CHECK_OK(zenps_wait(request, -1));
    CHECK(out.nnz == (uint64_t)rank->world);
    CHECK_OK(zenps_tensor_close(tensor));
    CHECK(out.row_ids[1] == 1 && ((const float *)out.values)[3] == 2); /* what is done stays */
    zenps_request_free(request);
    CHECK_STATUS(zenps_allreduce(tensor, 9, &in, &out, &request), ZENPS_ERR_CLOSED);
    CHECK_SAYS(zenps_last_error()->text, "tensor w was closed");
    CHECK_STATUS(zenps_push(tensor, 9, &in, &request), ZENPS_ERR_CLOSED);
    CHECK_STATUS(zenps_allgather(tensor, 9, &in, &out, &request), ZENPS_ERR_CLOSED);
    CHECK_STATUS(zenps_tensor_close(tensor), ZENPS_ERR_CLOSED);
    zenps_tensor_info_t info = {.struct_size = sizeof info};
    CHECK_STATUS(zenps_tensor_info(tensor, &info), ZENPS_ERR_CLOSED);
    CHECK(zenps_tensor_partitions(tensor) == 0 && zenps_tensor_owner(tensor, 0) == -1);
  }
  if (rank->rank < 2) { /* of a group, under a name that there is besides */
    const int pair[] = {0, 1};
    zenps_group_t *group;
    CHECK_OK(zenps_group_open(rank->zenps, "pair", pair, 2, &group));
    ZENPS_TENSOR_OPTIONS_INIT(&spec.options);
    spec.options.scheme = "balanced";
    spec.options.group = group;
    CHECK_OK(zenps_tensor_close(tensor_open(rank, "w/other", &spec)));
    CHECK_OK(zenps_group_close(group));
  }
  const struct spec still = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  step_run(other, &still, rank, 0);
  CHECK_OK(zenps_barrier(rank->zenps));
  CHECK(tensors_shown(rank) == shown + 1); /* w/other alone */
  CHECK_OK(zenps_barrier(rank->zenps));
  close_canceled(other, &still, rank);
  CHECK(tensors_shown(rank) == shown);
  CHECK_STATUS(zenps_tensor_close(NULL), ZENPS_ERR_INVALID);
  rank_close(rank);
}

static void test_close(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 4, closing, NULL, 0);
}

/* One rank does not come: the others are told so, and the tensor is as before. A rank that has left is not awaited. */
static void closing_alone(struct rank *rank) {
  struct spec spec = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.1};
  rank->round_timeout_ms = 3000;
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "w", &spec);
  step_run(tensor, &spec, rank, 0);
  if (rank->rank != 1) {
    if (rank->rank == 2) usleep(400000); /* rank 0 gives up first */
    CHECK_STATUS(zenps_tensor_close(tensor), ZENPS_ERR_MISSING);
    CHECK_SAYS(zenps_last_error()->text, "these ranks have not closed tensor 'w': 1");
    atomic_fetch_add(&rank->words[0], 1);
  } else {
    zenps_request_t *request;
    zenps_grad_t in, out;
    grad_make(&spec, rank->rank, 9, &in);
    out_make(&spec, &in, &out);
    CHECK_OK(zenps_allreduce(tensor, 9, &in, &out, &request));
    CHECK_STATUS(zenps_tensor_close(tensor), ZENPS_ERR_BUSY);
    CHECK_SAYS(zenps_last_error()->text, "tensor w: 1 of its operations are in flight");
    zenps_request_free(request);
    out_free(&spec, &in, &out);
    grad_free(&in);
  }
  rank_await(rank, 0, 2);
  step_run(tensor, &spec, rank, 1);
  if (rank->rank != 1) CHECK_OK(zenps_tensor_close(tensor));
  rank_close(rank);
}

static void test_close_alone(void **state) {
  (void)state;
  if (between_workers()) skip(); /* a rank that leaves is read from */
  ranks_run(cluster_shared(), 3, closing_alone, NULL, 0);
}

const struct CMUnitTest api_tensor_tests[] = {
    cmocka_unit_test(test_open_many),  cmocka_unit_test(test_close),          cmocka_unit_test(test_close_alone),
    cmocka_unit_test(test_close_many), cmocka_unit_test(test_contributors),   cmocka_unit_test(test_running_out),
    cmocka_unit_test(test_zero_rows),  cmocka_unit_test(test_zero_rows_many), cmocka_unit_test(test_zero_rows_refused),
};
const size_t n_api_tensor_tests = sizeof api_tensor_tests / sizeof api_tensor_tests[0];
