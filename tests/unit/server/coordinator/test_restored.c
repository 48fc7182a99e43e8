/*
 * Membership that is made again from records: those of another form, cluster or sense are refused; what the last turn
 * left half done is brought to its end; and a job that lost a server goes on where all had heard of it, or else from
 * the beginning.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/unit/server/coordinator/restored.h"

static void test_header(void **state) {
  (void)state;
  struct zps_record_header read = {.version = 0};
  struct zps_error error;
  zps_json *header = zps_record_header_write("blue", 7);
  assert_int_equal(zps_record_header_read(header, "blue", &read, &error), ZPS_OK);
  assert_true(read.incarnation == 7 && read.version == 2);
  assert_int_equal(zps_record_header_read(header, "green", &read, &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "of cluster 'blue', and this coordinator of cluster 'green'"));
  header = zps_json_set_u64(header, "version", 1);
  assert_int_equal(zps_record_header_read(header, "blue", &read, &error), ZPS_OK);
  assert_int_equal(read.version, 1);
  header = zps_json_set_u64(header, "version", 3);
  assert_int_equal(zps_record_header_read(header, "blue", &read, &error), ZPS_ERR_VERSION);
  assert_non_null(strstr(
      error.text, "it is of version 3, and this program reads versions 1 to 2: run the release that wrote it, or"));
  zps_json_unref(header);
  header = zps_json_set_str(zps_json_object(), "what", "job");
  assert_int_equal(zps_record_header_read(header, "blue", &read, &error), ZPS_ERR_VERSION);
  zps_json_unref(header);
}

/* ------------------------------------------------------------ a death, and not what follows from it */

static const char tensor_opening[] =
    "{\"what\":\"tensor\",\"job_id\":\"0x1\",\"tensor\":0,\"name\":\"w\",\"rows\":4,\"width\":1,\"dtype\":\"f32\","
    "\"op\":"
    "\"sum\",\"partitions\":2,\"block_bits\":0,\"scheme\":{\"name\":\"balanced\"},\"owners\":[0,1],\"first_rank\":0,"
    "\"state\":"
    "\"opening\"}";

static void test_where_losses_are_to_fail_jobs(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), JOB_OF("0,1"),
                                      "{\"what\":\"server.gone\",\"server\":0}"};
  struct zps_members *const members = restored_make_again(false, lines, 4);
  assert_int_equal(restored_job(members)->state, ZPS_JOB_CLOSING);
  assert_int_equal(restored_job(members)->error.code, ZPS_ERR_SERVER_LOST);
  assert_int_equal(restored.n_notes, 1);
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ a job that goes on without a server */

static void mapped(struct zps_members *members, struct zps_member_client *client, uint64_t step) {
  struct zps_tensor_steps of = {.tensor = 0, .n_steps = 1, .cap_steps = 1, .steps = &step};
  const struct zps_job_steps steps = {
      .job_id = JOB, .epoch = restored_job(members)->view.epoch, .n_tensors = 1, .tensors = &of};
  assert_int_equal(zps_settled(members, zps_members_mapped(client, &steps, NULL)), ZPS_OK);
}

