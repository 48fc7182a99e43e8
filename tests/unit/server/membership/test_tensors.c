/* The membership module, case by case: the members on which ranks must agree to open a tensor, and the receivers of the
 * answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

static void test_tensor_is_opened_once_and_answered_to_all(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 32), ZPS_OK); /* the value of the default */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 1, NULL), 1);
  assert_int_equal(seen->n_parts, 32);
  zps_members_tensor_opened(rig.members, &rig.clients[0], job_id, 0, ZPS_OK, NULL);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 2, NULL), 0);
  zps_members_tensor_opened(rig.members, &rig.clients[1], job_id, 0, ZPS_OK, NULL);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 2, NULL), 1);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 3, NULL), 1);
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_OK); /* again: answered at once */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_DONE, 3, NULL), 2);
  assert_int_equal(members_tensor(3, job_id, "w", 99999, 0), ZPS_ERR_SHAPE);
  assert_string_equal(rig.error.text,
                      "tensor 'w' is 100000 x 8 f32 sum in 32 partitions, block_bits 0, codec auto, values raw, "
                      "scheme balanced since rank 0 (host node) "
                      "registered it, rank 1 (host node) says 99999 x 8 f32 sum in 32 partitions, block_bits 0, codec "
                      "auto, values raw, scheme balanced");
  rig.tensor.codec = ZPS_CODEC_PAPER;
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "codec auto, values raw, scheme balanced since rank 0"));
  assert_non_null(
      strstr(rig.error.text, "says 100000 x 8 f32 sum in 32 partitions, block_bits 0, codec paper, values raw"));
  rig.tensor.codec = ZPS_CODEC_AUTO;
  rig.tensor.value_codec = ZPS_VALUES_QSGD4;
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "codec auto, values raw, scheme balanced since rank 0"));
  assert_non_null(strstr(rig.error.text, "codec auto, values qsgd4"));
  rig.tensor.value_codec = ZPS_VALUES_RAW;
  rig.tensor.scheme = (struct zps_scheme_spec){.name = "ring", .chunks = 2};
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "says 100000 x 8 f32 sum in 32 partitions"));
  assert_non_null(strstr(rig.error.text, "values raw, scheme ring:chunks=2"));
  rig.tensor.scheme = (struct zps_scheme_spec){.name = ""};
  assert_int_equal(members_tensor(3, job_id + 1, "w", 1, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(members_tensor(3, job_id, "w2", 0, 0), ZPS_ERR_INVALID);
  assert_int_equal(members_tensor(3, job_id, "w2", 1, ZPS_PARTITION_PARTS_MAX + 1), ZPS_ERR_INVALID);
}

/* A tensor that a server has not opened when it is lost has no fate of its own. */
static void test_server_lost_while_a_tensor_opens(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(2, job_id, "w", 10, 0), ZPS_OK);
  zps_members_tensor_opened(rig.members, &rig.clients[1], job_id, 0, ZPS_ERR_CLOSED, "closed here");
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, NULL), 0);
  zps_members_client_lost(rig.members, &rig.clients[1], "gone");
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_SERVER_LOST);
}

static void test_tensor_that_a_server_refuses_stays_refused(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  assert_int_equal(members_tensor(2, job_id, "w", 10, 0), ZPS_OK);
  zps_members_tensor_opened(rig.members, &rig.clients[1], job_id, 0, ZPS_ERR_NOMEM, "full");
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, &seen), 1);
  assert_string_equal(seen->text, "tensor 'w' of job 'x': server 'b' (host node): full");
  assert_int_equal(members_tensor(3, job_id, "w", 10, 0), ZPS_ERR_NOMEM);
  assert_int_equal(members_tensor(3, job_id, "w1", 10, 0), ZPS_OK);
  assert_int_equal(members_tensor(3, job_id, "w2", 10, 0), ZPS_OK);
  assert_int_equal(members_tensor(3, job_id, "w3", 10, 0), ZPS_ERR_QUOTA); /* max_tensors */
}

