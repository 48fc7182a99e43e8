#include "common/base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/text.h"

enum { TEXT_MAX = 1024, NOTE_MAX = 64 };

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

/* Bytes that are no UTF-8 cannot stand in JSON: U+FFFD takes their place. */
static void print_json_string(FILE *out, const char *text) {
  putc('"', out);
  for (size_t left = strlen(text), n; left > 0; text += n, left -= n) {
    n = zps_text_printable(text, left);
    for (size_t i = 0; i < n; i++) {
      if (text[i] == '"' || text[i] == '\\') putc('\\', out);
      putc(text[i], out);
    }
    if (n == left) break;
    const unsigned char byte = (unsigned char)text[n++];
    fprintf(out, "\\u%04x", byte < 0x80 ? byte : 0xfffdu);
  }
  putc('"', out);
}

void zps_log_to_stderr(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  (void)ctx;
  struct timespec now;
  struct tm tm;
  char stamp[32];
  clock_gettime(CLOCK_REALTIME, &now);
  gmtime_r(&now.tv_sec, &tm);
  strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
  const int ms = (int)(now.tv_nsec / 1000000);
  const bool is_journal = zps_log_is_journal();
  flockfile(stderr);
  if (is_journal) fprintf(stderr, "<%c>", zps_log_priority(level));
  if (state.format == ZPS_LOG_JSON) {
    fprintf(stderr, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"component\":\"%s\",\"text\":", stamp, ms,
            level_names[level], component);
    print_json_string(stderr, text);
    fputs("}\n", stderr);
  } else if (is_journal) {
    fprintf(stderr, "%s: %s\n", component, text);
  } else {
    fprintf(stderr, "%s.%03dZ %-5s %s: %s\n", stamp, ms, level_names[level], component, text);
  }
  funlockfile(stderr);
}

static void write_text(enum zps_log_level level, const char *component, const char *text) {
  pthread_mutex_lock(&state.lock);
  if (state.sink) {
    state.sink(state.ctx, level, component, text);
  } else {
    zps_log_to_stderr(NULL, level, component, text);
  }
  pthread_mutex_unlock(&state.lock);
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
