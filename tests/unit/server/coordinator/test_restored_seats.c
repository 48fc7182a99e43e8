/* Seats of elastic jobs, made again from records: who has left, who is on the way, and the number of the next
 * generation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/server/coordinator/restored.h"

#define GENERATION "\"generation\":3,\"source\":0,\"step\":4,\"rank\":0,\"world\":2,"
#define JOB_ELASTIC                                                                                                \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0," GENERATION \
  "\"servers\":[0],\"ranks\":[" RANK("0") "," RANK("1") "]}"
enum { LATE = 2000 }; /* later than all have to come back */

struct asked {
  uint32_t pid, generation, last_rank; /* generation 0: it has been in none */
  uint64_t last_job, step;
};

static uint32_t min_world, max_world;

static int setup(void **state) {
  (void)state;
  min_world = max_world = 2;
  return 0;
}

static void asks_as(struct zps_members *members, struct zps_member_client *client, const struct asked *asked) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  const struct zps_next_spec spec = {
      .join = {.job = "j", .host = "h", .world = 2, .pid = asked->pid, .timeout_ms = 20000, .fabric = &fabric},
      .min_world = min_world,
      .max_world = max_world,
      .step = asked->step,
      .generation = asked->generation,
      .last_rank = asked->last_rank,
      .last_job = asked->last_job};
  struct zps_error error;
  if (zps_members_next(members, client, &spec, client, 5, &error)) fail_msg("%s", error.text);
  zps_members_tick(members, 5);
}

/* `last`: of generation 3, its number, or below 0. */
static void asks(struct zps_members *members, struct zps_member_client *client, int last, uint64_t step) {
  struct asked asked = {.pid = 9, .step = step};
  if (last >= 0)
    asked = (struct asked){.pid = 9, .generation = 3, .last_rank = (uint32_t)last, .last_job = JOB, .step = step};
  asks_as(members, client, &asked);
}

static struct zps_members *with_leavers(unsigned n, struct zps_member_client *clients) {
  static const char *const lines[] = {SERVER("0", "a"), JOB_ELASTIC};
  struct zps_members *members = restored_make_again(false, lines, 2);
  restored_server_back(members, &clients[0], "a", 0x100);
  for (unsigned r = 0; r < 2; r++) restored_rank_back(members, &clients[1 + r], r);
  for (unsigned r = 0; r < n; r++) assert_int_equal(zps_members_move_on(members, &clients[1 + r], JOB, NULL), ZPS_OK);
  return members;
}

/* A new start from all that the first one noted, or from what it says of itself. */
static struct zps_members *start_again(struct zps_members *members, struct zps_member_client *clients, bool compact) {
  static const char *const lines[] = {SERVER("0", "a"), JOB_ELASTIC};
  struct restored_journal journal;
  const unsigned first = compact ? restored.n_notes : 0;
  if (compact) zps_members_note_all(members);
  restored_journal_take(&journal, lines, compact ? 0 : 2, first);
  restored_leave(members, clients, 5);
  memset(clients, 0, 5 * sizeof *clients);
  return restored_from(false, &journal);
}

static void expect_number(const struct zps_members *members, const struct zps_member_client *clients, uint32_t number) {
  const struct zps_member_job *job = restored_job(members);
  while (job && job->next) job = job->next;
  assert_true(job && job->generation.number == number && job->world == 2);
  assert_int_equal(job->generation.step, 9);
  assert_true(clients[1].job == job && clients[2].job == job && !clients[3].job && !clients[4].job);
  assert_true(clients[1].rank == 0 && clients[2].rank == 1);
}

static void expect_generation(const struct zps_members *members, const struct zps_member_client *clients) {
  expect_number(members, clients, 4);
}

/* All have left when it is killed, and asked; then others come first, that have no state: they have no place. */
static void test_all_have_left(void **state) {
  (void)state;
  for (int compact = 0; compact < 2; compact++) {
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = with_leavers(2, clients);
    assert_null(restored_job(members));
    asks(members, &clients[1], 0, 9);
    members = start_again(members, clients, compact);
    restored_server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[3], -1, 0);
    asks(members, &clients[4], -1, 0);
    assert_null(restored_job(members));
    asks(members, &clients[2], 1, 8);
    assert_null(restored_job(members));
    asks(members, &clients[1], 0, 9);
    expect_generation(members, clients);
    restored_leave(members, clients, 5);
  }
}

/* One has left, and the other one is in the last generation still; it leaves later. */
static void test_one_has_left(void **state) {
  (void)state;
  for (int compact = 0; compact < 2; compact++) {
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = start_again(with_leavers(1, clients), clients, compact);
    restored_server_back(members, &clients[0], "a", 0x100);
    restored_rank_back(members, &clients[2], 1);
    asks(members, &clients[3], -1, 0);
    asks(members, &clients[1], 0, 9);
    assert_null(restored_job(members)->next);
    assert_int_equal(zps_members_move_on(members, &clients[2], JOB, NULL), ZPS_OK);
    asks(members, &clients[2], 1, 8);
    expect_generation(members, clients);
    restored_leave(members, clients, 5);
  }
}

/* Those that do not come back are waited for as long as all others; then nothing is known of them. */
static void test_none_of_those_that_left_is_back(void **state) {
  (void)state;
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = start_again(with_leavers(2, clients), clients, false);
  restored_server_back(members, &clients[0], "a", 0x100);
  asks(members, &clients[3], -1, 0);
  asks(members, &clients[4], -1, 0);
  assert_null(restored_job(members));
  zps_members_tick(members, LATE);
  assert_true(restored_job(members) && clients[3].job && clients[4].job);
  restored_leave(members, clients, 5);
  memset(clients, 0, sizeof clients);
  members = start_again(with_leavers(2, clients), clients, false);
  zps_members_tick(members, LATE);
  assert_non_null(strstr(restored.notes[restored.n_notes - 1], "\"what\":\"seats\""));
  assert_null(strstr(restored.notes[restored.n_notes - 1], "moving"));
  restored_leave(members, clients, 5);
}

