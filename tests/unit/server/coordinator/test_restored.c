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
#include "common/base/log.h"
#include "server/coordinator/records.h"

enum { RECORDS = 64, JOB = 1 };

static struct {
  char *notes[RECORDS];
  unsigned n_notes;
  unsigned acts[ZPS_ACT_JOB_ENDED + 1];
  uint32_t steps; /* that the last rank was told to play again */
} seen;

static void on_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx;
  zps_json *record = zps_record_write(note);
  assert_true(record && seen.n_notes < RECORDS);
  seen.notes[seen.n_notes++] = zps_json_dump(record);
  zps_json_unref(record);
}

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  seen.acts[action->type]++;
  if (action->type != ZPS_ACT_REPLAY_RANK) return;
  const struct zps_job_steps *const steps = &action->job->map.steps;
  seen.steps = steps->n_tensors ? steps->tensors[0].n_steps : 0;
}

static uint64_t on_random(void *ctx) {
  static uint64_t last = 77;
  (void)ctx;
  return ++last;
}

static void forget(void) {
  while (seen.n_notes) free(seen.notes[--seen.n_notes]);
  memset(&seen, 0, sizeof seen);
}

static struct zps_members *make(bool replays) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 8,
                                            .max_tensors = 64,
                                            .replays = replays,
                                            .act = on_act,
                                            .random = on_random,
                                            .note = on_note};
  struct zps_members *members;
  forget();
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  return members;
}

static struct zps_members *make_again(bool replays, const char *const *lines, unsigned n) {
  struct zps_members *const members = make(replays);
  for (unsigned i = 0; i < n; i++) {
    struct zps_error error;
    zps_json *record;
    assert_int_equal(zps_json_parse(lines[i], strlen(lines[i]), &record, &error), ZPS_OK);
    if (zps_record_read(members, record, 5, &error)) fail_msg("%s: %s", lines[i], error.text);
    zps_json_unref(record);
  }
  zps_members_restored(members, 1000);
  return members;
}

static void test_header(void **state) {
  (void)state;
  uint64_t incarnation = 0;
  struct zps_error error;
  zps_json *header = zps_record_header_write("blue", 7);
  assert_int_equal(zps_record_header_read(header, "blue", &incarnation, &error), ZPS_OK);
  assert_int_equal(incarnation, 7);
  assert_int_equal(zps_record_header_read(header, "green", &incarnation, &error), ZPS_ERR_REFUSED);
  assert_non_null(strstr(error.text, "of cluster 'blue', and this coordinator of cluster 'green'"));
  header = zps_json_set_u64(header, "version", 2);
  assert_int_equal(zps_record_header_read(header, "blue", &incarnation, &error), ZPS_ERR_VERSION);
  assert_non_null(strstr(error.text, "it is of version 2, and this program's of version 1"));
  zps_json_unref(header);
  header = zps_json_set_str(zps_json_object(), "what", "job");
  assert_int_equal(zps_record_header_read(header, "blue", &incarnation, &error), ZPS_ERR_VERSION);
  zps_json_unref(header);
}

/* ------------------------------------------------------------ a death, and not what follows from it */

#define FABRIC                                                                                                   \
  "\"fabric\":{\"provider\":\"tcp\",\"protocol\":\"\",\"addr_format\":\"f\",\"domain\":\"\",\"address\":\"01\"," \
  "\"printable\":\"\"}"
#define SERVER(number, name)                                                                                           \
  "{\"what\":\"server\",\"server\":" number ",\"name\":\"" name "\",\"host\":\"h\",\"pid\":1,\"secret\":\"0x10" number \
  "\"," FABRIC "}"
#define RANK(number) \
  "{\"state\":\"in\",\"host\":\"h\",\"rack\":\"\",\"pid\":1,\"secret\":\"0x20" number "\"," FABRIC "}"
#define JOB_OF(servers)                                                                                             \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,\"servers\":" \
  "[" servers "],\"ranks\":[" RANK("0") "," RANK("1") "]}"
