#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/unit/server/coordinator/restored.h"

struct restored restored;

enum { MAX_TENSORS = 64, NOW_NS = 5 };
uint32_t restored_max_tensors = MAX_TENSORS;
uint64_t restored_now_ns = NOW_NS, restored_leave_grace_ms;

static void on_note(void *ctx, const struct zps_member_note *note) {
  (void)ctx;
  zps_json *record = zps_record_write(note);
  assert_true(record && restored.n_notes < RECORDS);
  restored.notes[restored.n_notes++] = zps_json_dump(record);
  zps_json_unref(record);
}

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  restored.acts[action->type]++;
  if (action->type != ZPS_ACT_REPLAY_RANK) return;
  const struct zps_job_steps *const steps = &action->job->map.steps;
  restored.steps = steps->n_tensors ? steps->tensors[0].n_steps : 0;
}

static uint64_t on_random(void *ctx) {
  static uint64_t last = 77;
  (void)ctx;
  return ++last;
}

static void forget(void) {
  while (restored.n_notes) free(restored.notes[--restored.n_notes]);
  memset(&restored, 0, sizeof restored);
}

static uint64_t on_utc_ms(void *ctx) {
  (void)ctx;
  return RESTORED_UTC_MS;
}

struct zps_members *restored_make(bool replays) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 8,
                                            .max_tensors = restored_max_tensors,
                                            .replays = replays,
                                            .leave_grace_ms = restored_leave_grace_ms,
                                            .act = on_act,
                                            .random = on_random,
                                            .utc_ms = on_utc_ms,
                                            .note = on_note};
  struct zps_members *members;
  forget();
  assert_int_equal(zps_members_create(&config, &members), ZPS_OK);
  return members;
}

struct zps_members *restored_make_again(bool replays, const char *const *lines, unsigned n) {
  struct zps_members *const members = restored_make(replays);
  for (unsigned i = 0; i < n; i++) {
    struct zps_error error;
    zps_json *record;
    assert_int_equal(zps_json_parse(lines[i], strlen(lines[i]), &record, &error), ZPS_OK);
    if (zps_record_read(members, record, restored_now_ns, &error)) fail_msg("%s: %s", lines[i], error.text);
    zps_json_unref(record);
  }
  zps_members_restored(members, restored_now_ns + 995);
  return members;
}

void restored_journal_take(struct restored_journal *journal, const char *const *lines, unsigned n, unsigned first) {
  *journal = (struct restored_journal){.n = n, .n_notes = restored.n_notes - first};
  assert_true(n + journal->n_notes <= RECORDS);
  for (unsigned i = 0; i < n; i++) journal->lines[i] = lines[i];
  for (unsigned i = 0; i < journal->n_notes; i++)
    journal->lines[journal->n++] = journal->notes[i] = restored.notes[first + i];
  restored.n_notes = first;
}

struct zps_members *restored_from(bool replays, struct restored_journal *journal) {
  struct zps_members *const members = restored_make_again(replays, journal->lines, journal->n);
  while (journal->n_notes) free(journal->notes[--journal->n_notes]);
  return members;
}

struct zps_members *restored_compact(struct zps_members *members, struct zps_member_client *clients, unsigned n) {
  struct restored_journal journal;
  const unsigned first = restored.n_notes;
  zps_members_note_all(members);
  restored_journal_take(&journal, NULL, 0, first);
  restored_leave(members, clients, n);
  return restored_from(true, &journal);
}

const struct zps_member_job *restored_job(const struct zps_members *members) {
  return zps_members_job_first(members);
}

void restored_server_back(struct zps_members *members, struct zps_member_client *client, const char *name,
                          uint64_t secret) {
  static const struct zps_net_info fabric = {.provider = "tcp", .addr_format = "f", .addr = {1}, .addr_len = 1};
  uint64_t jobs[] = {JOB};
  const struct zps_server_spec spec = {
      .name = name, .host = "h", .pid = 1, .fabric = &fabric, .secret = secret, .jobs = jobs, .n_jobs = 1};
  struct zps_error error;
  if (zps_members_server_register(members, client, &spec, true, &error)) fail_msg("%s", error.text);
}

void restored_rank_back(struct zps_members *members, struct zps_member_client *client, uint32_t rank) {
  const struct zps_resume_spec spec = {.job_id = JOB, .rank = rank, .secret = 0x200 + rank};
  struct zps_error error;
  if (zps_members_resume(members, client, &spec, &error)) fail_msg("%s", error.text);
}

void restored_leave(struct zps_members *members, struct zps_member_client *clients, unsigned n) {
  for (unsigned i = 0; i < n; i++) zps_members_client_lost(members, &clients[i], "end");
  zps_members_destroy(members);
}

int restored_teardown(void **state) {
  (void)state;
  restored_max_tensors = MAX_TENSORS;
  restored_now_ns = NOW_NS;
  restored_leave_grace_ms = 0;
  forget();
  return 0;
}

static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  assert_true(line->level > ZPS_LOG_ERROR); /* losing peers is for warnings */
}

void restored_log(void) {
  zps_log_set_sink(sink, NULL);
}