static void test_a_map_under_way_begins_anew(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), SERVER("2", "c"),
                                      JOB_OF("0,1,2"),  tensor_opening,   "{\"what\":\"server.gone\",\"server\":1}"};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, lines, 6);
  const struct zps_member_job *job = restored_job(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->view.epoch > 7);
  assert_true(job->map.n_pending == 2 && job->tensors[0]->n_pending == 2);
  assert_int_equal(restored.n_notes, 1); /* the epoch is durable before anybody hears of it */
  assert_int_equal(restored.acts[ZPS_ACT_MAP_SERVER], 0);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[2], 0);
  assert_true(restored.acts[ZPS_ACT_MAP_SERVER] == 1 && restored.acts[ZPS_ACT_TENSOR_OPEN] == 1);
  zps_members_map_answered(members, &clients[0], JOB, job->view.epoch, ZPS_OK, NULL);
  assert_int_equal(job->map.state, ZPS_MAP_SERVERS);
  restored_server_back(members, &clients[1], "c", 0x102);
  zps_members_map_answered(members, &clients[1], JOB, job->view.epoch, ZPS_OK, NULL);
  assert_true(job->map.state == ZPS_MAP_RANKS && restored.acts[ZPS_ACT_MAP_RANK] == 1);
  restored_rank_back(members, &clients[3], 1);
  assert_int_equal(restored.acts[ZPS_ACT_MAP_RANK], 2);
  mapped(members, &clients[2], 8);
  assert_int_equal(restored.acts[ZPS_ACT_REPLAY_RANK], 0);
  mapped(members, &clients[3], 9);
  assert_true(restored.acts[ZPS_ACT_REPLAY_RANK] == 2 && restored.acts[ZPS_ACT_REPLAY_SERVER] == 2 &&
              restored.steps == 2);
  /* Once more: all have heard, or are told of the same steps in the same epoch. */
  const uint32_t epoch = job->view.epoch;
  members = restored_compact(members, clients, 4);
  memset(clients, 0, sizeof clients);
  job = restored_job(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_NONE && job->view.epoch == epoch);
  assert_int_equal(restored.n_notes, 0);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[1], 1);
  assert_true(restored.acts[ZPS_ACT_MAP_SERVER] == 0 && restored.acts[ZPS_ACT_REPLAY_SERVER] == 1);
  assert_true(restored.acts[ZPS_ACT_MAP_RANK] == 0 && restored.acts[ZPS_ACT_REPLAY_RANK] == 1 && restored.steps == 2);
  restored_leave(members, clients, 2);
}

/* Of the losses, one after another, the state has the first alone with what followed: the second is begun anew. */
static void test_a_second_loss(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), SERVER("2", "c"), JOB_OF("0,1,4294967294"),
                                      "{\"what\":\"server.gone\",\"server\":1}"};
  struct zps_members *members = restored_make_again(true, lines, 4);
  assert_true(restored_job(members)->map.state == ZPS_MAP_NONE && restored_job(members)->view.epoch == 7);
  zps_members_destroy(members);
  members = restored_make_again(true, lines, 5);
  assert_true(restored_job(members)->map.state == ZPS_MAP_SERVERS && restored_job(members)->map.n_pending == 1);
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ servers that drain */

/* One was about to be let go of the job, which ranks may be reading from still: it is there until all have heard; that
 * it drains, and why, is known again. */
static void test_a_server_that_drains(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"), SERVER("1", "b\",\"draining\":true,\"stops\":true,\"x\":\""), SERVER("2", "c"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
      "\"servers\":[0,4294967293,2],\"maps\":true,\"leaving\":[4294967294,1,4294967294],\"ranks\":[" RANK("0") "," RANK(
          "1") "]}"};
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, lines, 4);
  const struct zps_member_job *job = restored_job(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 3);
  assert_int_equal(zps_member_job_servers_lost(job), 0);
  const struct zps_member_server *const b = zps_members_server(members, 1);
  assert_true(b->draining && b->stops && b->n_jobs == 1);
  for (unsigned i = 0; i < 3; i++)
    restored_server_back(members, &clients[i], i == 0 ? "a" : i == 1 ? "b" : "c", 0x100 + i);
  assert_int_equal(restored.acts[ZPS_ACT_MAP_SERVER], 3);
  for (unsigned r = 0; r < 2; r++) restored_rank_back(members, &clients[3 + r], r);
  for (unsigned i = 0; i < 3; i++) zps_members_map_answered(members, &clients[i], JOB, job->view.epoch, ZPS_OK, NULL);
  assert_int_equal(restored.acts[ZPS_ACT_MAP_RANK], 2);
  mapped(members, &clients[3], 8);
  assert_int_equal(restored.acts[ZPS_ACT_JOB_CLOSE], 0);
  mapped(members, &clients[4], 8);
  assert_int_equal(restored.acts[ZPS_ACT_JOB_CLOSE], 1);
  assert_int_equal(b->n_jobs, 0);
  /* Once more: it has left. */
  members = restored_compact(members, clients, 5);
  job = restored_job(members);
  assert_true(job->map.state == ZPS_MAP_NONE && zps_member_job_servers_lost(job) == 0);
  assert_true(zps_members_server(members, 1)->stops && zps_members_server(members, 1)->n_jobs == 0);
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ servers that took free places */

#define JOB_WITH_SUCCESSOR(since, more)                                                                      \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":9,\"next_tensor\":0," more \
  "\"servers\":[0,2],\"since\":[" since "],\"ranks\":[" RANK("0") "," RANK("1") "]}"