/* The next one was being opened when it is killed, or no server had room for it: no other one has its number. */
static void test_number_of_one_that_never_ran(void **state) {
  (void)state;
  for (int which = 0; which < 4; which++) {
    const bool compact = which & 1, refused = which & 2;
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = with_leavers(2, clients);
    asks(members, &clients[1], 0, 9);
    asks(members, &clients[2], 1, 8);
    expect_generation(members, clients);
    if (refused)
      zps_members_job_opened(members, &clients[0], restored_job(members)->job_id, ZPS_ERR_NOMEM, "it has no room");
    members = start_again(members, clients, compact);
    restored_server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[1], 0, 9);
    asks(members, &clients[2], 1, 8);
    expect_number(members, clients, 5);
    restored_leave(members, clients, 5);
  }
}

/* One says that it was in generation 7, of which nothing is known here, and does not come again. It does not count. */
static void test_number_that_a_stranger_said(void **state) {
  (void)state;
  for (int compact = 0; compact < 2; compact++) {
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = with_leavers(2, clients);
    asks_as(members, &clients[3], &(struct asked){.pid = 9, .generation = 7, .last_job = 99, .step = 20});
    members = start_again(members, clients, compact);
    restored_server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[1], 0, 9);
    asks(members, &clients[2], 1, 8);
    expect_generation(members, clients);
    restored_leave(members, clients, 5);
  }
}

/* A rank whose leaving was not heard asks: it is on the way like one that was heard. */
static void test_one_that_asks_from_its_seat(void **state) {
  (void)state;
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = with_leavers(0, clients);
  asks_as(members, &clients[3], &(struct asked){.pid = 1, .generation = 3, .last_rank = 1, .last_job = JOB, .step = 9});
  assert_int_equal(restored.n_notes, 1);
  assert_non_null(strstr(restored.notes[0], "\"what\":\"seats\""));
  assert_non_null(strstr(restored.notes[0], "\"moving\":[1]"));
  restored_leave(members, clients, 5);
}

/* What was noted of a generation is over with the next one that runs, and with a note of none. */
static void test_seats_that_are_over(void **state) {
  (void)state;
  static const char seats[] =
      "{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\",\"world\":2,"
      "\"moving\":[0,1]}",
                    none[] = "{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\",\"world\":2}";
  static const char *const next[] = {SERVER("0", "a"), seats, JOB_ELASTIC}, *const over[] = {seats, none};
  struct zps_members *members = restored_make_again(false, next, 3);
  zps_members_note_all(members);
  for (unsigned i = 0; i < restored.n_notes; i++) assert_null(strstr(restored.notes[i], "\"what\":\"seats\""));
  zps_members_destroy(members);
  members = restored_make_again(false, over, 2);
  zps_members_note_all(members);
  assert_int_equal(restored.n_notes, 1);
  zps_members_destroy(members);
}

#define JOB_OF_GENERATION(job, number, more, ranks)                                                                    \
  "{\"what\":\"job\",\"job_id\":\"" job                                                                                \
  "\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"                                                  \
  "\"generation\":" number ",\"source\":0,\"step\":4,\"rank\":0,\"world\":2," more "\"servers\":[0],\"ranks\":[" ranks \
  "]}"

/* One was left behind in generation 3, which failed, while generation 4 runs. It does not begin another generation 4.
 */
static void test_one_that_was_left_behind(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"),
      JOB_OF_GENERATION("0x1", "3", "\"code\":\"ERR_PEER_LOST\",\"text\":\"x\",", RANK_GONE("0") "," RANK("1")),
      JOB_OF_GENERATION("0x2", "4", "", RANK("4") "," RANK("5"))};
  struct zps_member_client clients[5] = {{.server = NULL}};
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  uint64_t jobs[] = {1, 2};
  const struct zps_server_spec server = {
      .name = "a", .host = "h", .pid = 1, .fabric = &fabric, .secret = 0x100, .jobs = jobs, .n_jobs = 2};
  min_world = 1, max_world = 3;
  struct zps_members *const members = restored_make_again(false, lines, 3);
  assert_int_equal(zps_members_server_register(members, &clients[0], &server, true, NULL), ZPS_OK);
  restored_rank_back(members, &clients[1], 1);
  for (uint32_t r = 0; r < 2; r++) {
    const struct zps_resume_spec spec = {.job_id = 2, .rank = r, .secret = 0x204 + r};
    assert_int_equal(zps_members_resume(members, &clients[2 + r], &spec, NULL), ZPS_OK);
  }
  assert_int_equal(zps_members_move_on(members, &clients[1], JOB, NULL), ZPS_OK);
  asks(members, &clients[1], 1, 4);
  const struct zps_member_job *const job = restored_job(members);
  assert_true(job && job->job_id == 2 && !job->next);
  assert_non_null(clients[1].asker);
  assert_int_equal(restored.acts[ZPS_ACT_JOB_CHANGED], 2);
  restored_leave(members, clients, 5);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, restored_teardown)

int main(void) {
  restored_log();
  const struct CMUnitTest tests[] = {
      CASE(test_all_have_left),
      CASE(test_one_has_left),
      CASE(test_none_of_those_that_left_is_back),
      CASE(test_number_of_one_that_never_ran),
      CASE(test_number_that_a_stranger_said),
      CASE(test_one_that_asks_from_its_seat),
      CASE(test_seats_that_are_over),
      CASE(test_one_that_was_left_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
