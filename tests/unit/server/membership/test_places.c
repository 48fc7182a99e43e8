/* Jobs with room for more servers than they begin with: the number of places, the meaning of free places, and the
 * servers that take them. test_placement.c has the placement of a single server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/codec/owners.h"
#include "server/membership/notes.h"
#include "tests/unit/server/membership/members_rig.h"

enum { A = 0, B = 1, R0 = 2, R1 = 3, D = 6, C = 7 }; /* clients: servers, ranks, and two more servers */

static uint64_t now_ns;

static const struct zps_member_job *the_job(void) {
  return zps_members_job_first(rig.members);
}

static zps_err_t join(unsigned client, uint32_t rank, uint32_t places) {
  const struct zps_join_spec spec = {.job = "x",
                                     .host = "node",
                                     .world = 2,
                                     .rank = rank,
                                     .pid = client,
                                     .places = places,
                                     .timeout_ms = 1500,
                                     .fabric = &members_tcp};
  return zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], 0, &rig.error);
}

static void server(unsigned client, const char *name) {
  assert_int_equal(members_server(client, name, 1 + client, &members_tcp), ZPS_OK);
}

/* Servers a and b, and two ranks that ask for so many places. */
static uint64_t begun(uint32_t places) {
  now_ns = ZPS_NS_PER_S;
  zps_members_set_replays(rig.members, true);
  server(A, "a");
  server(B, "b");
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(join(R0 + r, r, places), ZPS_OK);
  members_opened(A, the_job()->job_id, ZPS_OK);
  members_opened(B, the_job()->job_id, ZPS_OK);
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  return the_job()->job_id;
}

static void check(uint32_t places, uint32_t in, uint32_t lost) {
  const struct zps_member_job *const job = the_job();
  assert_int_equal(job->view.n_places, places);
  assert_int_equal(zps_member_job_servers_in(job), in);
  assert_int_equal(zps_member_job_servers_lost(job), lost);
}

static void opened(unsigned client, uint32_t tensor) {
  zps_members_tensor_opened(rig.members, &rig.clients[client], the_job()->job_id, tensor, ZPS_OK, NULL);
}

static uint64_t pass(unsigned s) {
  now_ns += s * ZPS_NS_PER_S;
  return zps_members_tick(rig.members, now_ns);
}

static unsigned told(enum zps_action_type type, unsigned client) {
  return members_count(type, client, NULL);
}

/* All servers of the job and all ranks answer the map. */
static void goes_on(void) {
  static const unsigned servers[] = {A, B, C, D};
  const struct zps_job_steps none = {.job_id = the_job()->job_id, .epoch = the_job()->view.epoch};
  for (unsigned i = 0; i < 4; i++)
    zps_members_map_answered(rig.members, &rig.clients[servers[i]], the_job()->job_id, the_job()->view.epoch, ZPS_OK,
                             NULL);
  for (unsigned client = R0; client <= R1; client++)
    assert_int_equal(zps_settled(rig.members, zps_members_mapped(&rig.clients[client], &none, &rig.error)), ZPS_OK);
  pass(0);
  assert_int_equal(the_job()->map.state, ZPS_MAP_NONE);
}

static void test_without_any(void **state) {
  (void)state;
  begun(0);
  check(2, 2, 0);
  server(C, "c");
  assert_int_equal(pass(6), ZPS_NEVER);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 0);
}

static void test_fewer_than_servers(void **state) {
  (void)state;
  begun(1);
  check(2, 2, 0);
  assert_int_equal(the_job()->view.n_first, 2);
}

static void test_as_the_coordinator_says(void **state) {
  (void)state;
  zps_members_set_places(rig.members, 3);
  begun(0);
  check(3, 2, 0);
  zps_members_set_places(rig.members, 9); /* for jobs to come */
  check(3, 2, 0);
}

static void test_as_ranks_say(void **state) {
  (void)state;
  zps_members_set_places(rig.members, 3);
  begun(5);
  check(5, 2, 0);
}

static void test_what_is_refused(void **state) {
  (void)state;
  server(A, "a");
  assert_int_equal(join(R0, 0, ZPS_SERVERS_MAX + 1), ZPS_ERR_INVALID);
  assert_non_null(strstr(rig.error.text, "room for 1025 servers is asked for; a job has up to 1024"));
  assert_null(the_job());
  assert_int_equal(join(R0, 0, 4), ZPS_OK);
  assert_int_equal(join(R1, 1, 6), ZPS_ERR_SHAPE);
  assert_non_null(strstr(rig.error.text, "is to have room for 4 servers, says rank 0"));
  assert_non_null(strstr(rig.error.text, "rank 1 (host node, pid 3) says 6"));
  assert_int_equal(join(R1, 1, 4), ZPS_OK);
}

