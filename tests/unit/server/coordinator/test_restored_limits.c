/* A new start: limits of the configuration and of records, owners of jobs, names of lost servers, and graces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/membership/history.h"
#include "tests/unit/server/coordinator/restored.h"

#define TENSOR(number)                                                                                                 \
  "{\"what\":\"tensor\",\"job_id\":\"0x1\",\"tensor\":" number ",\"name\":\"w" number                                  \
  "\",\"rows\":4,\"width\":1,"                                                                                         \
  "\"dtype\":\"f32\",\"op\":\"sum\",\"partitions\":2,\"block_bits\":0,\"scheme\":{\"name\":\"balanced\"},\"owners\":[" \
  "0,"                                                                                                                 \
  "0],\"first_rank\":0,\"state\":\"open\"}"
#define GROUP(name) \
  "{\"what\":\"group\",\"job_id\":\"0x1\",\"group\":\"" name "\",\"first_rank\":0,\"ranks\":[0,1],\"left\":[]}"

/* The limit was lowered meanwhile: it is for tensors and groups that come. */
static void test_a_limit_that_was_lowered(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), JOB_OF("0"), TENSOR("0"), TENSOR("1"), GROUP("g"), GROUP("h")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  struct zps_error error;
  restored_max_tensors = 1;
  struct zps_members *const members = restored_make_again(false, lines, 6);
  const struct zps_member_job *const job = restored_job(members);
  assert_true(job->n_tensors == 2 && job->n_groups == 2);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[1], 0);
  struct zps_tensor_spec spec = *(const struct zps_tensor_spec *)&job->tensors[0]->spec;
  strcpy(spec.name, "third");
  assert_int_equal(zps_members_tensor_register(members, &clients[1], &spec, &clients[1], &error), ZPS_ERR_QUOTA);
  assert_string_equal(error.text, "job 'j' has 2 tensors, and a job may have 1 (job.max_tensors)");
  const uint32_t ranks[] = {0, 1};
  const struct zps_group_spec group = {.job_id = JOB, .name = "i", .ranks = ranks, .n_ranks = 2, .timeout_ms = 1000};
  assert_int_equal(zps_members_group_open(members, &clients[1], &group, &clients[1], 5, &error), ZPS_ERR_QUOTA);
  assert_string_equal(error.text, "job 'j' has 2 groups, and a job may have 1 (job.max_tensors)");
  restored_leave(members, clients, 2);
}

/* ------------------------------------------------------------ steps to replay */

/* More than the largest record has: a job that lost a server, of 4096 ranks. */
enum { LINE_MAX = 16 << 20, WORLD = ZPS_WORLD_MAX, ALL_TENSORS = ZPS_MAP_TENSORS_MAX };

/* Each list has `each` steps. */
static char *largest_job(uint32_t each) {
  char *const line = malloc(LINE_MAX);
  assert_non_null(line);
  size_t at = (size_t)sprintf(line,
                              "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,"
                              "\"next_tensor\":4096,\"servers\":[0,4294967294],\"replay\":{\"job_id\":\"0x1\","
                              "\"epoch\":7,\"tensors\":[");
  for (uint32_t t = 0; t < ALL_TENSORS; t++) {
    at += (size_t)sprintf(line + at, "%s{\"tensor\":%u,\"steps\":[", t ? "," : "", t);
    for (uint32_t i = 0; i < each; i++) at += (size_t)sprintf(line + at, "%s\"0x%x\"", i ? "," : "", i);
    at += (size_t)sprintf(line + at, "]}");
  }
  at += (size_t)sprintf(line + at, "]},\"ranks\":[");
  for (uint32_t r = 0; r < WORLD; r++) at += (size_t)sprintf(line + at, "%s%s", r ? "," : "", RANK("0"));
  sprintf(line + at, "]}");
  return line;
}

static void test_the_largest_record(void **state) {
  (void)state;
  char *const line = largest_job(ZPS_MAP_ALL_STEPS_MAX / ALL_TENSORS);
  const char *const lines[] = {SERVER("0", "a"), line};
  struct zps_members *const members = restored_compact(restored_make_again(true, lines, 2), NULL, 0);
  assert_int_equal(restored_job(members)->map.steps.n_all, ZPS_MAP_ALL_STEPS_MAX);
  assert_int_equal(restored_job(members)->world, WORLD);
  zps_members_destroy(members);
  free(line);
}

