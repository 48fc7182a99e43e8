/* The membership module, case by case: groups of ranks, and the tensors of groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/membership/members_rig.h"

enum { RANK0 = 2, RANK1, RANK2, RANK3 }; /* the clients that they are */
#define LIST(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

static void answered(unsigned client, unsigned done, unsigned failed) {
  assert_int_equal(members_count(ZPS_ACT_GROUP_DONE, client, NULL), done);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, client, NULL), failed);
}

static zps_err_t close_group(unsigned client, uint64_t job_id, const char *name) {
  return zps_members_group_close(rig.members, &rig.clients[client], job_id, name, &rig.error);
}

/* A grid of 2 x 2: rows and columns, in whatever order. None waits for another one's. */
static void test_groups_wait_for_their_own_ranks_alone(void **state) {
  (void)state;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_group(RANK0, job_id, "row/0", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_group(RANK3, job_id, "column/1", LIST(1, 3), 0), ZPS_OK);
  answered(RANK0, 0, 0);
  assert_int_equal(members_group(RANK1, job_id, "row/0", LIST(0, 1), 0), ZPS_OK);
  answered(RANK0, 1, 0);
  answered(RANK1, 1, 0);
  answered(RANK3, 0, 0);
  assert_int_equal(members_group(RANK1, job_id, "column/1", LIST(1, 3), 0), ZPS_OK);
  answered(RANK3, 1, 0);
  assert_int_equal(members_group(RANK2, job_id, "alone", LIST(2), 0), ZPS_OK);
  answered(RANK2, 1, 0);
}

static void test_who_does_not_come_is_named(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1, 3), 0), ZPS_OK);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1, 3), 0), ZPS_ERR_BUSY);
  assert_int_equal(zps_members_tick(rig.members, 1), 1500 * ZPS_NS_PER_MS);
  assert_int_equal(zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK1, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text, "job 'x', group 'g': after 1.5 s these ranks have not opened it: 0, 3");
  assert_int_equal(members_group(RANK0, job_id, "@links/g", LIST(0, 1), 0), ZPS_OK);
  zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK0, &seen), 1);
  assert_string_equal(seen->text,
                      "job 'x', group 'g': after 1.5 s these ranks have not opened a tensor with a rank-to-rank "
                      "scheme: 1");
  /* Nothing is left of it: another list may come. */
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0), 0), ZPS_OK);
  answered(RANK0, 1, 1);
}

static void test_one_name_is_of_one_list(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1, 2), 0), ZPS_ERR_SHAPE);
#define BOTH "group 'g' is of ranks 0, 1 since rank 0 (host node) opened it, rank 1 (host node) says 0, 1, 2"
  assert_string_equal(rig.error.text, BOTH);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK0, &seen), 1); /* rank 0 waits no longer */
  assert_int_equal(seen->action.code, ZPS_ERR_SHAPE);
  assert_string_equal(seen->text, BOTH);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  answered(RANK1, 1, 0);
  assert_int_equal(members_group(RANK2, job_id, "g", LIST(2, 3), 0), ZPS_ERR_SHAPE);
  answered(RANK0, 1, 1); /* the group stays */
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  answered(RANK0, 2, 1);
}

static void test_lists_that_cannot_be(void **state) {
  (void)state;
  const uint64_t job_id = members_running_world(3);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 3), 0), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "group 'g': its ranks must ascend and be below 3");
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 0), 0), ZPS_ERR_INVALID);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(1, 0), 0), ZPS_ERR_INVALID);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(1, 2), 0), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "group 'g': rank 0 opens it, but is none of its ranks");
  assert_int_equal(members_group(RANK0, job_id, "", LIST(0), 0), ZPS_ERR_INVALID);
  assert_int_equal(members_group(RANK0, job_id, "@links", LIST(0), 0), ZPS_ERR_INVALID);
  assert_int_equal(members_group(RANK0, job_id + 1, "g", LIST(0), 0), ZPS_ERR_UNKNOWN);
  assert_int_equal(members_group(RANK0, job_id, "a", LIST(0), 0), ZPS_OK);
  assert_int_equal(members_group(RANK0, job_id, "b", LIST(0), 0), ZPS_OK);
  assert_int_equal(members_group(RANK0, job_id, "c", LIST(0), 0), ZPS_OK);
  assert_int_equal(members_group(RANK0, job_id, "d", LIST(0), 0), ZPS_ERR_QUOTA); /* max_tensors */
}

static void test_a_name_is_free_when_all_have_closed(void **state) {
  (void)state;
  const uint64_t job_id = members_running_world(3);
  assert_int_equal(close_group(RANK0, job_id, "g"), ZPS_ERR_UNKNOWN);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(close_group(RANK2, job_id, "g"), ZPS_ERR_UNKNOWN);
  assert_int_equal(close_group(RANK0, job_id, "g"), ZPS_OK);
  assert_int_equal(close_group(RANK0, job_id, "g"), ZPS_ERR_UNKNOWN);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 2), 0), ZPS_ERR_SHAPE);
  assert_int_equal(close_group(RANK1, job_id, "g"), ZPS_OK);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 2), 0), ZPS_OK);
  answered(RANK0, 1, 0);
}