static const char tensor_opening[] =
    "{\"what\":\"tensor\",\"job_id\":\"0x1\",\"tensor\":0,\"name\":\"w\",\"rows\":4,\"width\":1,\"dtype\":\"f32\","
    "\"op\":"
    "\"sum\",\"partitions\":2,\"block_bits\":0,\"scheme\":{\"name\":\"balanced\"},\"owners\":[0,1],\"first_rank\":0,"
    "\"state\":"
    "\"opening\"}";

static const struct zps_member_job *job_of(const struct zps_members *members) {
  return zps_members_job_first(members);
}

static void test_where_losses_are_to_fail_jobs(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), JOB_OF("0,1"),
                                      "{\"what\":\"server.gone\",\"server\":0}"};
  struct zps_members *const members = make_again(false, lines, 4);
  assert_int_equal(job_of(members)->state, ZPS_JOB_CLOSING);
  assert_int_equal(job_of(members)->error.code, ZPS_ERR_SERVER_LOST);
  assert_int_equal(seen.n_notes, 1);
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ a job that goes on without a server */

static void server_back(struct zps_members *members, struct zps_member_client *client, const char *name,
                        uint64_t secret) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  uint64_t jobs[] = {JOB};
  const struct zps_server_spec spec = {
      .name = name, .host = "h", .pid = 1, .fabric = &fabric, .secret = secret, .jobs = jobs, .n_jobs = 1};
  struct zps_error error;
  if (zps_members_server_register(members, client, &spec, true, &error)) fail_msg("%s", error.text);
}

static void rank_back(struct zps_members *members, struct zps_member_client *client, uint32_t rank) {
  const struct zps_resume_spec spec = {.job_id = JOB, .rank = rank, .secret = 0x200 + rank};
  struct zps_error error;
  if (zps_members_resume(members, client, &spec, &error)) fail_msg("%s", error.text);
}

static void mapped(struct zps_members *members, struct zps_member_client *client, uint64_t step) {
  struct zps_tensor_steps of = {.tensor = 0, .n_steps = 1, .cap_steps = 1, .steps = &step};
  const struct zps_job_steps steps = {.job_id = JOB, .epoch = job_of(members)->epoch, .n_tensors = 1, .tensors = &of};
  assert_int_equal(zps_members_mapped(members, client, &steps, NULL), ZPS_OK);
}

static void leave(struct zps_members *members, struct zps_member_client *clients, unsigned n) {
  for (unsigned i = 0; i < n; i++) zps_members_client_lost(members, &clients[i], "end");
  zps_members_destroy(members);
}

static void test_a_map_under_way_begins_anew(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), SERVER("2", "c"),
                                      JOB_OF("0,1,2"),  tensor_opening,   "{\"what\":\"server.gone\",\"server\":1}"};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = make_again(true, lines, 6);
  const struct zps_member_job *job = job_of(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->epoch > 7);
  assert_true(job->map.n_pending == 2 && job->tensors[0]->n_pending == 2);
  assert_int_equal(seen.n_notes, 1); /* the epoch is durable before anybody hears of it */
  assert_int_equal(seen.acts[ZPS_ACT_MAP_SERVER], 0);
  server_back(members, &clients[0], "a", 0x100);
  rank_back(members, &clients[2], 0);
  assert_true(seen.acts[ZPS_ACT_MAP_SERVER] == 1 && seen.acts[ZPS_ACT_TENSOR_OPEN] == 1);
  zps_members_map_answered(members, &clients[0], JOB, job->epoch, ZPS_OK, NULL);
  assert_int_equal(job->map.state, ZPS_MAP_SERVERS);
  server_back(members, &clients[1], "c", 0x102);
  zps_members_map_answered(members, &clients[1], JOB, job->epoch, ZPS_OK, NULL);
  assert_true(job->map.state == ZPS_MAP_RANKS && seen.acts[ZPS_ACT_MAP_RANK] == 1);
  rank_back(members, &clients[3], 1);
  assert_int_equal(seen.acts[ZPS_ACT_MAP_RANK], 2);
  mapped(members, &clients[2], 8);
  assert_int_equal(seen.acts[ZPS_ACT_REPLAY_RANK], 0);
  mapped(members, &clients[3], 9);
  assert_true(seen.acts[ZPS_ACT_REPLAY_RANK] == 2 && seen.acts[ZPS_ACT_REPLAY_SERVER] == 2 && seen.steps == 2);
  /* Once more: all have heard, or are told of the same steps in the same epoch. */
  const uint32_t epoch = job->epoch;
  char *all[RECORDS];
  const unsigned n = seen.n_notes;
  zps_members_note_all(members);
  const unsigned n_all = seen.n_notes - n;
  memcpy(all, seen.notes + n, n_all * sizeof *all);
  seen.n_notes = n;
  leave(members, clients, 4);
  memset(clients, 0, sizeof clients);
  members = make_again(true, (const char *const *)all, n_all);
  job = job_of(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_NONE && job->epoch == epoch);
  assert_int_equal(seen.n_notes, 0);
  server_back(members, &clients[0], "a", 0x100);
  rank_back(members, &clients[1], 1);
  assert_true(seen.acts[ZPS_ACT_MAP_SERVER] == 0 && seen.acts[ZPS_ACT_REPLAY_SERVER] == 1);
  assert_true(seen.acts[ZPS_ACT_MAP_RANK] == 0 && seen.acts[ZPS_ACT_REPLAY_RANK] == 1 && seen.steps == 2);
  leave(members, clients, 2);
  for (unsigned i = 0; i < n_all; i++) free(all[i]);
}

