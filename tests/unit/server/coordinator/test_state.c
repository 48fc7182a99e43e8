/* A coordinator's journal of the version before is read, and written anew in this program's version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/coordinator/coordinator_impl.h"
#include "server/state/journal.h"
#include "tests/unit/server/coordinator/restored.h"
#include "tests/unit/server/state/store_memory.h"

#define HEADER(version) \
  "{\"what\":\"zenps coordinator\",\"version\":" version ",\"cluster\":\"blue\",\"incarnation\":\"0x7\"}"
static const char job_1[] =
    "{\"what\":\"job\",\"job_id\":\"0x1\",\"name\":\"j\",\"seed\":\"0x2\",\"epoch\":7,\"next_tensor\":0,"
    "\"servers\":[0,4294967294],\"ranks\":[" RANK("0") "]}";

static void no_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t no_random(void *ctx) {
  (void)ctx;
  return 5;
}

static void write_records(struct store_memory *memory, const char *const *records, unsigned n) {
  struct zps_journal_buffer buffer = {.len = 0};
  for (unsigned i = 0; i < n; i++) assert_int_equal(zps_journal_add(&buffer, records[i], strlen(records[i])), ZPS_OK);
  memcpy(memory->data, buffer.data, buffer.len);
  memory->len = memory->durable = buffer.len;
  free(buffer.data);
}

/* Returns how many journals the coordinator has written anew. */
static unsigned load(struct store_memory *memory) {
  struct zps_coordinator coordinator = {.cluster = (char *)(uintptr_t) "blue", .config = {.restart_grace_ms = 1000}};
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 8,
                                            .max_tensors = 8,
                                            .replays = true,
                                            .ctx = &coordinator,
                                            .act = no_act,
                                            .random = no_random,
                                            .note = zps_coordinator_note};
  struct zps_error error = {.text = ""};
  const unsigned before = memory->n_replaced;
  assert_int_equal(zps_members_create(&config, &coordinator.members), ZPS_OK);
  if (zps_coordinator_state_load(&coordinator, &memory->backend, &error)) fail_msg("%s", error.text);
  const struct zps_member_job *const job = zps_members_job_first(coordinator.members);
  assert_int_equal(coordinator.incarnation, 7);
  assert_true(job->view.n_places == 2 && job->view.places[0].state == ZPS_PLACE_IN && job->view.places[1].was_lost);
  zps_store_close(coordinator.store);
  zps_members_destroy(coordinator.members);
  return memory->n_replaced - before;
}

static void test_version_1(void **state) {
  (void)state;
  static const char *const records[] = {HEADER("1"), SERVER("0", "a"), job_1};
  struct store_memory *const memory = calloc(1, sizeof *memory);
  assert_non_null(memory);
  store_memory_init(memory);
  write_records(memory, records, 3);
  assert_int_equal(load(memory), 1);
  memory->data[memory->len] = '\0';
  assert_non_null(strstr(memory->data, "\"version\":2"));
  assert_null(strstr(memory->data, "\"version\":1"));
  assert_non_null(strstr(memory->data, "\"view\":{\"epoch\":7,\"began\":2,\"places\":[{\"number\":0},"));
  assert_int_equal(load(memory), 0);
  free(memory);
}

int main(void) {
  restored_log();
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_1)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