/* Its partitions go to those that are there, evenly, and all servers open it. */
static void test_a_tensor(void **state) {
  (void)state;
  uint32_t owners[16], n_of[4] = {0};
  const struct members_seen *seen = NULL;
  const uint64_t job_id = begun(4);
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 0), ZPS_OK);
  const struct zps_tensor_spec *const spec = &the_job()->tensors[0]->spec;
  assert_true(spec->n_parts >= 16 && spec->n_parts % 4 == 0);
  for (uint32_t p = 0; p < spec->n_parts; p++) n_of[spec->owners[p]]++;
  for (unsigned s = 0; s < 4; s++) assert_int_equal(n_of[s], spec->n_parts / 4);
  memset(n_of, 0, sizeof n_of);
  zps_owners_reassign(spec->owners, 16, false, the_job()->view.n_first, 4, (bool[]){false, false, true, true}, owners);
  for (uint32_t p = 0; p < 16; p++) n_of[owners[p]]++;
  assert_true(n_of[0] == 8 && n_of[1] == 8);
  assert_int_equal(members_count(ZPS_ACT_TENSOR_OPEN, A, &seen), 1);
  assert_int_equal(told(ZPS_ACT_TENSOR_OPEN, B), 1);
  opened(A, 0);
  assert_int_equal(told(ZPS_ACT_TENSOR_DONE, R0), 0);
  opened(B, 0);
  assert_int_equal(told(ZPS_ACT_TENSOR_DONE, R0), 1);
}

/* Each reader gets the whole view of a, b, c and d, with the names that it does not know yet. */
static void check_images(void) {
  static const struct {
    enum zps_view_reader reader;
    const char *names[4];
  } cases[] = {{ZPS_VIEW_FOR_NEW_RANK, {"a", "b", "c", "d"}},
               {ZPS_VIEW_FOR_RANK, {"", "", "c", "d"}},
               {ZPS_VIEW_FOR_SERVER, {"", "", "", ""}},
               {ZPS_VIEW_FOR_STATE, {"", "", "", ""}}};
  const struct zps_view *const view = &the_job()->view;
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_view_image image;
    assert_int_equal(zps_view_describe(view, cases[i].reader, &image), ZPS_OK);
    assert_true(image.epoch == view->epoch && image.n_first == 2 && image.n_places == 4);
    for (uint32_t p = 0; p < 4; p++) {
      const struct zps_place_image *const place = &image.places[p];
      const struct zps_member_server *const server = view->places[p].server;
      assert_true(place->state == ZPS_PLACE_IN && !place->was_lost && place->since == view->places[p].since);
      assert_true((place->since > 0) == (p > 1));
      assert_string_equal(place->server.name, cases[i].names[p]);
      assert_int_equal(place->server.addr_len, place->server.name[0] ? server->fabric.addr_len : 0);
      assert_int_equal(place->number, cases[i].reader == ZPS_VIEW_FOR_STATE ? server->index : ZPS_NO_SERVER);
    }
    zps_view_image_fini(&image);
  }
}

static void test_servers_come(void **state) {
  (void)state;
  const struct members_seen *seen = NULL;
  uint32_t *lost, n_lost;
  const uint64_t job_id = begun(4);
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 0), ZPS_OK);
  opened(A, 0);
  opened(B, 0);
  assert_int_equal(pass(60), ZPS_NEVER); /* nobody is there to take one */
  server(C, "c");
  pass(1);
  server(D, "d");
  pass(3);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 0); /* Others may come with it. */
  pass(1);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(members_count(ZPS_ACT_JOB_OPEN, i ? D : C, &seen), 1);
    assert_int_equal(seen->action.position, 2 + i);
    members_opened(i ? D : C, job_id, ZPS_OK);
    opened(i ? D : C, 0);
  }
  pass(0);
  assert_int_equal(told(ZPS_ACT_MAP_SERVER, D), 1);
  goes_on();
  check(4, 4, 0);
  lost = members_positions(&the_job()->view, ~(1u << ZPS_PLACE_IN), &n_lost);
  free(lost);
  assert_int_equal(n_lost, 0);
  check_images();
  zps_members_client_lost(rig.members, &rig.clients[A], "gone");
  goes_on();
  check(4, 3, 1);
}