/* Of the losses, one after another, the state has the first alone with what followed: the second is begun anew. */
static void test_a_second_loss(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), SERVER("2", "c"), JOB_OF("0,1,4294967294"),
                                      "{\"what\":\"server.gone\",\"server\":1}"};
  struct zps_members *members = make_again(true, lines, 4);
  assert_true(job_of(members)->map.state == ZPS_MAP_NONE && job_of(members)->epoch == 7);
  zps_members_destroy(members);
  members = make_again(true, lines, 5);
  assert_true(job_of(members)->map.state == ZPS_MAP_SERVERS && job_of(members)->map.n_pending == 1);
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
      "\"servers\":[0,4294967294,2],\"maps\":true,\"drained\":1,\"leaving\":[4294967294,1,4294967294],\"ranks\":[" RANK(
          "0") "," RANK("1") "]}"};
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = make_again(true, lines, 4);
  const struct zps_member_job *job = job_of(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 3);
  assert_int_equal(zps_member_job_servers_lost(job), 0);
  const struct zps_member_server *const b = zps_members_server(members, 1);
  assert_true(b->draining && b->stops && b->n_jobs == 1);
  for (unsigned i = 0; i < 3; i++) server_back(members, &clients[i], i == 0 ? "a" : i == 1 ? "b" : "c", 0x100 + i);
  assert_int_equal(seen.acts[ZPS_ACT_MAP_SERVER], 3);
  for (unsigned r = 0; r < 2; r++) rank_back(members, &clients[3 + r], r);
  for (unsigned i = 0; i < 3; i++) zps_members_map_answered(members, &clients[i], JOB, job->epoch, ZPS_OK, NULL);
  assert_int_equal(seen.acts[ZPS_ACT_MAP_RANK], 2);
  mapped(members, &clients[3], 8);
  assert_int_equal(seen.acts[ZPS_ACT_JOB_CLOSE], 0);
  mapped(members, &clients[4], 8);
  assert_int_equal(seen.acts[ZPS_ACT_JOB_CLOSE], 1);
  assert_int_equal(b->n_jobs, 0);
  /* Once more: it has left. */
  char *all[RECORDS];
  const unsigned n = seen.n_notes;
  zps_members_note_all(members);
  const unsigned n_all = seen.n_notes - n;
  memcpy(all, seen.notes + n, n_all * sizeof *all);
  seen.n_notes = n;
  leave(members, clients, 5);
  members = make_again(true, (const char *const *)all, n_all);
  job = job_of(members);
  assert_true(job->map.state == ZPS_MAP_NONE && job->n_drained == 1 && zps_member_job_servers_lost(job) == 0);
  assert_true(zps_members_server(members, 1)->stops && zps_members_server(members, 1)->n_jobs == 0);
  zps_members_destroy(members);
  for (unsigned i = 0; i < n_all; i++) free(all[i]);
}