/* A rank has more steps in flight than a record holds: the job fails, and no record has them. */
static void test_too_many_steps(void **state) {
  (void)state;
  enum { TENSORS = ZPS_MAP_ALL_STEPS_MAX / ZPS_MAP_STEPS_MAX + 1, LINES = TENSORS + 4 };
  static struct zps_tensor_steps tensors[TENSORS];
  static char rows[TENSORS][400];
  const char *lines[LINES] = {SERVER("0", "a"), SERVER("1", "b"), JOB_OF("0,1")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  uint64_t steps[ZPS_MAP_STEPS_MAX];
  struct zps_error error;
  for (uint32_t i = 0; i < ZPS_MAP_STEPS_MAX; i++) steps[i] = i;
  for (uint32_t t = 0; t < TENSORS; t++) {
    snprintf(rows[t], sizeof rows[t], TENSOR("%u"), t, t);
    lines[3 + t] = rows[t];
    tensors[t] = (struct zps_tensor_steps){.tensor = t, .n_steps = ZPS_MAP_STEPS_MAX, .steps = steps};
  }
  lines[LINES - 1] = "{\"what\":\"server.gone\",\"server\":1}";
  struct zps_members *const members = restored_make_again(true, lines, LINES);
  const struct zps_member_job *const job = restored_job(members);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[1], 0);
  zps_members_map_answered(members, &clients[0], JOB, job->view.epoch, ZPS_OK, NULL);
  assert_int_equal(job->map.state, ZPS_MAP_RANKS);
  const struct zps_job_steps said = {.job_id = JOB, .epoch = job->view.epoch, .n_tensors = TENSORS, .tensors = tensors};
  assert_int_equal(zps_settled(members, zps_members_mapped(&clients[1], &said, &error)), ZPS_ERR_SERVER_LOST);
  assert_non_null(
      strstr(error.text,
             "the rounds in flight cannot be played again: with those of rank 0 they are too many: have at most 8192 "
             "tensors, 128 steps of each, and 131072 steps and late ranks of decided steps in all"));
  assert_int_equal(job->state, ZPS_JOB_CLOSING);
  for (unsigned i = 0; i < restored.n_notes; i++) assert_null(strstr(restored.notes[i], "replay"));
  restored_leave(members, clients, 2);
}

/* ------------------------------------------------------------ owners of jobs */

#define ORIGIN "00112233445566778899aabbccddeeff"
#define TENANT "ffeeddccbbaa99887766554433221100"
#define JOB_OF_TENANT(number)                                                                                    \
  "{\"what\":\"job\",\"job_id\":\"0x" number "\",\"name\":\"j" number "\",\"seed\":\"0x2\",\"origin\":\"" ORIGIN \
  "\",\"tenant\":\"" TENANT "\",\"epoch\":7,\"next_tensor\":0,\"servers\":[0],\"ranks\":[" RANK("0") "]}"

static const struct zps_origin tenant = {
    true, {0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00}};

/* Jobs of before count for their tenant, which may have four of the eight. */
static void test_jobs_count_for_their_tenant(void **state) {
  (void)state;
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  static const char *const lines[] = {SERVER("0", "a"), JOB_OF_TENANT("1"), JOB_OF_TENANT("2"), JOB_OF_TENANT("3"),
                                      JOB_OF_TENANT("4")};
  struct zps_member_client clients[2] = {{.server = NULL}};
  const struct zps_join_spec spec = {
      .job = "fifth", .host = "h", .world = 2, .pid = 1, .timeout_ms = 1500, .fabric = &fabric};
  struct zps_error error;
  struct zps_members *const members = restored_make_again(true, lines, 5);
  clients[0].tenant = tenant;
  clients[0].has_share = true;
  assert_int_equal(zps_members_join(members, &clients[0], &spec, &clients[0], 5, &error), ZPS_ERR_QUOTA);
  assert_int_equal(zps_members_join(members, &clients[1], &spec, &clients[1], 5, &error), ZPS_OK);
  restored_leave(members, clients, 2);
}

