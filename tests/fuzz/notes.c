#include "tests/fuzz/notes.h"

#include <string.h>

#include "server/coordinator/records.h"
#include "tests/fuzz/must.h"

enum { LINES_MAX = 256 };

static void add(struct zps_journal_buffer *to, zps_json *record) {
  char *const text = record ? zps_json_dump(record) : NULL;
  must(text && zps_journal_add(to, text, strlen(text)) == ZPS_OK);
  free(text);
  zps_json_unref(record);
}

void noted_on_note(void *ctx, const struct zps_member_note *note) {
  struct noted *const noted = ctx;
  if (noted->to) add(noted->to, zps_record_write(note));
}

struct take {
  struct zps_members *again;
  uint64_t now_ns;
};

static zps_err_t take(void *ctx, const char *text, size_t len) {
  const struct take *take = ctx;
  struct zps_error error = {.text = ""};
  zps_json *record;
  must(zps_json_parse(text, len, &record, &error) == ZPS_OK);
  const zps_err_t err = zps_record_read(take->again, record, take->now_ns, &error);
  if (err != ZPS_OK) fprintf(stderr, "%s\nof: %.*s\n", error.text, (int)len, text);
  zps_json_unref(record);
  return err;
}

/* What it says of itself. */
static struct zps_journal_buffer describe(struct noted *noted) {
  struct zps_journal_buffer *const before = noted->to;
  struct zps_journal_buffer said = {.len = 0};
  noted->to = &said;
  zps_members_note_all(noted->members);
  noted->to = before;
  return said;
}

static int compare_lines(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static void cut(char *line, const char *begin, const char *end) {
  char *const from = strstr(line, begin), *const to = from ? strstr(from, end) : NULL;
  if (to) memmove(from, to + strlen(end), strlen(to + strlen(end)) + 1);
}

static void cut_list(char *line, const char *begin) {
  cut(line, begin, "],");
}

static bool is_of_seats(const char *line) {
  return strstr(line, "\"what\":\"seats\"") != NULL;
}

/* What time alone has brought about is not noted: that its servers have forgotten a job that failed, who are told once
 * more; that ranks are not waited for any more, who are given time again. */
static void cut_what_passes(char *line) {
  if (strstr(line, "\"code\":")) {
    cut(line, "\"places\":[", "]");
  }
  if (is_of_seats(line)) cut_list(line, "\"moving\":[");
}

/* Without the checksum and the length that the journal puts ahead. */
static char *text_of(char *line) {
  char *const brace = strchr(line, '{');
  must(brace != NULL);
  return brace;
}

/* Its records in an order of their own: jobs are in the order in which they
 * began, and in that in which they ran. They stay where they are; returns how many there are. */
static unsigned lines_of(struct zps_journal_buffer *all, char *lines[LINES_MAX]) {
  unsigned n = 0;
  for (char *at = all->data; all->len > 0 && at < all->data + all->len; n++) {
    char *const end = memchr(at, '\n', (size_t)(all->data + all->len - at));
    must(end && n < LINES_MAX);
    *end = '\0';
    lines[n] = text_of(at);
    cut_what_passes(lines[n]);
    at = end + 1;
  }
  qsort(lines, n, sizeof lines[0], compare_lines);
  return n;
}

static void look(const char *is, const char *made, const struct zps_journal_buffer *notes) {
  if (strcmp(is, made) != 0)
    fprintf(stderr, "notes:\n%.*sit says: %s\nmade of them: %s\n", (int)notes->len, notes->data, is, made);
  must(strcmp(is, made) == 0);
}

void noted_compare(struct noted *is, const struct zps_journal_buffer *notes, struct noted *again, uint64_t now_ns) {
  char *is_lines[LINES_MAX], *made_lines[LINES_MAX];
  struct zps_journal_scan scan;
  struct take ctx = {.again = again->members, .now_ns = now_ns};
  char *const copy = malloc(notes->len + 1);
  must(copy != NULL);
  if (notes->len > 0) memcpy(copy, notes->data, notes->len);
  must(zps_journal_scan(copy, notes->len, take, &ctx, &scan) == ZPS_OK && !scan.damaged);
  struct zps_journal_buffer says = describe(is), made = describe(again);
  const unsigned n = lines_of(&says, is_lines), n_made = lines_of(&made, made_lines);
  for (unsigned i = 0, at = 0; i < n || at < n_made; at++) {
    const char *const has = i < n ? is_lines[i] : "nothing", *const got = at < n_made ? made_lines[at] : "nothing";
    if (strcmp(has, got) != 0 && is_of_seats(got)) continue;
    look(has, got, notes);
    i++;
  }
  free(says.data);
  free(made.data);
  free(copy);
}
