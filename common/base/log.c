#include "common/base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/nowait.h"
#include "common/base/text.h"

enum { TEXT_MAX = 1024, NOTE_MAX = 64, N_NAMES = 4 };
/* A byte may become six in JSON. */
enum { LINE_MAX_BYTES = 6 * (TEXT_MAX + N_NAMES * ZPS_LOG_FIELD_MAX) + 512 };

_Atomic int zps_log_threshold = ZPS_LOG_WARN;

static struct {
  pthread_mutex_t lock;
  enum zps_log_format format;
  zps_log_sink_fn sink;
  void *ctx;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

void zps_log_set_level(enum zps_log_level level) {
  zps_log_threshold = (int)level;
}

void zps_log_set_format(enum zps_log_format format) {
  pthread_mutex_lock(&state.lock);
  state.format = format;
  pthread_mutex_unlock(&state.lock);
}

void zps_log_set_sink(zps_log_sink_fn sink, void *ctx) {
  pthread_mutex_lock(&state.lock);
  state.sink = sink;
  state.ctx = ctx;
  pthread_mutex_unlock(&state.lock);
}

const char *zps_log_level_name(enum zps_log_level level) {
  return level <= ZPS_LOG_TRACE ? level_names[level] : "?";
}

char zps_log_priority(enum zps_log_level level) {
  static const char priorities[] = {'3', '4', '6', '7', '7'};
  return priorities[level];
}

bool zps_log_is_journal(void) {
  const char *const named = getenv("JOURNAL_STREAM");
  unsigned long long device, inode;
  struct stat stat;
  return named && sscanf(named, "%llu:%llu", &device, &inode) == 2 && fstat(STDERR_FILENO, &stat) == 0 &&
         stat.st_dev == device && stat.st_ino == inode;
}

/* ---- The subject of a line ---- */

static _Thread_local const struct zps_log_scope *scopes; /* innermost first */

void zps_log_scope_begin(struct zps_log_scope *scope) {
  scope->outer = scopes;
  scopes = scope;
}

void zps_log_scope_end(const struct zps_log_scope *scope) {
  scopes = scope->outer;
}

/* Adds what the fields do not say yet. */
static void add_fields(struct zps_log_fields *fields, const struct zps_log_fields *outer) {
  if (!fields->peer) fields->peer = outer->peer;
  if (!fields->code) fields->code = outer->code;
  if (fields->job) return; /* The rest of an outer scope belongs to another subject. */
  fields->job = outer->job;
  if (!fields->server) fields->server = outer->server;
  if (!fields->tensor) fields->tensor = outer->tensor;
  if (!fields->has_rank) fields->has_rank = outer->has_rank, fields->rank = outer->rank;
  if (!fields->has_step) fields->has_step = outer->has_step, fields->step = outer->step;
}

static struct zps_log_fields fields_now(void) {
  struct zps_log_fields fields = {.job = NULL};
  for (const struct zps_log_scope *scope = scopes; scope; scope = scope->is_apart ? NULL : scope->outer)
    add_fields(&fields, &scope->fields);
  return fields;
}

static void say_name(const char *name, const char *value, zps_log_each_fn *each, void *ctx) {
  char cut[ZPS_LOG_FIELD_MAX + 1];
  if (!value || !*value) return;
  snprintf(cut, sizeof cut, "%s", value);
  each(ctx, name, cut, false);
}

static void say_number(const char *name, bool is_said, uint64_t value, zps_log_each_fn *each, void *ctx) {
  char text[24];
  if (!is_said) return;
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  each(ctx, name, text, true);
}

void zps_log_each_field(const struct zps_log_fields *fields, zps_log_each_fn *each, void *ctx) {
  say_name("job", fields->job, each, ctx);
  say_number("rank", fields->has_rank, fields->rank, each, ctx);
  say_name("server", fields->server, each, ctx);
  say_name("tensor", fields->tensor, each, ctx);
  say_number("step", fields->has_step, fields->step, each, ctx);
  say_name("code", fields->code ? zps_err_name(fields->code) : NULL, each, ctx);
  say_name("peer", fields->peer, each, ctx);
}

/* ---- Lines of text or JSON ---- */

struct line {
  size_t len;
  char text[LINE_MAX_BYTES];
};

ZPS_PRINTF(2, 3) static void line_add(struct line *line, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(line->text + line->len, sizeof line->text - line->len, fmt, args);
  va_end(args);
  line->len += (size_t)n < sizeof line->text - line->len ? (size_t)n : sizeof line->text - line->len - 1;
}

/* Bytes that are no UTF-8 cannot stand in JSON: U+FFFD takes their place. */
static void line_add_json(struct line *line, const char *text) {
  line_add(line, "\"");
  for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
    n = zps_text_printable(text, left);
    for (size_t i = 0; i < n; i++) line_add(line, "%s%c", text[i] == '"' || text[i] == '\\' ? "\\" : "", text[i]);
    if (n == left) break;
    const unsigned char byte = (unsigned char)text[n++];
    line_add(line, "\\u%04x", byte < 0x80 ? byte : 0xfffdu);
  }
  line_add(line, "\"");
}