/* All have heard, or not: whoever comes back is told of the same steps, or of the place that was taken. */
static void test_a_place_that_was_taken(void **state) {
  (void)state;
  static const char *const over[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_WITH_SUCCESSOR("0,9", "")};
  static const char *const open[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_WITH_SUCCESSOR("0,9", "\"maps\":true,")};
  static const char *const short_of_one[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_WITH_SUCCESSOR("9", "")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, over, 3);
  const struct zps_member_job *job = restored_job(members);
  assert_true(job->map.state == ZPS_MAP_NONE && job->view.epoch == 9 && job->view.places[0].since == 0 &&
              job->view.places[1].since == 9);
  restored_server_back(members, &clients[0], "c", 0x102);
  restored_rank_back(members, &clients[1], 0);
  assert_true(restored.acts[ZPS_ACT_MAP_SERVER] == 0 && restored.acts[ZPS_ACT_REPLAY_SERVER] == 1);
  assert_true(restored.acts[ZPS_ACT_MAP_RANK] == 0 && restored.acts[ZPS_ACT_REPLAY_RANK] == 1);
  restored_leave(members, clients, 2);
  memset(clients, 0, sizeof clients);
  members = restored_make_again(true, open, 3);
  job = restored_job(members);
  assert_true(job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 2 && job->view.epoch > 9 &&
              job->view.places[1].since == 9);
  restored_server_back(members, &clients[0], "c", 0x102);
  assert_int_equal(restored.acts[ZPS_ACT_MAP_SERVER], 1);
  restored_leave(members, clients, 1);
  struct zps_error error = {.text = ""};
  zps_json *record;
  members = restored_make(true);
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(zps_json_parse(short_of_one[i], strlen(short_of_one[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), i < 2 ? ZPS_OK : ZPS_ERR_PROTOCOL);
    zps_json_unref(record);
  }
  zps_members_destroy(members);
}

#define JOB_WITH_ROOM(began)                                                                            \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0," \
  "\"began\":" began ",\"servers\":[0,4294967293,4294967293],\"ranks\":[" RANK("0") "," RANK("1") "]}"

/* A job that has places which no server has taken yet is as it was: nobody is told of a loss, and who comes takes one.
 */
static void test_places_that_are_free(void **state) {
  (void)state;
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  static const char *const lines[] = {SERVER("0", "a"), JOB_WITH_ROOM("1")};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, lines, 2);
  const struct zps_member_job *job = restored_job(members);
  assert_true(job->map.state == ZPS_MAP_NONE && job->view.epoch == 7 && job->view.n_first == 1 &&
              job->view.n_places == 3);
  assert_true(zps_member_job_servers_in(job) == 1 && zps_member_job_servers_lost(job) == 0);
  restored_server_back(members, &clients[0], "a", 0x100);
  for (unsigned r = 0; r < 2; r++) restored_rank_back(members, &clients[1 + r], r);
  assert_true(restored.acts[ZPS_ACT_MAP_SERVER] == 0 && restored.acts[ZPS_ACT_MAP_RANK] == 0);
  assert_true(restored.acts[ZPS_ACT_REPLAY_SERVER] == 0 && restored.acts[ZPS_ACT_REPLAY_RANK] == 0);
  const struct zps_server_spec spec = {.name = "b", .host = "h", .pid = 9, .fabric = &fabric};
  struct zps_error error;
  assert_int_equal(zps_members_server_register(members, &clients[3], &spec, false, &error), ZPS_OK);
  for (unsigned i = 1; i < 3; i++) zps_members_tick(members, i * 60 * ZPS_NS_PER_S);
  assert_true(restored.acts[ZPS_ACT_JOB_OPEN] == 1 && zps_member_job_admits(job, 1));
  /* And what it notes is what it was made from. */
  members = restored_compact(members, clients, 4);
  job = restored_job(members);
  assert_true(job->view.n_first == 1 && job->view.n_places == 3 && zps_member_job_servers_lost(job) == 0);
  zps_members_destroy(members);
  static const char *const wrong[] = {SERVER("0", "a"), JOB_WITH_ROOM("4")};
  zps_json *record;
  members = restored_make(true);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(zps_json_parse(wrong[i], strlen(wrong[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), i < 1 ? ZPS_OK : ZPS_ERR_PROTOCOL);
    zps_json_unref(record);
  }
  assert_string_equal(error.text, "job: member 'began' is 4, want 1 to 3");
  zps_members_destroy(members);
}

/* A journal from before places without a server told losses apart has a number instead: of three, one was lost. */
static void test_an_older_journal(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
      "\"began\":2,\"servers\":[0,4294967294,4294967294,4294967294],\"drained\":2,"
      "\"leaving\":[4294967294,4294967294,4294967294,4294967294],\"ranks\":[" RANK("0") "," RANK("1") "]}"};
  struct zps_members *members = restored_make_again(true, lines, 2);
  const struct zps_member_job *const job = restored_job(members);
  assert_true(zps_member_job_servers_in(job) == 1 && zps_member_job_servers_lost(job) == 1);
  assert_true(job->view.places[1].was_lost);
  zps_members_destroy(members);
}