/* ------------------------------------------------------------ servers that took free places */

#define JOB_REFILLED(since, more)                                                                            \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":9,\"next_tensor\":0," more \
  "\"servers\":[0,2],\"since\":[" since "],\"ranks\":[" RANK("0") "," RANK("1") "]}"

/* All have heard, or not: whoever comes back is told of the same steps, or of the place that was taken. */
static void test_a_place_that_was_taken(void **state) {
  (void)state;
  static const char *const over[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_REFILLED("0,9", "")};
  static const char *const open[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_REFILLED("0,9", "\"maps\":true,")};
  static const char *const short_of_one[] = {SERVER("0", "a"), SERVER("2", "c"), JOB_REFILLED("9", "")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  struct zps_members *members = make_again(true, over, 3);
  const struct zps_member_job *job = job_of(members);
  assert_true(job->map.state == ZPS_MAP_NONE && job->epoch == 9 && job->since[0] == 0 && job->since[1] == 9);
  server_back(members, &clients[0], "c", 0x102);
  rank_back(members, &clients[1], 0);
  assert_true(seen.acts[ZPS_ACT_MAP_SERVER] == 0 && seen.acts[ZPS_ACT_REPLAY_SERVER] == 1);
  assert_true(seen.acts[ZPS_ACT_MAP_RANK] == 0 && seen.acts[ZPS_ACT_REPLAY_RANK] == 1);
  leave(members, clients, 2);
  memset(clients, 0, sizeof clients);
  members = make_again(true, open, 3);
  job = job_of(members);
  assert_true(job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 2 && job->epoch > 9 && job->since[1] == 9);
  server_back(members, &clients[0], "c", 0x102);
  assert_int_equal(seen.acts[ZPS_ACT_MAP_SERVER], 1);
  leave(members, clients, 1);
  struct zps_error error = {.text = ""};
  zps_json *record;
  members = make(true);
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(zps_json_parse(short_of_one[i], strlen(short_of_one[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), i < 2 ? ZPS_OK : ZPS_ERR_PROTOCOL);
    zps_json_unref(record);
  }
  zps_members_destroy(members);
}

#define JOB_WITH_ROOM(began)                                                                            \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0," \
  "\"began\":" began                                                                                    \
  ",\"servers\":[0,4294967294,4294967294],\"drained\":2,\"leaving\":[4294967294,4294967294,"            \
  "4294967294],\"ranks\":[" RANK("0") "," RANK("1") "]}"

/* A job that has places which no server has taken yet is as it was: nobody is told of a loss, and who comes takes one.
 */
static void test_places_that_are_free(void **state) {
  (void)state;
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  static const char *const lines[] = {SERVER("0", "a"), JOB_WITH_ROOM("1")};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = make_again(true, lines, 2);
  const struct zps_member_job *job = job_of(members);
  assert_true(job->map.state == ZPS_MAP_NONE && job->epoch == 7 && job->n_began == 1 && job->n_servers == 3);
  assert_true(zps_member_job_servers_in(job) == 1 && zps_member_job_servers_lost(job) == 0);
  server_back(members, &clients[0], "a", 0x100);
  for (unsigned r = 0; r < 2; r++) rank_back(members, &clients[1 + r], r);
  assert_true(seen.acts[ZPS_ACT_MAP_SERVER] == 0 && seen.acts[ZPS_ACT_MAP_RANK] == 0);
  assert_true(seen.acts[ZPS_ACT_REPLAY_SERVER] == 0 && seen.acts[ZPS_ACT_REPLAY_RANK] == 0);
  const struct zps_server_spec spec = {.name = "b", .host = "h", .pid = 9, .fabric = &fabric};
  struct zps_error error;
  assert_int_equal(zps_members_server_register(members, &clients[3], &spec, false, &error), ZPS_OK);
  for (unsigned i = 1; i < 3; i++) zps_members_tick(members, i * 60 * ZPS_NS_PER_S);
  assert_true(seen.acts[ZPS_ACT_JOB_OPEN] == 1 && zps_member_job_admits(job, 1));
  /* And what it notes is what it was made from. */
  char *all[RECORDS];
  const unsigned n = seen.n_notes;
  zps_members_note_all(members);
  const unsigned n_all = seen.n_notes - n;
  memcpy(all, seen.notes + n, n_all * sizeof *all);
  seen.n_notes = n;
  leave(members, clients, 4);
  members = make_again(true, (const char *const *)all, n_all);
  job = job_of(members);
  assert_true(job->n_began == 1 && job->n_servers == 3 && job->n_drained == 2);
  zps_members_destroy(members);
  for (unsigned i = 0; i < n_all; i++) free(all[i]);
  static const char *const wrong[] = {SERVER("0", "a"), JOB_WITH_ROOM("4")};
  zps_json *record;
  members = make(true);
  for (unsigned i = 0; i < 2; i++) {
    assert_int_equal(zps_json_parse(wrong[i], strlen(wrong[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), i < 1 ? ZPS_OK : ZPS_ERR_PROTOCOL);
    zps_json_unref(record);
  }
  assert_string_equal(error.text, "member 'began' is 4, want 1 to 3");
  zps_members_destroy(members);
}

/* One that ranks could not reach: it counts as lost, and is let go as one that drains. */
static void test_a_server_that_is_cut_off(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"), SERVER("1", "b"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
      "\"servers\":[0,4294967294],\"maps\":true,\"drained\":0,\"leaving\":[4294967294,1],\"ranks\":[" RANK(
          "0") "," RANK("1") "]}"};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_members *members = make_again(true, lines, 3);
  const struct zps_member_job *const job = job_of(members);
  assert_true(job->state == ZPS_JOB_RUNNING && job->map.state == ZPS_MAP_SERVERS && job->map.n_pending == 2);
  assert_int_equal(zps_member_job_servers_lost(job), 1);
  for (unsigned i = 0; i < 2; i++) server_back(members, &clients[i], i == 0 ? "a" : "b", 0x100 + i);
  for (unsigned r = 0; r < 2; r++) rank_back(members, &clients[2 + r], r);
  for (unsigned i = 0; i < 2; i++) zps_members_map_answered(members, &clients[i], JOB, job->epoch, ZPS_OK, NULL);
  mapped(members, &clients[2], 8);
  assert_int_equal(seen.acts[ZPS_ACT_JOB_CLOSE], 0);
  mapped(members, &clients[3], 8);
  assert_int_equal(seen.acts[ZPS_ACT_JOB_CLOSE], 1);
  assert_int_equal(zps_members_server(members, 1)->n_jobs, 0);
  leave(members, clients, 4);
}

/* ------------------------------------------------------------ seats of elastic jobs */

#define GENERATION "\"generation\":3,\"source\":0,\"step\":4,\"rank\":0,\"world\":2,"
#define JOB_ELASTIC                                                                                                \
  "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0," GENERATION \
  "\"servers\":[0],\"ranks\":[" RANK("0") "," RANK("1") "]}"
enum { LATE = 2000 }; /* later than all have to come back */

struct asked {
  uint32_t pid, generation, last_rank; /* generation 0: it has been in none */
  uint64_t last_job, step;
};

/* Of two to two ranks. */
static void asks_as(struct zps_members *members, struct zps_member_client *client, const struct asked *asked) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  const struct zps_next_spec spec = {
      .join = {.job = "j", .host = "h", .world = 2, .pid = asked->pid, .timeout_ms = 20000, .fabric = &fabric},
      .min_world = 2,
      .max_world = 2,
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
  struct zps_members *members = make_again(false, lines, 2);
  server_back(members, &clients[0], "a", 0x100);
  for (unsigned r = 0; r < 2; r++) rank_back(members, &clients[1 + r], r);
  for (unsigned r = 0; r < n; r++) assert_int_equal(zps_members_move_on(members, &clients[1 + r], JOB, NULL), ZPS_OK);
  return members;
}

/* A new start from all that the first one noted, or from what it says of itself. */
static struct zps_members *start_again(struct zps_members *members, struct zps_member_client *clients, bool compact) {
  static const char *const lines[] = {SERVER("0", "a"), JOB_ELASTIC};
  char *all[RECORDS];
  if (compact) {
    while (seen.n_notes) free(seen.notes[--seen.n_notes]);
    zps_members_note_all(members);
  }
  unsigned n = 0;
  for (unsigned i = 0; !compact && i < 2; i++) all[n++] = strdup(lines[i]);
  for (unsigned i = 0; i < seen.n_notes; i++) all[n++] = seen.notes[i];
  seen.n_notes = 0;
  leave(members, clients, 5);
  memset(clients, 0, 5 * sizeof *clients);
  members = make_again(false, (const char *const *)all, n);
  for (unsigned i = 0; i < n; i++) free(all[i]);
  return members;
}

static void expect_number(const struct zps_members *members, const struct zps_member_client *clients, uint32_t number) {
  const struct zps_member_job *job = job_of(members);
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
    assert_null(job_of(members));
    asks(members, &clients[1], 0, 9);
    members = start_again(members, clients, compact);
    server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[3], -1, 0);
    asks(members, &clients[4], -1, 0);
    assert_null(job_of(members));
    asks(members, &clients[2], 1, 8);
    assert_null(job_of(members));
    asks(members, &clients[1], 0, 9);
    expect_generation(members, clients);
    leave(members, clients, 5);
  }
}

/* One has left, and the other one is in the last generation still; it leaves later. */
static void test_one_has_left(void **state) {
  (void)state;
  for (int compact = 0; compact < 2; compact++) {
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = start_again(with_leavers(1, clients), clients, compact);
    server_back(members, &clients[0], "a", 0x100);
    rank_back(members, &clients[2], 1);
    asks(members, &clients[3], -1, 0);
    asks(members, &clients[1], 0, 9);
    assert_null(job_of(members)->next);
    assert_int_equal(zps_members_move_on(members, &clients[2], JOB, NULL), ZPS_OK);
    asks(members, &clients[2], 1, 8);
    expect_generation(members, clients);
    leave(members, clients, 5);
  }
}

/* Those that do not come back are waited for as long as all others; then nothing is known of them. */
static void test_none_of_those_that_left_is_back(void **state) {
  (void)state;
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = start_again(with_leavers(2, clients), clients, false);
  server_back(members, &clients[0], "a", 0x100);
  asks(members, &clients[3], -1, 0);
  asks(members, &clients[4], -1, 0);
  assert_null(job_of(members));
  zps_members_tick(members, LATE);
  assert_true(job_of(members) && clients[3].job && clients[4].job);
  leave(members, clients, 5);
  memset(clients, 0, sizeof clients);
  members = start_again(with_leavers(2, clients), clients, false);
  zps_members_tick(members, LATE);
  assert_non_null(strstr(seen.notes[seen.n_notes - 1], "\"what\":\"seats\""));
  assert_null(strstr(seen.notes[seen.n_notes - 1], "moving"));
  leave(members, clients, 5);
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
      zps_members_job_opened(members, &clients[0], job_of(members)->job_id, ZPS_ERR_NOMEM, "it has no room", 5);
    members = start_again(members, clients, compact);
    server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[1], 0, 9);
    asks(members, &clients[2], 1, 8);
    expect_number(members, clients, 5);
    leave(members, clients, 5);
  }
}