static void add_field(void *ctx, const char *name, const char *value, bool is_number) {
  struct line *const line = ctx;
  line_add(line, "\"%s\":", name);
  if (is_number)
    line_add(line, "%s", value);
  else
    line_add_json(line, value);
  line_add(line, ",");
}

static void line_make(struct line *line, const struct zps_log_line *from) {
  const char *const level = level_names[from->level];
  struct timespec now;
  struct tm tm;
  char stamp[32];
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &tm);
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
  const int ms = (int)(now.tv_nsec / 1000000);
  const bool is_journal = zps_log_is_journal();
  line->len = 0;
  if (is_journal) line_add(line, "<%c>", zps_log_priority(from->level));
  if (state.format == ZPS_LOG_JSON) {
    line_add(line, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"component\":\"%s\",", stamp, ms, level, from->component);
    zps_log_each_field(&from->fields, add_field, line);
    line_add(line, "\"text\":");
    line_add_json(line, from->text);
    line_add(line, "}\n");
  } else if (is_journal) {
    line_add(line, "%s: %s\n", from->component, from->text);
  } else {
    line_add(line, "%s.%03dZ %-5s %s: %s\n", stamp, ms, level, from->component, from->text);
  }
}

/* ---- A descriptor that is no stderr ---- */

static struct {
  bool is_known, is_closed;
  dev_t device;
  ino_t inode;
} first_stderr;

void zps_log_look_at_stderr(void) {
  struct stat stat;
  pthread_mutex_lock(&state.lock);
  if (!first_stderr.is_known) {
    first_stderr.is_known = true;
    first_stderr.is_closed = fstat(STDERR_FILENO, &stat) != 0;
    if (!first_stderr.is_closed) first_stderr.device = stat.st_dev, first_stderr.inode = stat.st_ino;
  }
  pthread_mutex_unlock(&state.lock);
}

/* A program may redirect its stderr to a file, a pipe or a terminal at any time. */
static bool is_stderr(void) {
  struct stat stat;
  if (!first_stderr.is_known) return true;
  if (first_stderr.is_closed || fstat(STDERR_FILENO, &stat) != 0) return false;
  if (stat.st_dev == first_stderr.device && stat.st_ino == first_stderr.inode) return true;
  return S_ISREG(stat.st_mode) || S_ISFIFO(stat.st_mode) || S_ISCHR(stat.st_mode);
}

/* ---- A reader that does not keep up ---- */

int zps_log_put_stderr(const struct zps_log_line *from) {
  static struct line rest; /* of a line that went out in part: it comes ahead of the next one */
  if (!is_stderr()) return 0;
  while (rest.len > 0) {
    const ssize_t n = zps_write_nowait(STDERR_FILENO, rest.text, rest.len);
    if (n <= 0) return n < 0 ? errno : EAGAIN;
    rest.len -= (size_t)n;
    memmove(rest.text, rest.text + n, rest.len);
  }
  struct line line;
  line_make(&line, from);
  const ssize_t n = zps_write_nowait(STDERR_FILENO, line.text, line.len);
  if (n < 0) return errno;
  rest.len = line.len - (size_t)n;
  memcpy(rest.text, line.text + n, rest.len);
  return 0;
}

/* Lines that found no room, under the log's lock. */
static struct {
  unsigned n;
  int why; /* errno of the first one */
  zps_log_put_fn put;
  /* The last one that was an error; error empty: none was. */
  char component[32], error[TEXT_MAX], names[N_NAMES][ZPS_LOG_FIELD_MAX + 1];
  struct zps_log_fields fields;
} dropped;

static const char *keep_name(unsigned i, const char *name) {
  if (!name) return NULL;
  snprintf(dropped.names[i], sizeof dropped.names[i], "%s", name);
  return dropped.names[i];
}

static void keep_error(const struct zps_log_line *line) {
  snprintf(dropped.component, sizeof dropped.component, "%s", line->component);
  snprintf(dropped.error, sizeof dropped.error, "%s", line->text);
  dropped.fields = line->fields;
  dropped.fields.job = keep_name(0, line->fields.job);
  dropped.fields.server = keep_name(1, line->fields.server);
  dropped.fields.tensor = keep_name(2, line->fields.tensor);
  dropped.fields.peer = keep_name(3, line->fields.peer);
}

