/* Takes arbitrary bytes for a coordinator's journal: once as they are, and once line by line for the texts of records
 * whose lengths and checksums are right. What is taken over must be written as records that are taken over again, to
 * the same state; a refusal must come with a sentence; the bytes are left as they are. */
#include "tests/fuzz/fuzz.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "server/membership/members.h"
#include "server/coordinator/records.h"
#include "server/state/journal.h"

#define CLUSTER "zenps"
#define NOW_NS UINT64_C(1000000000)

struct side {
  struct zps_members *members;
  struct zps_journal_buffer *notes; /* NULL: none are kept */
  struct zps_error error;
  struct zps_record_header header;
  uint64_t n;
};

static void must(bool ok) {
  if (!ok) abort();
}

static void no_act(void *ctx, const struct zps_action *action) {
  (void)ctx, (void)action;
}

static uint64_t on_random(void *ctx) {
  static uint64_t next = 1;
  (void)ctx;
  return next++;
}

static void add(struct zps_journal_buffer *buffer, zps_json *record) {
  char *const text = record ? zps_json_dump(record) : NULL;
  must(text && zps_journal_add(buffer, text, strlen(text)) == ZPS_OK);
  free(text);
  zps_json_unref(record);
}

static void on_note(void *ctx, const struct zps_member_note *note) {
  struct side *side = ctx;
  if (side->notes) add(side->notes, zps_record_write(note));
}

static void begin(struct side *side) {
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 8,
                                            .max_tensors = 64,
                                            .replays = true,
                                            .leave_grace_ms = 1000,
                                            .ctx = side,
                                            .act = no_act,
                                            .random = on_random,
                                            .note = on_note};
  *side = (struct side){.n = 0};
  must(zps_members_create(&config, &side->members) == ZPS_OK);
}

static zps_err_t take(void *ctx, const char *text, size_t len) {
  struct side *side = ctx;
  zps_json *record = NULL;
  zps_err_t err = zps_json_parse(text, len, &record, &side->error);
  if (!err && side->n == 0)
    err = zps_record_header_read(record, CLUSTER, &side->header, &side->error);
  else if (!err)
    err = zps_record_read(side->members, record, NOW_NS, &side->error);
  zps_json_unref(record);
  must(!err || side->error.text[0]);
  side->n++;
  return err;
}

/* What it says of itself. */
static struct zps_journal_buffer describe(struct side *side) {
  struct zps_journal_buffer notes = {.len = 0};
  add(&notes, zps_record_header_write(CLUSTER, side->header.incarnation));
  side->notes = &notes;
  zps_members_note_all(side->members);
  side->notes = NULL;
  return notes;
}

/* `data` has room for one more byte. */
static zps_err_t load(struct side *side, char *data, size_t len, struct zps_journal_scan *scan) {
  const zps_err_t err = zps_journal_scan(data, len, take, side, scan);
  must(scan->whole <= len);
  if (!err && scan->damaged) must(scan->next >= scan->whole && scan->next <= len);
  return err;
}

static void load_again(const struct zps_journal_buffer *first) {
  struct side side;
  struct zps_journal_scan scan;
  char *const copy = malloc(first->len + 1);
  must(copy != NULL);
  memcpy(copy, first->data, first->len);
  begin(&side);
  must(load(&side, copy, first->len, &scan) == ZPS_OK && !scan.damaged && scan.whole == first->len);
  struct zps_journal_buffer second = describe(&side);
  must(second.len == first->len && memcmp(second.data, first->data, first->len) == 0);
  zps_members_restored(side.members, NOW_NS + 1);
  for (uint64_t at = 1; at < 4; at++) zps_members_tick(side.members, NOW_NS + at * 40 * NOW_NS);
  zps_members_destroy(side.members);
  free(second.data);
  free(copy);
}

static void look(const char *data, size_t len) {
  struct side side;
  struct zps_journal_scan scan;
  char *const copy = malloc(len + 1);
  must(copy != NULL);
  memcpy(copy, data, len);
  begin(&side);
  const zps_err_t err = load(&side, copy, len, &scan);
  must(memcmp(copy, data, len) == 0);
  if (!err && !scan.damaged && scan.n_records > 0) {
    struct zps_journal_buffer notes = describe(&side);
    load_again(&notes);
    free(notes.data);
  }
  zps_members_destroy(side.members);
  free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct zps_journal_buffer lines = {.len = 0};
  zps_log_set_level(ZPS_LOG_ERROR); /* servers that are loaded do not come back */
  look((const char *)data, size);
  add(&lines, zps_record_header_write(CLUSTER, 7));
  for (size_t at = 0, len; at < size; at += len + 1) {
    const uint8_t *const end = memchr(data + at, '\n', size - at);
    len = end ? (size_t)(end - (data + at)) : size - at;
    must(zps_journal_add(&lines, (const char *)data + at, len) == ZPS_OK);
  }
  look(lines.data, lines.len);
  free(lines.data);
  return 0;
}