/* One has come with a state of generation 7, of which nothing was known here, and does not come again. */
static void test_number_that_one_has_said(void **state) {
  (void)state;
  for (int compact = 0; compact < 2; compact++) {
    struct zps_member_client clients[5] = {{.server = NULL}};
    struct zps_members *members = with_leavers(2, clients);
    asks_as(members, &clients[3], &(struct asked){.pid = 9, .generation = 7, .last_job = 99, .step = 20});
    members = start_again(members, clients, compact);
    server_back(members, &clients[0], "a", 0x100);
    asks(members, &clients[1], 0, 9);
    asks(members, &clients[2], 1, 8);
    expect_number(members, clients, 8);
    leave(members, clients, 5);
  }
}

/* A rank whose leaving was not heard asks: it is on the way like one that was heard. */
static void test_one_that_asks_from_its_seat(void **state) {
  (void)state;
  struct zps_member_client clients[5] = {{.server = NULL}};
  struct zps_members *members = with_leavers(0, clients);
  asks_as(members, &clients[3], &(struct asked){.pid = 1, .generation = 3, .last_rank = 1, .last_job = JOB, .step = 9});
  assert_int_equal(seen.n_notes, 1);
  assert_non_null(strstr(seen.notes[0], "\"what\":\"seats\""));
  assert_non_null(strstr(seen.notes[0], "\"moving\":[1]"));
  leave(members, clients, 5);
}