static void test_even_schemes_lay_out_their_rows(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  rig.tensor.scheme = (struct zps_scheme_spec){.name = "dense-ps"};
  assert_int_equal(members_tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  assert_int_equal(seen->n_parts, 49); /* of 2^11 rows, for 2 servers */
  assert_int_equal(members_tensor(3, job_id, "w2", 100000, 8), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text,
                      "tensor 'w2': scheme dense-ps lays rows out itself: it takes no number of "
                      "partitions, no block_bits");
  rig.tensor.scheme = (struct zps_scheme_spec){.name = "omnireduce", .of_rows = 25600, .of_width = 100};
  assert_int_equal(members_tensor(3, job_id, "w3", 100000, 0), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 2);
  assert_int_equal(seen->n_parts, 49);
  rig.tensor.scheme = (struct zps_scheme_spec){.name = ""};
  assert_int_equal(members_tensor(3, job_id, "w", 100000, 0), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "in 49 partitions, block_bits 11, codec auto, values raw, scheme dense-ps"));
}

static void test_ranks_that_push_are_the_same_for_all(void **state) {
  (void)state;
  static const uint32_t ranks[] = {1, 0, 2};
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  rig.tensor.ranks = ranks;
  rig.tensor.n_ranks = 1;
  assert_int_equal(members_tensor(2, job_id, "w", 1000, 2), ZPS_OK);
  assert_int_equal(members_tensor(3, job_id, "w", 1000, 2), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, 0, &seen), 1);
  rig.tensor.n_ranks = 2;
  assert_int_equal(members_tensor(3, job_id, "descending", 1000, 2), ZPS_ERR_INVALID);
  rig.tensor.ranks = ranks + 1;
  assert_int_equal(members_tensor(3, job_id, "beyond", 1000, 2), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "tensor 'beyond': the ranks that push it must ascend and be below 2");
  rig.tensor.n_ranks = 1;
  assert_int_equal(members_tensor(3, job_id, "w", 1000, 2), ZPS_ERR_SHAPE);
  rig.tensor.n_ranks = 0;
  assert_int_equal(members_tensor(3, job_id, "w", 1000, 2), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "pushed by 1 ranks since rank 0"));
}

static void test_what_ranks_tell_is_added_up(void **state) {
  (void)state;
  const uint64_t job_id = members_running_job();
  const struct zps_member_job *const job = zps_members_job_first(rig.members);
  const struct zps_tally growth = {.rounds = 5, .bytes_out = 100, .step = 4, .scheme = "ring"};
  assert_int_equal(members_tensor(2, job_id, "w", 100000, 0), ZPS_OK);
  assert_int_equal(members_tensor(2, job_id, "@barrier", 1, 0), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[2], job_id, 0, 5, &growth, 7, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id, 0, 5, &growth, 8, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id, 0, 10, &growth, 9, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id, 1, 5, &growth, 9, &rig.error), ZPS_OK);
  const struct zps_member_tensor *const tensor = job->tensors[0];
  assert_int_equal(tensor->rounds_done, 10); /* of rank 1, which is ahead */
  assert_int_equal(tensor->tally.rounds, 15);
  assert_int_equal(tensor->tally.bytes_out, 300);
  assert_int_equal(tensor->reported_ns, 9);
  assert_int_equal(job->ranks[0]->tally.rounds, 5);
  assert_int_equal(job->ranks[0]->reported_ns, 7);
  assert_int_equal(job->ranks[1]->tally.rounds, 10); /* without those of the library's own tensor */
  assert_int_equal(job->tensors[1]->tally.rounds, 5);
  assert_int_equal(members_tensor(2, job_id, "v", 100000, 0), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[2], job_id, 2, 6, &growth, 7, &rig.error), ZPS_OK);
  assert_int_equal(zps_member_job_tally(job).rounds, 16); /* 10 of "w" and 6 of "v" */
  assert_int_equal(zps_member_job_tally(job).bytes_out, 400);

  /* Of itself a rank tells how much there is in all: the last word counts. */
  struct zps_rank_report news = {
      .job_id = job_id, .kept_bytes = 100, .mishaps = {.corrupt = 2, .forged = 7}, .load = {.busy = 10}};
  assert_int_equal(zps_members_rank_report(&rig.clients[3], &news, 0, &rig.error), ZPS_OK);
  news.kept_bytes = 50;
  news.mishaps = (struct zps_mishaps){.corrupt = 3, .forged = 8};
  assert_int_equal(zps_members_rank_report(&rig.clients[3], &news, 0, &rig.error), ZPS_OK);
  assert_true(job->ranks[1]->kept_bytes == 50 && job->ranks[1]->mishaps.corrupt == 3 &&
              job->ranks[1]->mishaps.forged == 8);
  assert_true(job->ranks[0]->mishaps.corrupt == 0 && job->ranks[0]->mishaps.forged == 0);
  news.job_id = job_id + 1;
  assert_int_equal(zps_members_rank_report(&rig.clients[3], &news, 0, &rig.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id + 1, 0, 1, &growth, 9, &rig.error), ZPS_ERR_UNKNOWN);
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id, 3, 1, &growth, 9, &rig.error), ZPS_ERR_UNKNOWN);
  assert_non_null(strstr(rig.error.text, "job 'x' has no tensor 3"));
  assert_int_equal(zps_members_tally(&rig.clients[4], job_id, 0, 1, &growth, 9, &rig.error), ZPS_ERR_UNKNOWN);
  zps_members_client_lost(rig.members, &rig.clients[2], "it died"); /* the job has failed; rank 1 may still report */
  assert_int_equal(zps_members_tally(&rig.clients[3], job_id, 0, 11, &growth, 9, &rig.error), ZPS_OK);
  assert_int_equal(tensor->rounds_done, 11);
}

