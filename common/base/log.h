/*
 * Logging. One line per event: time, level, component, text (lower case, exact cause).
 *
 * Each .c file that logs defines ZPS_LOG_COMPONENT before it includes this header. The level is checked before the
 * arguments are evaluated. The sink is process-wide (the only global of the code base): the default writes text to
 * stderr; a daemon sets format and level from its configuration, the worker library forwards to the caller's callback.
 * Thread-safe.
 */
#ifndef ZPS_BASE_LOG_H
#define ZPS_BASE_LOG_H

#include <stdint.h>

#include "common/base/err.h"

enum zps_log_level { ZPS_LOG_ERROR, ZPS_LOG_WARN, ZPS_LOG_INFO, ZPS_LOG_DEBUG, ZPS_LOG_TRACE };
enum zps_log_format { ZPS_LOG_TEXT, ZPS_LOG_JSON };

/* The subject of a line, for programs: fields of JSON lines and of the journal's entries, beside the sentence. Names
 * are borrowed; NULL, and ZPS_OK, are no field. */
struct zps_log_fields {
  const char *job, *server, *tensor, *peer; /* peer: the other end of a connection */
  bool has_rank, has_step;
  uint32_t rank;
  uint64_t step;
  zps_err_t code;
};
#define ZPS_LOG_RANK(number) .has_rank = true, .rank = (number)
#define ZPS_LOG_STEP(number) .has_step = true, .step = (number)

struct zps_log_line {
  enum zps_log_level level;
  const char *component, *text;
  struct zps_log_fields fields;
};

/* The line is borrowed during the call. Called under the log's lock: it must not log. */
typedef void (*zps_log_sink_fn)(void *ctx, const struct zps_log_line *line);

void zps_log_set_level(enum zps_log_level level);
void zps_log_set_format(enum zps_log_format format);
/* NULL restores the default sink: stderr. */
void zps_log_set_sink(zps_log_sink_fn sink, void *ctx);
/* Writes a line without waiting: 0, or the errno of a line that found no room. */
typedef int (*zps_log_put_fn)(const struct zps_log_line *line);
/* A line of text or JSON. When stderr is the journal it begins with "<N>", the priority, and text has no time. Called
 * under the log's lock. */
int zps_log_put_stderr(const struct zps_log_line *line);
/* For sinks that use such a function. No thread waits for a reader: a line that finds no room is dropped and counted,
 * and the next line that gets through comes after a line with the count. */
void zps_log_deliver(zps_log_put_fn put, const struct zps_log_line *line);
/* Before the end of a process: a reader that reads again within this time still gets the count, and the last error
 * when that was dropped. */
void zps_log_flush(unsigned timeout_ms);
/* For a library, whose program may have closed descriptor 2: called before it opens anything. If 2 is closed then,
 * nothing is ever written there, because it will be a socket. If it becomes another socket later, nothing is, either.
 * The first call counts. */
void zps_log_look_at_stderr(void);
/* Whether stderr is the journal's: JOURNAL_STREAM names it, by device and inode. A log that was redirected is not, even
 * if that variable is still there. */
bool zps_log_is_journal(void);
/* syslog's, as a digit. */
char zps_log_priority(enum zps_log_level level);
/* "error".."trace". */
const char *zps_log_level_name(enum zps_log_level level);
/* Calls `each` for every field there is, always in the same order: name "job" and so on, value cut to ZPS_LOG_FIELD_MAX
 * bytes. */
#define ZPS_LOG_FIELD_MAX 128u
typedef void zps_log_each_fn(void *ctx, const char *name, const char *value, bool is_number);
void zps_log_each_field(const struct zps_log_fields *fields, zps_log_each_fn *each, void *ctx);

extern _Atomic int zps_log_threshold; /* read by the macros only */
void zps_log_write(enum zps_log_level level, const char *component, const char *fmt, ...) ZPS_PRINTF(3, 4);