/* What was noted of a generation is over with the next one that runs, and with a note of none. */
static void test_seats_that_are_over(void **state) {
  (void)state;
  static const char seats[] =
      "{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\",\"world\":2,"
      "\"moving\":[0,1]}",
                    none[] = "{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\",\"world\":2}";
  static const char *const next[] = {SERVER("0", "a"), seats, JOB_ELASTIC}, *const over[] = {seats, none};
  struct zps_members *members = make_again(false, next, 3);
  zps_members_note_all(members);
  for (unsigned i = 0; i < seen.n_notes; i++) assert_null(strstr(seen.notes[i], "\"what\":\"seats\""));
  zps_members_destroy(members);
  members = make_again(false, over, 2);
  zps_members_note_all(members);
  assert_int_equal(seen.n_notes, 1);
  zps_members_destroy(members);
}

/* ------------------------------------------------------------ nonsense */

/* Records that do not fit are refused by name. */
static void test_nonsense(void **state) {
  (void)state;
  static const char *const wrong[] = {"{\"what\":\"nothing\"}",
                                      "{\"what\":\"job.gone\",\"job_id\":\"0x5\"}",
                                      "{\"what\":\"server.gone\",\"server\":5}",
                                      "{\"what\":\"server\"}",
                                      "{\"what\":\"rank\",\"job_id\":\"0x5\",\"rank\":1,\"state\":\"lost\"}",
                                      ("{\"what\":\"seats\",\"name\":\"j\",\"generation\":2,\"last_job\":\"0x9\","
                                       "\"world\":2,\"moving\":[2]}")};
  struct zps_members *const members = make(false);
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct zps_error error = {.text = ""};
    zps_json *record;
    assert_int_equal(zps_json_parse(wrong[i], strlen(wrong[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), ZPS_ERR_PROTOCOL);
    assert_true(error.text[0]);
    zps_json_unref(record);
  }
  zps_members_destroy(members);
}

static int teardown(void **state) {
  (void)state;
  forget();
  return 0;
}

static void sink(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx, (void)component, (void)text;
  assert_true(level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

int main(void) {
  zps_log_set_sink(sink, NULL);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_header, teardown),
      cmocka_unit_test_teardown(test_where_losses_are_to_fail_jobs, teardown),
      cmocka_unit_test_teardown(test_a_map_under_way_begins_anew, teardown),
      cmocka_unit_test_teardown(test_a_second_loss, teardown),
      cmocka_unit_test_teardown(test_a_server_that_drains, teardown),
      cmocka_unit_test_teardown(test_a_place_that_was_taken, teardown),
      cmocka_unit_test_teardown(test_places_that_are_free, teardown),
      cmocka_unit_test_teardown(test_a_server_that_is_cut_off, teardown),
      cmocka_unit_test_teardown(test_all_have_left, teardown),
      cmocka_unit_test_teardown(test_one_has_left, teardown),
      cmocka_unit_test_teardown(test_none_of_those_that_left_is_back, teardown),
      cmocka_unit_test_teardown(test_number_of_one_that_never_ran, teardown),
      cmocka_unit_test_teardown(test_number_that_one_has_said, teardown),
      cmocka_unit_test_teardown(test_one_that_asks_from_its_seat, teardown),
      cmocka_unit_test_teardown(test_seats_that_are_over, teardown),
      cmocka_unit_test_teardown(test_nonsense, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