static void test_who_came_is_not_named_by_who_came_later(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_group(RANK1, job_id, "g", LIST(0, 1, 3), 0), ZPS_OK);
  assert_int_equal(members_group(RANK3, job_id, "g", LIST(0, 1, 3), 700 * ZPS_NS_PER_MS), ZPS_OK);
  assert_int_equal(zps_members_tick(rig.members, 1500 * ZPS_NS_PER_MS), ZPS_NEVER);
  const unsigned waited[] = {RANK1, RANK3};
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, waited[i], &seen), 1);
    assert_string_equal(seen->text, "job 'x', group 'g': after 1.5 s these ranks have not opened it: 0");
  }
}

static void test_a_rank_that_leaves_is_waited_for_no_longer(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  const uint64_t job_id = members_running_world(4);
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_group(RANK2, job_id, "h", LIST(2, 3), 0), ZPS_OK);
  assert_int_equal(zps_members_leave(rig.members, &rig.clients[RANK1], job_id, &rig.error), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK0, &seen), 1);
  assert_int_equal(seen->action.code, ZPS_ERR_MISSING);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) has left job 'x'");
  answered(RANK2, 0, 0); /* its group has no need of it */
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 1), 0), ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK0, &seen), 2);
  assert_string_equal(seen->text, "rank 1 (host node, pid 103) has left job 'x'");
  zps_members_client_lost(rig.members, &rig.clients[RANK3], "connection reset");
  assert_int_equal(members_count(ZPS_ACT_GROUP_FAILED, RANK2, &seen), 1); /* a death ends the job */
  assert_int_equal(seen->action.code, ZPS_ERR_PEER_LOST);
}

static void test_tensors_of_groups(void **state) {
  (void)state;
  const uint64_t job_id = members_running_world(4);
  rig.tensor.group = "g";
  assert_int_equal(members_tensor(RANK0, job_id, "w", 1000, 0), ZPS_ERR_UNKNOWN);
  assert_string_equal(rig.error.text, "tensor 'w': job 'x' has no group 'g' open");
  assert_int_equal(members_group(RANK0, job_id, "g", LIST(0, 2), 0), ZPS_OK);
  assert_int_equal(members_tensor(RANK0, job_id, "w", 1000, 0), ZPS_ERR_UNKNOWN); /* half of it */
  assert_int_equal(members_group(RANK2, job_id, "g", LIST(0, 2), 0), ZPS_OK);
  assert_int_equal(members_tensor(RANK0, job_id, "w", 1000, 0), ZPS_OK);
  assert_int_equal(members_tensor(RANK1, job_id, "w", 1000, 0), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "tensor 'w': rank 1 is none of group 'g'");
  const struct zps_member_job *const job = zps_members_job_first(rig.members);
  assert_int_equal(job->n_tensors, 1);
  const struct zps_tensor_spec *const spec = &job->tensors[0]->spec;
  assert_int_equal(spec->n_ranks, 2); /* servers wait for these ranks */
  assert_int_equal(spec->ranks[0], 0);
  assert_int_equal(spec->ranks[1], 2);
  assert_int_equal(members_tensor(RANK2, job_id, "w", 999, 0), ZPS_ERR_SHAPE);
  assert_int_equal(members_tensor(RANK2, job_id, "w", 1000, 0), ZPS_OK);
  assert_int_equal(job->n_tensors, 1);
  /* Names are their group's. */
  rig.tensor.group = NULL;
  assert_int_equal(members_tensor(RANK1, job_id, "w", 5, 0), ZPS_OK);
  assert_int_equal(job->n_tensors, 2);
  assert_int_equal(job->tensors[1]->spec.n_ranks, 0);
  rig.tensor.group = "g";
  rig.tensor.ranks = (const uint32_t[]){0, 1};
  rig.tensor.n_ranks = 2;
  assert_int_equal(members_tensor(RANK0, job_id, "v", 5, 0), ZPS_ERR_INVALID);
  assert_string_equal(rig.error.text, "tensor 'v': rank 1 is to push it, and is none of group 'g'");
  rig.tensor.n_ranks = 1;
  assert_int_equal(members_tensor(RANK0, job_id, "v", 5, 0), ZPS_OK);
  /* A tensor outlives its group. */
  assert_int_equal(close_group(RANK0, job_id, "g"), ZPS_OK);
  assert_int_equal(close_group(RANK2, job_id, "g"), ZPS_OK);
  assert_int_equal(spec->ranks[1], 2);
  assert_int_equal(members_tensor(RANK0, job_id, "u", 5, 0), ZPS_ERR_UNKNOWN);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_groups_wait_for_their_own_ranks_alone),
      MEMBERS_CASE(test_who_came_is_not_named_by_who_came_later),
      MEMBERS_CASE(test_who_does_not_come_is_named),
      MEMBERS_CASE(test_one_name_is_of_one_list),
      MEMBERS_CASE(test_lists_that_cannot_be),
      MEMBERS_CASE(test_a_name_is_free_when_all_have_closed),
      MEMBERS_CASE(test_a_rank_that_leaves_is_waited_for_no_longer),
      MEMBERS_CASE(test_tensors_of_groups),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