/* Calls that wait for room are dropped with the job's close, and nobody answers those. */
static void test_one_was_not_asked_all(void **state) {
  (void)state;
  const uint64_t job_id = begun(3);
  assert_int_equal(members_tensor(R0, job_id, "w", 100000, 12), ZPS_OK);
  opened(A, 0);
  opened(B, 0);
  server(C, "c");
  pass(6);
  const struct zps_view_place *const place = &the_job()->view.places[2];
  zps_members_call_dropped(rig.members, &rig.clients[C], job_id); /* It is to take the place, so it is asked. */
  assert_true(place->state == ZPS_PLACE_JOINING && place->n_pending == 2);
  assert_int_equal(members_tensor(R0, job_id, "u", 1000, 0), ZPS_OK);
  opened(A, 1);
  opened(B, 1);
  members_opened(C, job_id, ZPS_OK);
  pass(6);
  assert_true(place->state == ZPS_PLACE_DISMISSED && told(ZPS_ACT_JOB_OPEN, C) == 1);
  zps_members_call_dropped(rig.members, &rig.clients[C], job_id); /* tensor.open */
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 2);
  zps_members_call_dropped(rig.members, &rig.clients[C], job_id);
  assert_int_equal(place->n_pending, 3);
}

/* Of the places without a server those that were free are not lost, whichever is taken first. */
static void test_one_is_lost_before(void **state) {
  (void)state;
  const uint64_t job_id = begun(3);
  zps_members_client_lost(rig.members, &rig.clients[B], "gone");
  goes_on();
  check(3, 1, 1);
  server(C, "c");
  pass(6);
  members_opened(C, job_id, ZPS_OK);
  pass(0);
  goes_on();
  check(3, 2, 0);
  assert_ptr_equal(zps_view_server(&the_job()->view, 1), rig.clients[C].server);
}

/* Whatever a placement was that came to nothing. */
static void test_placed_anew(void **state) {
  (void)state;
  server(A, "a");
  server(B, "b");
  for (uint32_t r = 0; r < 2; r++) assert_int_equal(join(R0 + r, r, 3), ZPS_OK);
  assert_int_equal(the_job()->state, ZPS_JOB_OPENING);
  zps_members_client_lost(rig.members, &rig.clients[B], "gone");
  members_opened(A, the_job()->job_id, ZPS_OK);
  assert_int_equal(the_job()->state, ZPS_JOB_RUNNING);
  check(3, 1, 0);
  assert_int_equal(the_job()->view.n_first, 1);
}

static void on_rebalanced(void *ctx, const struct zps_member_job *job, const struct zps_member_rebalanced *told_p) {
  (void)job;
  *(struct zps_member_rebalanced *)ctx = *told_p;
}

static void test_rebalance(void **state) {
  (void)state;
  struct zps_member_rebalanced said;
  const uint64_t job_id = begun(3);
  server(C, "c");
  pass(0);
  assert_int_equal(zps_members_rebalance(rig.members, "x", on_rebalanced, &said, &rig.error), ZPS_OK);
  assert_true(said.outcome == ZPS_REBALANCE_MOVES && said.n_servers == 3);
  assert_int_equal(told(ZPS_ACT_JOB_OPEN, C), 1); /* at once */
  members_opened(C, job_id, ZPS_OK);
  pass(0);
  goes_on();
  server(D, "d");
  assert_int_equal(zps_members_rebalance(rig.members, "x", on_rebalanced, &said, &rig.error), ZPS_OK);
  assert_string_equal(said.why,
                      "it began with 2 servers, and all of its 3 places have one; 1 more have new jobs alone: its "
                      "number of places stays as it is (job.server_places)");
}

/* A generation begins on all servers, and so does the next one. */
static void test_an_elastic_job(void **state) {
  (void)state;
  struct zps_next_spec spec = {
      .join =
          {.job = "x", .host = "node", .world = 1, .pid = 5, .places = 4, .timeout_ms = 9000, .fabric = &members_tcp},
      .min_world = 1,
      .max_world = 1};
  server(A, "a");
  assert_int_equal(zps_members_next(rig.members, &rig.clients[R0], &spec, &rig.clients[R0], ZPS_NS_PER_S, &rig.error),
                   ZPS_OK);
  zps_members_tick(rig.members, ZPS_NS_PER_S);
  check(1, 1, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      MEMBERS_CASE(test_without_any),
      MEMBERS_CASE(test_fewer_than_servers),
      MEMBERS_CASE(test_as_the_coordinator_says),
      MEMBERS_CASE(test_as_ranks_say),
      MEMBERS_CASE(test_what_is_refused),
      MEMBERS_CASE(test_a_tensor),
      MEMBERS_CASE(test_servers_come),
      MEMBERS_CASE(test_one_was_not_asked_all),
      MEMBERS_CASE(test_one_is_lost_before),
      MEMBERS_CASE(test_placed_anew),
      MEMBERS_CASE(test_rebalance),
      MEMBERS_CASE(test_an_elastic_job),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