/* It ends before any of its ranks is back: its owner is told why. */
static void test_the_owner_of_a_job_that_ends(void **state) {
  (void)state;
  static const uint8_t origin[] = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
                                   0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff};
  static const char *const lines[] = {SERVER("0", "a"), JOB_OF_TENANT("1")};
  struct zps_members *const members = restored_make_again(true, lines, 2);
  zps_members_tick(members, 2000);
  assert_null(restored_job(members));
  const struct zps_history_record *const ended = zps_history_at(zps_members_history(members), 0);
  assert_true(ended->origin.is_known && zps_origin_is(&ended->tenant, &tenant));
  assert_memory_equal(ended->origin.bytes, origin, sizeof origin);
  const char *const note = restored.notes[restored.n_notes - 1];
  assert_non_null(strstr(note, "\"origin\":\"" ORIGIN "\",\"tenant\":\"" TENANT "\""));
  zps_members_destroy(members);
}

/* An elastic job is its tenant's, whoever asks for a place first. */
static void test_the_tenant_of_an_elastic_job(void **state) {
  (void)state;
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  static const char *const lines[] = {
      SERVER("0", "a"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"tenant\":\"" TENANT
      "\",\"epoch\":7,\"generation\":3,\"source\":0,\"step\":4,\"rank\":0,\"world\":2,\"next_tensor\":0,"
      "\"servers\":[0],\"ranks\":[" RANK("0") "," RANK("1") "]}"};
  struct zps_member_client clients[4] = {{.server = NULL}};
  struct zps_next_spec spec = {
      .join = {.job = "j", .host = "h", .world = 1, .pid = 9, .timeout_ms = 20000, .fabric = &fabric},
      .min_world = 1,
      .max_world = 2};
  struct zps_members *const members = restored_make_again(true, lines, 2);
  restored_server_back(members, &clients[0], "a", 0x100);
  for (uint32_t r = 0; r < 2; r++) restored_rank_back(members, &clients[1 + r], r);
  clients[3].tenant = zps_origin_named(ZPS_ORIGIN_TOKEN, "stranger");
  assert_int_equal(zps_members_next(members, &clients[3], &spec, &clients[3], 5, NULL), ZPS_OK);
  zps_members_client_lost(members, &clients[3], "gone");
  spec.generation = 3;
  spec.last_job = JOB;
  for (uint32_t r = 0; r < 2; r++) {
    spec.last_rank = r;
    assert_int_equal(zps_members_move_on(members, &clients[1 + r], JOB, NULL), ZPS_OK);
    assert_int_equal(zps_members_next(members, &clients[1 + r], &spec, &clients[1 + r], 5, NULL), ZPS_OK);
  }
  assert_true(restored_job(members) && zps_origin_is(&restored_job(members)->tenant, &tenant));
  restored_leave(members, clients, 4);
}

/* ------------------------------------------------------------ names of lost servers */

/* Names are known after a new start, and after another one from a compacted journal. */
static void stay(struct zps_members *members, const char *names, enum zps_job_state wanted) {
  for (int i = 0; i < 2; i++) {
    assert_int_equal(restored_job(members)->state, wanted);
    assert_string_equal(restored_job(members)->lost_servers, names);
    if (i == 0) members = restored_compact(members, NULL, 0);
  }
  zps_members_destroy(members);
}

static void test_names_of_lost_servers(void **state) {
  (void)state;
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), JOB_OF("0,1"),
                                      "{\"what\":\"server.gone\",\"server\":1}"};
  stay(restored_make_again(true, lines, 4), "b", ZPS_JOB_RUNNING);
}

static void test_names_of_a_failed_job(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"), SERVER("1", "b"), JOB_OF("0,1"), "{\"what\":\"server.gone\",\"server\":1}",
      "{\"what\":\"job.failed\",\"job_id\":\"0x1\",\"code\":\"ERR_PEER_LOST\",\"text\":\"x\"}"};
  stay(restored_make_again(true, lines, 5), "b", ZPS_JOB_CLOSING);
}

/* Its only server lives, but has lost the job, so no record says that it is gone. */
static void test_names_of_a_job_that_fails_by_the_loss(void **state) {
  (void)state;
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  static const char *const lines[] = {SERVER("0", "a"), JOB_OF("0")};
  const struct zps_server_spec spec = {.name = "a", .host = "h", .pid = 1, .fabric = &fabric, .secret = 0x100};
  struct zps_member_client client = {.server = NULL};
  struct zps_members *const members = restored_make_again(true, lines, 2);
  assert_int_equal(zps_members_server_register(members, &client, &spec, true, NULL), ZPS_OK);
  struct restored_journal journal;
  restored_journal_take(&journal, lines, 2, 0);
  restored_leave(members, &client, 1);
  stay(restored_from(true, &journal), "a", ZPS_JOB_CLOSING);
}