static zps_err_t close_tensor(unsigned client, uint64_t job_id, uint32_t tensor, uint64_t now_ns) {
  return zps_settled(rig.members, zps_members_tensor_close(&rig.clients[client], job_id, tensor, 1500,
                                                           &rig.clients[client], now_ns, &rig.error));
}

static void open_tensor(uint64_t job_id, const char *name, uint32_t number) {
  assert_int_equal(members_tensor(2, job_id, name, 10 + number, 0), ZPS_OK);
  for (unsigned s = 0; s < 2; s++)
    zps_members_tensor_opened(rig.members, &rig.clients[s], job_id, number, ZPS_OK, NULL);
}

/* Closed when all ranks want it, with those that belong to it; the name may come again, its number does not. */
static void test_tensor_is_closed_by_all_ranks(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  open_tensor(job_id, "w", 0);
  open_tensor(job_id, "@hosts/@ring/w", 1);
  open_tensor(job_id, "v/w", 2);
  assert_int_equal(close_tensor(2, job_id, 7, 0), ZPS_ERR_UNKNOWN);
  assert_string_equal(rig.error.text, "job 'x' has no open tensor 7");
  assert_int_equal(close_tensor(2, job_id, 1, 0), ZPS_ERR_INVALID);
  assert_int_equal(close_tensor(2, job_id + 1, 0, 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(close_tensor(2, job_id, 0, 0), ZPS_OK);
  assert_int_equal(close_tensor(2, job_id, 0, 0), ZPS_ERR_BUSY);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, 0, NULL), 0);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_CLOSED, 2, NULL), 0);
  assert_int_equal(close_tensor(3, job_id, 0, 0), ZPS_OK);
  for (unsigned s = 0; s < 2; s++) assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, s, NULL), 2);
  for (unsigned c = 2; c < 4; c++) assert_int_equal(members_count(ZPS_ACT_TENSOR_CLOSED, c, NULL), 1);
  const struct zps_member_job *const job = zps_members_job_first(rig.members);
  assert_int_equal(job->n_tensors, 1);
  assert_null(zps_members_tensor_find(job, 0));
  assert_null(zps_members_tensor_find(job, 1));
  assert_string_equal(zps_members_tensor_find(job, 2)->spec.name, "v/w");
  rig.n_seen = 0;
  for (uint32_t i = 3; i < 40; i++) { /* no more than the job may have at a time */
    open_tensor(job_id, "w", i);
    assert_int_equal(close_tensor(3, job_id, i, 0), ZPS_OK);
    assert_int_equal(close_tensor(2, job_id, i, 0), ZPS_OK);
    assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, 1, &seen), 1);
    rig.n_seen = 0;
  }
  assert_int_equal(job->n_tensors, 1);
}