#define ZPS_LOG_AT(level, ...)                                                                     \
  do {                                                                                             \
    if ((int)(level) <= zps_log_threshold) zps_log_write((level), ZPS_LOG_COMPONENT, __VA_ARGS__); \
  } while (0)
#define zps_log_error(...) ZPS_LOG_AT(ZPS_LOG_ERROR, __VA_ARGS__)
#define zps_log_warn(...) ZPS_LOG_AT(ZPS_LOG_WARN, __VA_ARGS__)
#define zps_log_info(...) ZPS_LOG_AT(ZPS_LOG_INFO, __VA_ARGS__)
#define zps_log_debug(...) ZPS_LOG_AT(ZPS_LOG_DEBUG, __VA_ARGS__)
#define zps_log_trace(...) ZPS_LOG_AT(ZPS_LOG_TRACE, __VA_ARGS__)

/* Logs the sentence of an error, with its code as a field. */
void zps_log_write_failure(enum zps_log_level level, const char *component, const struct zps_error *error);
#define zps_log_failure(level, error)                                                                  \
  do {                                                                                                 \
    if ((int)(level) <= zps_log_threshold) zps_log_write_failure((level), ZPS_LOG_COMPONENT, (error)); \
  } while (0)

/* Scopes. A scope is the subject of all lines of its thread from here to the end of the block:
 *
 *     zps_log_about(.job = job->name, ZPS_LOG_RANK(rank->rank));
 *
 * An inner scope adds to the outer ones. One that names a job hides their server, rank, tensor and step, which belong
 * to another subject. Names must outlive the block, or at least its last line. */
struct zps_log_scope {
  struct zps_log_fields fields;
  bool is_apart; /* outer scopes are hidden */
  const struct zps_log_scope *outer;
};
void zps_log_scope_begin(struct zps_log_scope *scope);
void zps_log_scope_end(const struct zps_log_scope *scope);
#define ZPS_LOG_SCOPE_NAME_OF(line) log_scope_##line
#define ZPS_LOG_SCOPE_NAME(line) ZPS_LOG_SCOPE_NAME_OF(line)
#define ZPS_LOG_SCOPE(...)                                                                                       \
  struct zps_log_scope ZPS_LOG_SCOPE_NAME(__LINE__) __attribute__((cleanup(zps_log_scope_end))) = {__VA_ARGS__}; \
  zps_log_scope_begin(&ZPS_LOG_SCOPE_NAME(__LINE__))
#define zps_log_about(...) ZPS_LOG_SCOPE(.fields = {__VA_ARGS__})
/* For work that has another subject than its caller's. */
#define zps_log_about_else() ZPS_LOG_SCOPE(.is_apart = true)

/* For events that a peer can cause at will: lets through the first of every second per call site and counts the rest,
 * which the next line reports: "... (17 similar lines left out before this one)". */
struct zps_log_limit {
  _Atomic long long last_ms;
  _Atomic unsigned suppressed;
};
bool zps_log_limit_pass(struct zps_log_limit *limit, unsigned *suppressed_p);
void zps_log_write_limited(struct zps_log_limit *limit, enum zps_log_level level, const char *component,
                           const char *fmt, ...) ZPS_PRINTF(4, 5);
#define zps_log_warn_limited(...)                                                 \
  do {                                                                            \
    static struct zps_log_limit limit_;                                           \
    zps_log_write_limited(&limit_, ZPS_LOG_WARN, ZPS_LOG_COMPONENT, __VA_ARGS__); \
  } while (0)

/* Warns of what strangers may cause in many places. All these places share one line a second: a flood from all of them
 * must not fill the log. */
extern struct zps_log_limit zps_log_strangers;
#define zps_log_warn_of_strangers(...) \
  zps_log_write_limited(&zps_log_strangers, ZPS_LOG_WARN, ZPS_LOG_COMPONENT, __VA_ARGS__)

#endif