static int put_error(void) {
  return dropped.put(&(struct zps_log_line){
      .level = ZPS_LOG_ERROR, .component = dropped.component, .text = dropped.error, .fields = dropped.fields});
}

static bool tell_dropped(zps_log_put_fn put) {
  char text[160];
  if (dropped.n == 0) return true;
  snprintf(text, sizeof text, "%u line%s of the log %s dropped: %s", dropped.n, dropped.n == 1 ? "" : "s",
           dropped.n == 1 ? "was" : "were",
           dropped.why == EAGAIN ? "the reader of stderr did not keep up" : strerror(dropped.why));
  if (put(&(struct zps_log_line){.level = ZPS_LOG_WARN, .component = "log", .text = text}) != 0) return false;
  dropped.n = 0;
  return true;
}

void zps_log_deliver(zps_log_put_fn put, const struct zps_log_line *line) {
  int why = EAGAIN;
  if (tell_dropped(put) && (why = put(line)) == 0) {
    dropped.error[0] = '\0';
    return;
  }
  if (dropped.n++ == 0) dropped.why = why;
  dropped.put = put;
  if (line->level == ZPS_LOG_ERROR) keep_error(line);
}

void zps_log_flush(unsigned timeout_ms) {
  const uint64_t end_ns = zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS;
  pthread_mutex_lock(&state.lock);
  while (dropped.n > 0) {
    if (dropped.error[0]) dropped.n--; /* this one comes after all */
    const bool is_told = tell_dropped(dropped.put);
    if (is_told && (!dropped.error[0] || put_error() == 0)) break;
    if (dropped.error[0]) dropped.n++;
    const uint64_t now_ns = zps_clock_ns();
    if (now_ns >= end_ns) break;
    struct pollfd look = {.fd = STDERR_FILENO, .events = POLLOUT};
    poll(&look, 1, (int)((end_ns - now_ns) / ZPS_NS_PER_MS) + 1);
    if (look.revents & ~POLLOUT) break; /* nobody will ever read it */
    /* A pipe that is writable may still have no room for a whole line. */
    if (look.revents) poll(NULL, 0, 1);
  }
  dropped.error[0] = '\0';
  pthread_mutex_unlock(&state.lock);
}

static void write_text(enum zps_log_level level, const char *component, const char *text) {
  const struct zps_log_line line = {.level = level, .component = component, .text = text, .fields = fields_now()};
  pthread_mutex_lock(&state.lock);
  if (state.sink) {
    state.sink(state.ctx, &line);
  } else {
    zps_log_deliver(zps_log_put_stderr, &line);
  }
  pthread_mutex_unlock(&state.lock);
}

void zps_log_write_failure(enum zps_log_level level, const char *component, const struct zps_error *error) {
  zps_log_about(.code = error->code);
  write_text(level, component, error->text);
}

struct zps_log_limit zps_log_strangers;

bool zps_log_limit_pass(struct zps_log_limit *limit, unsigned *suppressed_p) {
  const long long now_ms = (long long)(zps_clock_ns() / ZPS_NS_PER_MS);
  long long last_ms = atomic_load(&limit->last_ms);
  if (last_ms != 0 && now_ms - last_ms < 1000) {
    atomic_fetch_add(&limit->suppressed, 1);
    return false;
  }
  if (!atomic_compare_exchange_strong(&limit->last_ms, &last_ms, now_ms)) {
    atomic_fetch_add(&limit->suppressed, 1);
    return false;
  }
  *suppressed_p = atomic_exchange(&limit->suppressed, 0);
  return true;
}

void zps_log_write(enum zps_log_level level, const char *component, const char *fmt, ...) {
  char text[TEXT_MAX];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  write_text(level, component, text);
}

void zps_log_write_limited(struct zps_log_limit *limit, enum zps_log_level level, const char *component,
                           const char *fmt, ...) {
  char text[TEXT_MAX];
  unsigned suppressed = 0;
  va_list args;
  /* The clock is looked at whatever the level: what is logged changes nothing else. */
  if (!zps_log_limit_pass(limit, &suppressed) || (int)level > zps_log_threshold) return;
  va_start(args, fmt);
  vsnprintf(text, sizeof text - NOTE_MAX, fmt, args);
  va_end(args);
  const size_t len = strlen(text);
  if (suppressed) snprintf(text + len, sizeof text - len, " (%u similar lines left out before this one)", suppressed);
  write_text(level, component, text);
}