/* One that ranks could not reach: it counts as lost, and is let go as one that drains. */
static void test_a_server_that_is_cut_off(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"), SERVER("1", "b"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
      "\"servers\":[0,4294967294],\"maps\":true,\"leaving\":[4294967294,1],\"ranks\":[" RANK("0") "," RANK("1") "]}"};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, lines, 3);
  const struct zps_member_job *const job = restored_job(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 2);
  assert_int_equal(zps_member_job_servers_lost(job), 1);
  for (unsigned i = 0; i < 2; i++) restored_server_back(members, &clients[i], i == 0 ? "a" : "b", 0x100 + i);
  for (unsigned r = 0; r < 2; r++) restored_rank_back(members, &clients[2 + r], r);
  for (unsigned i = 0; i < 2; i++) zps_members_map_answered(members, &clients[i], JOB, job->view.epoch, ZPS_OK, NULL);
  mapped(members, &clients[2], 8);
  assert_int_equal(restored.acts[ZPS_ACT_JOB_CLOSE], 0);
  mapped(members, &clients[3], 8);
  assert_int_equal(restored.acts[ZPS_ACT_JOB_CLOSE], 1);
  assert_int_equal(zps_members_server(members, 1)->n_jobs, 0);
  restored_leave(members, clients, 4);
}

/* ------------------------------------------------------------ history */

#define JOB_WITH_START(start)                                                                                 \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0," start \
  "\"servers\":[0],\"ranks\":[" RANK("0") "," RANK("1") "]}"
#define CAUSE \
  "{\"what\":\"job.cause\",\"job_id\":\"0x1\",\"cause\":{\"rank\":1,\"code\":\"ERR_MISSING\",\"text\":\"x\"}}"
#define ENDED(id)                                                                                                      \
  "{\"what\":\"job.ended\",\"job_id\":\"" id                                                                           \
  "\",\"name\":\"j\",\"world\":2,\"left\":2,\"lost\":0,\"servers\":1,"                                                 \
  "\"places\":1,\"servers_lost\":0,\"tensors\":0,\"epoch\":7,\"started_ms\":1,\"ended_ms\":2,\"ran_ms\":1,\"rounds\":" \
  "0,"                                                                                                                 \
  "\"bytes_out\":0,\"bytes_in\":0,\"code\":\"ERR_MISSING\",\"text\":\"x\"}"

/* A job is as old as it is, whichever coordinator it began under. */
static void test_the_age_of_a_job(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), JOB_WITH_START("\"started_ms\":1717210200000,")};
  static const char *const older[] = {SERVER("0", "a"), JOB_WITH_START("")};
  struct zps_members *members = restored_make_again(true, lines, 2);
  assert_int_equal(restored_job(members)->started_ms, 1717210200000);
  assert_int_equal(zps_member_job_age_ns(restored_job(members), 5), 100 * ZPS_NS_PER_S);
  assert_int_equal(zps_member_job_age_ns(restored_job(members), 5 + ZPS_NS_PER_S), 101 * ZPS_NS_PER_S);
  zps_members_destroy(members);
  members = restored_make_again(true, older, 2);
  assert_int_equal(restored_job(members)->started_ms, 0);
  assert_int_equal(zps_member_job_age_ns(restored_job(members), 5 + ZPS_NS_PER_S), ZPS_NS_PER_S);
  zps_members_destroy(members);
}