static void test_ranks_that_do_not_close_are_named(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job(), ms = 1000000;
  open_tensor(job_id, "w", 0);
  assert_int_equal(close_tensor(2, job_id, 0, 0), ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 1000 * ms), 1500 * ms);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, NULL), 0);
  zps_members_tick(rig.members, 1500 * ms);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text, "job 'x': after 1.5 s these ranks have not closed tensor 'w': 1");
  assert_int_equal(close_tensor(3, job_id, 0, 1500 * ms), ZPS_OK); /* the other has given up meanwhile */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, 0, NULL), 0);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[2], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, 0, NULL), 1); /* a rank that has left is not awaited */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_CLOSED, 3, NULL), 1);
}

static void test_who_closes_is_not_named_by_who_closes_later(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_world(4), ms = 1000000;
  open_tensor(job_id, "w", 0);
  assert_int_equal(close_tensor(3, job_id, 0, 0), ZPS_OK);
  assert_int_equal(close_tensor(2, job_id, 0, 700 * ms), ZPS_OK);
  assert_int_equal(close_tensor(5, job_id, 0, 0), ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 1500 * ms), ZPS_NEVER);
  const unsigned waited[] = {2, 3, 5};
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, waited[i], &seen), 1);
    assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
    assert_string_equal(seen->text, "job 'x': after 1.5 s these ranks have not closed tensor 'w': 2");
  }
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FORGET, 0, NULL), 0);
  assert_int_equal(close_tensor(4, job_id, 0, 2000 * ms), ZPS_OK); /* the others may ask again */
  assert_int_equal(members_count(ZPS_ACT_TENSOR_CLOSED, 4, NULL), 0);
}