/* ------------------------------------------------------------ time */

/* Servers keep a job that has failed for the whole grace, also after a new start. */
static void test_the_grace_of_a_failed_job(void **state) {
  (void)state;
  static const char *const lines[] = {
      SERVER("0", "a"),
      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
      "\"code\":\"ERR_PEER_LOST\",\"text\":\"x\",\"servers\":[0],\"ranks\":[" RANK("0") "]}"};
  struct zps_member_client clients[2] = {{.server = NULL}};
  restored_now_ns = 100 * ZPS_NS_PER_S;
  restored_leave_grace_ms = 4000;
  struct zps_members *const members = restored_make_again(true, lines, 2);
  restored_server_back(members, &clients[0], "a", 0x100);
  restored_rank_back(members, &clients[1], 0);
  zps_members_tick(members, restored_now_ns + ZPS_NS_PER_S);
  assert_false(restored_job(members)->is_forgotten);
  zps_members_tick(members, restored_now_ns + 5 * ZPS_NS_PER_S);
  assert_true(restored_job(members)->is_forgotten);
  restored_leave(members, clients, 2);
}

/* A job of every state of a place, as this release notes it, is restored as it was. */
static void test_a_view(void **state) {
  (void)state;
#define VIEW                                                                                           \
  "\"view\":{\"epoch\":9,\"began\":5,\"places\":[{\"number\":0},{\"since\":8,\"number\":2},"           \
  "{\"state\":\"leaving\",\"lost\":true,\"number\":1},{\"state\":\"free\",\"lost\":true,\"since\":4}," \
  "{\"state\":\"free\"},{\"state\":\"free\"}]}"
  static const char *const lines[] = {SERVER("0", "a"), SERVER("1", "b"), SERVER("2", "c"),
                                      "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\"," VIEW
                                      ",\"next_tensor\":0,\"maps\":true,\"ranks\":[" RANK("0") "," RANK("1") "]}"};
  struct zps_members *members = restored_make(true);
  struct zps_error error = {.text = ""};
  zps_json *record;
  for (unsigned i = 0; i < 4; i++) {
    assert_int_equal(zps_json_parse(lines[i], strlen(lines[i]), &record, &error), ZPS_OK);
    assert_int_equal(zps_record_read(members, record, 5, &error), ZPS_OK);
    zps_json_unref(record);
  }
  const struct zps_member_job *const job = restored_job(members);
  assert_true(job->view.epoch == 9 && job->view.n_first == 5 && job->view.n_places == 6);
  const struct zps_view_place *const places = job->view.places;
  assert_true(places[0].state == ZPS_PLACE_IN && places[0].server->index == 0 && places[0].since == 0);
  assert_true(places[1].state == ZPS_PLACE_IN && places[1].server->index == 2 && places[1].since == 8);
  assert_true(places[2].state == ZPS_PLACE_LEAVING && places[2].server->index == 1 && places[2].was_lost);
  assert_true(places[3].state == ZPS_PLACE_FREE && places[3].was_lost && places[3].since == 4);
  assert_true(places[4].state == ZPS_PLACE_FREE && !places[4].was_lost);
  record = zps_record_write(&(struct zps_member_note){.type = ZPS_NOTE_JOB, .job = job});
  char *const text = zps_json_dump(record);
  assert_non_null(strstr(text, VIEW));
  free(text);
  zps_json_unref(record);
  zps_members_destroy(members);
#undef VIEW
}

int main(void) {
  restored_log();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_a_limit_that_was_lowered, restored_teardown),
      cmocka_unit_test_teardown(test_a_view, restored_teardown),
      cmocka_unit_test_teardown(test_the_largest_record, restored_teardown),
      cmocka_unit_test_teardown(test_too_many_steps, restored_teardown),
      cmocka_unit_test_teardown(test_jobs_count_for_their_tenant, restored_teardown),
      cmocka_unit_test_teardown(test_the_owner_of_a_job_that_ends, restored_teardown),
      cmocka_unit_test_teardown(test_the_tenant_of_an_elastic_job, restored_teardown),
      cmocka_unit_test_teardown(test_names_of_lost_servers, restored_teardown),
      cmocka_unit_test_teardown(test_names_of_a_failed_job, restored_teardown),
      cmocka_unit_test_teardown(test_names_of_a_job_that_fails_by_the_loss, restored_teardown),
      cmocka_unit_test_teardown(test_the_grace_of_a_failed_job, restored_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