/* The first error of a rank is known after a new start, and is the cause of the end that comes later. */
static void test_the_cause_of_a_job(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), JOB_WITH_START(""), CAUSE};
  struct zps_member_client clients[3] = {{.server = NULL}};
  struct zps_members *members = restored_make_again(true, lines, 3);
  restored_server_back(members, &clients[0], "a", 0x100);
  for (unsigned r = 0; r < 2; r++) restored_rank_back(members, &clients[1 + r], r);
  for (unsigned r = 0; r < 2; r++) zps_members_client_lost(members, &clients[1 + r], "it was killed");
  zps_members_tick(members, 10);
  assert_null(restored_job(members));
  assert_int_equal(zps_history_len(zps_members_history(members)), 1);
  const struct zps_history_record *const ended = zps_history_at(zps_members_history(members), 0);
  assert_int_equal(ended->cause.code, ZPS_ERR_MISSING);
  assert_int_equal(ended->ended_ms, RESTORED_UTC_MS);
  assert_non_null(strstr(restored.notes[restored.n_notes - 1], "\"what\":\"job.ended\""));
  restored_leave(members, clients, 1);
}

/* A record of its end takes a job away; one of a job that is gone says how it ended. The last ones are kept. */
static void test_the_end_of_a_job(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), ENDED("0x9"), JOB_WITH_START(""), ENDED("0x1")};
  struct zps_members *members = restored_make_again(true, lines, 4);
  assert_null(restored_job(members));
  assert_int_equal(zps_history_len(zps_members_history(members)), 2);
  assert_int_equal(zps_history_at(zps_members_history(members), 0)->job_id, 9);
  assert_string_equal(zps_history_at(zps_members_history(members), 1)->cause.text, "x");
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ bytes */

static unsigned read_lines(const char *name, char lines[RECORDS][2048]) {
  const char *const top = getenv("ZPS_TOP_SRCDIR");
  char path[1024];
  unsigned n = 0;
  snprintf(path, sizeof path, "%s/tests/fuzz/state/%s", top ? top : ".", name);
  FILE *const file = fopen(path, "r");
  assert_non_null(file);
  for (; fgets(lines[n], sizeof lines[n], file); n++) lines[n][strcspn(lines[n], "\n")] = '\0';
  fclose(file);
  return n;
}

/* A journal with every member of every record that stays in a compacted one is written again as it was. The same
 * journal of version 1 becomes this one. */
static void test_bytes_of_a_journal(void **state) {
  static char lines[RECORDS][2048], read[RECORDS][2048];
  static const char *const names[] = {"all.txt", "version_1.txt"};
  const unsigned n = read_lines("all.txt", lines);
  for (unsigned k = 0; k < 2; k++) {
    struct zps_members *const members = restored_make(true);
    assert_int_equal(read_lines(names[k], read), n);
    for (unsigned i = 0; i < n; i++) {
      struct zps_error error;
      zps_json *record;
      assert_int_equal(zps_json_parse(read[i], strlen(read[i]), &record, &error), ZPS_OK);
      if (zps_record_read(members, record, 5, &error)) fail_msg("%s: %s", read[i], error.text);
      zps_json_unref(record);
    }
    zps_members_note_all(members);
    for (unsigned i = 0; i < n && i < restored.n_notes; i++) assert_string_equal(restored.notes[i], lines[i]);
    assert_int_equal(restored.n_notes, n);
    zps_members_destroy(members);
    restored_teardown(state);
  }
}