static void test_who_closes_is_told_of_a_lost_rank(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_job();
  open_tensor(job_id, "w", 0);
  assert_int_equal(close_tensor(2, job_id, 0, 0), ZPS_OK);
  zps_members_client_lost(rig.members, &rig.clients[3], "it is gone");
  assert_int_equal(members_count(ZPS_ACT_TENSOR_FAILED, 2, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_PEER_LOST);
  assert_int_equal(close_tensor(2, job_id, 0, 0), ZPS_ERR_PEER_LOST);
}

/* A report that was under way while a tensor was closed: what it says of others counts. */
static void test_report_of_a_tensor_that_was_closed(void **state) {
  (void)state;
  const struct zps_tally growth = {.rounds = 5};
  const uint64_t job_id = members_running_job();
  for (unsigned t = 0; t < 2; t++) {
    assert_int_equal(members_tensor(2, job_id, t ? "v" : "w", 1000, 0), ZPS_OK);
    for (unsigned s = 0; s < 2; s++) zps_members_tensor_opened(rig.members, &rig.clients[s], job_id, t, ZPS_OK, NULL);
  }
  for (unsigned r = 2; r < 4; r++)
    assert_int_equal(zps_settled(rig.members, zps_members_tensor_close(&rig.clients[r], job_id, 0, 1500,
                                                                       &rig.clients[r], 0, &rig.error)),
                     ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->n_tensors, 1);
  assert_int_equal(zps_members_tally(&rig.clients[2], job_id, 0, 5, &growth, 7, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_tally(&rig.clients[2], job_id, 1, 5, &growth, 7, &rig.error), ZPS_OK);
  assert_int_equal(zps_members_job_first(rig.members)->tensors[0]->tally.rounds, 5);
  assert_int_equal(zps_members_tally(&rig.clients[2], job_id, 2, 5, &growth, 7, &rig.error), ZPS_ERR_UNKNOWN);
}

/* The rounds that zps_member_job_rounds() visits. */
struct visited {
  unsigned n;
  struct zps_member_round rounds[ZPS_MEMBER_ROUNDS_MAX];
};

static void visit(void *ctx, const struct zps_member_job *job, const struct zps_member_round *round) {
  struct visited *const visited = ctx;
  assert_ptr_equal(job, zps_members_job_first(rig.members));
  visited->rounds[visited->n++] = *round;
}

/* At 10 s. A report counts for 3 s. */
static struct visited rounds_now(unsigned n_wanted) {
  struct visited visited = {.n = 0};
  assert_int_equal(
      zps_member_job_rounds(zps_members_job_first(rig.members), 10 * ZPS_NS_PER_S, 3 * ZPS_NS_PER_S, visit, &visited),
      0);
  assert_int_equal(visited.n, n_wanted);
  return visited;
}

/* At this second the rank reports one round of tensor 0, step 7, that waits for this rank; for itself: for none. */
static void report(uint64_t job_id, uint32_t rank, uint32_t awaited, uint64_t at_s) {
  struct zps_rank_report news = {.job_id = job_id, .n_rounds = 1};
  news.rounds[0] = (struct zps_rank_round){
      .step = 7, .age_ms = 1000 + rank, .left_ms = 50000 + rank, .n_ranks = awaited != rank, .ranks = {awaited}};
  assert_int_equal(zps_members_rank_report(&rig.clients[2 + rank], &news, at_s * ZPS_NS_PER_S, &rig.error), ZPS_OK);
}

static void test_rounds_between_ranks(void **state) {
  (void)state;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_tensor(2, job_id, "w", 10, 0), ZPS_OK);
  rounds_now(0);
  report(job_id, 2, 1, 9); /* a ring: 2 waits for 1, 3 for 2, 0 for 3, and 1 does not call */
  report(job_id, 3, 2, 8);
  report(job_id, 0, 3, 9);
  struct visited visited = rounds_now(1);
  assert_int_equal(visited.rounds[0].n_ranks, 1);
  assert_int_equal(visited.rounds[0].ranks[0], 1);
  assert_string_equal(visited.rounds[0].tensor->spec.name, "w");
  assert_true(visited.rounds[0].step == 7 && !visited.rounds[0].computes);
  assert_int_equal(visited.rounds[0].age_ms, 1003 + 2000); /* of rank 3, 2 s after its report */
  assert_int_equal(visited.rounds[0].left_ms, 50003 - 2000);
  report(job_id, 1, 0, 2); /* an old report: the rank is stopped */
  visited = rounds_now(1);
  assert_true(visited.rounds[0].n_ranks == 1 && visited.rounds[0].ranks[0] == 1);
  report(job_id, 1, 1, 9); /* it is in the round, and computes */
  visited = rounds_now(1);
  assert_true(visited.rounds[0].n_ranks == 1 && visited.rounds[0].ranks[0] == 1 && !visited.rounds[0].computes);
  report(job_id, 1, 0, 9); /* each waits for another one */
  visited = rounds_now(1);
  assert_true(visited.rounds[0].n_ranks == 4 && visited.rounds[0].ranks[3] == 3);
  for (uint32_t rank = 0; rank < 4; rank++) report(job_id, rank, rank, 9);
  visited = rounds_now(1);
  assert_true(visited.rounds[0].n_ranks == 4 && visited.rounds[0].computes);
  const struct zps_rank_report none = {.job_id = job_id};
  for (uint32_t rank = 0; rank < 4; rank++) {
    if (rank == 3)
      report(job_id, 3, 2, 2); /* too old */
    else
      assert_int_equal(zps_members_rank_report(&rig.clients[2 + rank], &none, 10, &rig.error), ZPS_OK);
  }
  rounds_now(0);
  struct zps_rank_report wrong = {.job_id = job_id, .n_rounds = 1, .rounds = {{.n_ranks = 2, .ranks = {1, 4}}}};
  assert_int_equal(zps_members_rank_report(&rig.clients[2], &wrong, 10, &rig.error), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "a round waits for rank 4, of 4 ranks");
  wrong.rounds[0] = (struct zps_rank_round){.tensor = 1};
  assert_int_equal(zps_members_rank_report(&rig.clients[2], &wrong, 10, &rig.error), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "job 'x' has no tensor 1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_tensor_is_closed_by_all_ranks),
      MEMBERS_CASE(test_ranks_that_do_not_close_are_named),
      MEMBERS_CASE(test_who_closes_is_not_named_by_who_closes_later),
      MEMBERS_CASE(test_who_closes_is_told_of_a_lost_rank),
      MEMBERS_CASE(test_tensor_is_opened_once_and_answered_to_all),
      MEMBERS_CASE(test_server_lost_while_a_tensor_opens),
      MEMBERS_CASE(test_tensor_that_a_server_refuses_stays_refused),
      MEMBERS_CASE(test_even_schemes_lay_out_their_rows),
      MEMBERS_CASE(test_ranks_that_push_are_the_same_for_all),
      MEMBERS_CASE(test_what_ranks_tell_is_added_up),
      MEMBERS_CASE(test_report_of_a_tensor_that_was_closed),
      MEMBERS_CASE(test_rounds_between_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