/* Records of changes, which a compacted journal has not. */
static void test_bytes_of_changes(void **state) {
  (void)state;
  struct zps_member_rank rank = {.state = ZPS_RANK_LEFT}, *ranks[] = {NULL, &rank};
  struct zps_member_job job = {.job_id = 5, .world = 2, .ranks = ranks, .lost_servers = "a, c"};
  struct zps_member_tensor tensor = {.spec = {.tensor = 7}, .state = ZPS_TENSOR_OPEN};
  struct zps_member_tensor failed = {.spec = {.tensor = 8}, .state = ZPS_TENSOR_FAILED};
  const struct zps_member_group group = {.name = "row/0"};
  const struct zps_member_server server = {.index = 3};
  struct zps_member_job hung = {.job_id = 6, .cause = {.rank = 1}};
  zps_fail(&hung.cause.error, ZPS_ERR_MISSING, "where is it");
  zps_fail(&job.error, ZPS_ERR_PEER_LOST, "rank 1 was lost");
  zps_fail(&failed.error, ZPS_ERR_NOMEM, "no \"room\"");
#define CHANGE(id, rest) "{\"job_id\":\"0x000000000000000" id "\"," rest "}"
  const struct {
    struct zps_member_note note;
    const char *text;
  } cases[] = {
      {{.type = ZPS_NOTE_SERVER_GONE, .server = &server}, "{\"server\":3,\"what\":\"server.gone\"}"},
      {{.type = ZPS_NOTE_JOB_FAILED, .job = &job},
       CHANGE("5",
              "\"code\":\"ERR_PEER_LOST\",\"text\":\"rank 1 was lost\",\"lost_servers\":\"a, "
              "c\",\"what\":\"job.failed\"")},
      {{.type = ZPS_NOTE_JOB_GONE, .job = &job}, CHANGE("5", "\"what\":\"job.gone\"")},
      {{.type = ZPS_NOTE_JOB_CAUSE, .job = &job}, CHANGE("5", "\"what\":\"job.cause\"")},
      {{.type = ZPS_NOTE_JOB_CAUSE, .job = &hung},
       CHANGE("6", "\"cause\":{\"rank\":1,\"code\":\"ERR_MISSING\",\"text\":\"where is it\"},\"what\":\"job.cause\"")},
      {{.type = ZPS_NOTE_RANK, .job = &job, .rank = 1}, CHANGE("5", "\"rank\":1,\"state\":\"left\",\"what\":\"rank\"")},
      {{.type = ZPS_NOTE_TENSOR_STATE, .job = &job, .tensor = &tensor},
       CHANGE("5", "\"tensor\":7,\"state\":\"open\",\"what\":\"tensor.state\"")},
      {{.type = ZPS_NOTE_TENSOR_STATE, .job = &job, .tensor = &failed},
       CHANGE("5",
              "\"tensor\":8,\"state\":\"failed\",\"code\":\"ERR_NOMEM\",\"text\":\"no \\\"room\\\"\","
              "\"what\":\"tensor.state\"")},
      {{.type = ZPS_NOTE_TENSOR_GONE, .job = &job, .tensor = &tensor},
       CHANGE("5", "\"tensor\":7,\"what\":\"tensor.gone\"")},
      {{.type = ZPS_NOTE_SEAT, .job = &job, .group = &group, .rank = 1},
       CHANGE("5", "\"group\":\"row/0\",\"rank\":1,\"what\":\"seat\"")},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    zps_json *const record = zps_record_write(&cases[i].note);
    char *const text = zps_json_dump(record);
    assert_string_equal(text, cases[i].text);
    free(text);
    zps_json_unref(record);
  }
}

/* ------------------------------------------------------------ nonsense */

#define SEATS(moving) \
  "{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\",\"world\":2,\"moving\":" moving "}"
#define JOB_WITH(more, ranks)                                                                                       \
  "{\"what\":\"job\",\"job_id\":\"0x2\",\"name\":\"k\",\"seed\":\"0x2\",\"epoch\":9,\"next_tensor\":0,\"servers\":" \
  "[0,1]," more "\"ranks\":[" ranks "]}"
#define TENSOR_WITH(partitions, owners, state)                                                                     \
  "{\"what\":\"tensor\",\"job_id\":\"0x5\",\"tensor\":0,\"name\":\"w\",\"rows\":4,\"width\":1,\"dtype\":"          \
  "\"f32\",\"op\":\"sum\",\"partitions\":" partitions ",\"owners\":" owners ",\"first_rank\":0,\"state\":\"" state \
  "\"}"

/* A record that is refused is named, with the member and the right form. */
static void test_nonsense(void **state) {
  (void)state;
  static const char *const wrong[][2] = {
      {"{\"what\":\"nothing\"}", "there is no record of 'nothing'"},
      {"{\"what\":\"job.gone\",\"job_id\":\"0x5\"}", "job.gone: it does not fit the records before it"},
      {"{\"what\":\"server.gone\",\"server\":5}", "server.gone: it does not fit the records before it"},
      {"{\"what\":\"server\"}", "server: member 'server' is missing, want an integer"},
      {"{\"what\":\"rank\",\"job_id\":\"0x5\",\"rank\":1,\"state\":\"lost\"}",
       "rank: it does not fit the records before it"},
      {"{\"what\":\"rank\",\"job_id\":\"0x5\",\"rank\":1,\"state\":\"away\"}",
       "rank: member 'state' is 'away', want in, left or lost"},
      {SEATS("[2]"), "seats: it does not fit the records before it"},
      {SEATS("[0,4096]"), "seats: member 'moving[1]' is 4096, want 0 to 4095"},
      {JOB_WITH("", ""), "job: member 'ranks' has 0 elements, want 1 to 4096"},
      {JOB_WITH("", RANK("0") ",{\"state\":\"in\"}"), "job: member 'ranks[1].host' is missing, want a string"},
      {JOB_WITH("\"since\":[1],", RANK("0")), "job: member 'since' has 1 elements, want one for each of 2 servers"},
      {JOB_WITH("\"leaving\":[1],", RANK("0")), "job: member 'leaving' has 1 elements, want one for each of 2 servers"},
      {"{\"what\":\"job\",\"job_id\":\"0x2\",\"name\":\"k\",\"seed\":\"0x2\",\"next_tensor\":0,\"ranks\":[" RANK(
           "0") "]}",
       "job: member 'view' is missing, want an object"},
      {JOB_WITH("\"since\":[0,10],", RANK("0")), "job: member 'places[1].since' is 10, want at most 9, the epoch"},
      {JOB_WITH("\"drained\":3,", RANK("0")), "job: member 'drained' is 3, want 0 to 2"},
      {JOB_WITH("\"generation\":1,\"rank\":0,\"world\":2,\"source\":0,\"step\":0,", RANK("0")),
       "job: member 'world' is 2, want 1, as there are ranks"},
      {JOB_WITH("\"replay\":{\"job_id\":\"0x2\",\"epoch\":9,\"tensors\":[{\"tensor\":0,\"steps\":[]}]},", RANK("0")),
       "job: member 'replay.tensors[0].steps' has 0 elements, want 1 to 128"},
      {TENSOR_WITH("2", "[0]", "open"), "tensor: member 'owners' has 1 elements, want one for each of 2 partitions"},
      {TENSOR_WITH("0", "[]", "open"), "tensor: member 'partitions' is 0, want 1 to "},
      {TENSOR_WITH("1", "[0]", "shut"), "tensor: member 'state' is 'shut', want opening, open or failed"},
      {"{\"what\":\"group\",\"job_id\":\"0x5\",\"group\":\"g\",\"first_rank\":0,\"ranks\":[0]}",
       "group: member 'left' is missing, want an array"},
  };
  struct zps_members *const members = restored_make(false);
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct zps_error error = {.text = ""};
    zps_json *record;
    assert_int_equal(zps_json_parse(wrong[i][0], strlen(wrong[i][0]), &record, &error), ZPS_OK);
    assert_int_not_equal(zps_record_read(members, record, 5, &error), ZPS_OK);
    if (strncmp(error.text, wrong[i][1], strlen(wrong[i][1])) != 0) fail_msg("'%s', not '%s'", error.text, wrong[i][1]);
    zps_json_unref(record);
  }
  zps_members_destroy(members);
}

int main(void) {
  restored_log();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_header, restored_teardown),
      cmocka_unit_test_teardown(test_where_losses_are_to_fail_jobs, restored_teardown),
      cmocka_unit_test_teardown(test_a_map_under_way_begins_anew, restored_teardown),
      cmocka_unit_test_teardown(test_a_second_loss, restored_teardown),
      cmocka_unit_test_teardown(test_a_server_that_drains, restored_teardown),
      cmocka_unit_test_teardown(test_a_place_that_was_taken, restored_teardown),
      cmocka_unit_test_teardown(test_places_that_are_free, restored_teardown),
      cmocka_unit_test_teardown(test_a_server_that_is_cut_off, restored_teardown),
      cmocka_unit_test_teardown(test_an_older_journal, restored_teardown),
      cmocka_unit_test_teardown(test_the_age_of_a_job, restored_teardown),
      cmocka_unit_test_teardown(test_the_cause_of_a_job, restored_teardown),
      cmocka_unit_test_teardown(test_the_end_of_a_job, restored_teardown),
      cmocka_unit_test_teardown(test_bytes_of_a_journal, restored_teardown),
      cmocka_unit_test_teardown(test_bytes_of_changes, restored_teardown),
      cmocka_unit_test_teardown(test_nonsense, restored_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
