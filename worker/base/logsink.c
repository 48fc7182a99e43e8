#include "worker/base/logsink.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

enum { LINES_MAX = 1024 }; /* lines that wait for a callback */

struct line {
  struct line *next;
  enum zps_log_level level;
  const char *component; /* behind `text` */
  char text[];
};

/* Calls the callback, on a thread of its own: one that blocks holds up nobody else. */
struct caller {
  zenps_log_fn log;
  void *ctx;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct line *first, **last_p;
  unsigned n, n_dropped;
  bool is_over;
};

static struct {
  pthread_mutex_t lock;
  const void *holder;
  struct caller *caller;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void add(struct caller *caller, enum zps_log_level level, const char *component, const char *text) {
  const size_t len = strlen(text) + 1, component_len = strlen(component) + 1;
  struct line *const line = caller->n < LINES_MAX ? malloc(sizeof *line + len + component_len) : NULL;
  if (!line) {
    caller->n_dropped++;
    return;
  }
  line->next = NULL;
  line->level = level;
  memcpy(line->text, text, len);
  line->component = memcpy(line->text + len, component, component_len);
  *caller->last_p = line;
  caller->last_p = &line->next;
  caller->n++;
}

/* Under the log's lock. */
static void forward(void *ctx, const struct zps_log_line *line) {
  struct caller *const caller = ctx;
  pthread_mutex_lock(&caller->lock);
  if (caller->n_dropped > 0 && caller->n < LINES_MAX) {
    char told[100];
    const unsigned n = caller->n_dropped;
    snprintf(told, sizeof told, "%u line%s of the log %s dropped: the log's callback did not keep up", n,
             n == 1 ? "" : "s", n == 1 ? "was" : "were");
    caller->n_dropped = 0;
    add(caller, ZPS_LOG_WARN, "log", told);
  }
  add(caller, line->level, line->component, line->text);
  pthread_cond_signal(&caller->changed);
  pthread_mutex_unlock(&caller->lock);
}

static void *run(void *ctx) {
  struct caller *const caller = ctx;
  pthread_mutex_lock(&caller->lock);
  for (;;) {
    struct line *const line = caller->first;
    if (!line && caller->is_over) break;
    if (!line) {
      pthread_cond_wait(&caller->changed, &caller->lock);
      continue;
    }
    caller->first = line->next;
    if (!caller->first) caller->last_p = &caller->first;
    caller->n--;
    pthread_mutex_unlock(&caller->lock);
    caller->log(caller->ctx, (int)line->level, line->component, line->text);
    free(line);
    pthread_mutex_lock(&caller->lock);
  }
  pthread_mutex_unlock(&caller->lock);
  return NULL;
}

/* NULL: no memory, or no thread. */
static struct caller *caller_create(zenps_log_fn log, void *ctx) {
  struct caller *const caller = calloc(1, sizeof *caller);
  if (!caller) return NULL;
  caller->log = log;
  caller->ctx = ctx;
  caller->last_p = &caller->first;
  pthread_mutex_init(&caller->lock, NULL);
  pthread_cond_init(&caller->changed, NULL);
  if (pthread_create(&caller->thread, NULL, run, caller) == 0) {
    pthread_setname_np(caller->thread, "zenps-log");
    return caller;
  }
  pthread_cond_destroy(&caller->changed);
  pthread_mutex_destroy(&caller->lock);
  free(caller);
  return NULL;
}

/* When the log no longer forwards to it. */
static void caller_destroy(struct caller *caller) {
  if (!caller) return;
  pthread_mutex_lock(&caller->lock);
  caller->is_over = true;
  pthread_cond_signal(&caller->changed);
  pthread_mutex_unlock(&caller->lock);
  pthread_join(caller->thread, NULL);
  pthread_cond_destroy(&caller->changed);
  pthread_mutex_destroy(&caller->lock);
  free(caller);
}

static void set(const void *holder, struct caller *caller) {
  struct caller *const last = state.caller;
  state.holder = caller ? holder : NULL;
  state.caller = caller;
  zps_log_set_sink(caller ? forward : NULL, caller);
  caller_destroy(last);
}

void zps_worker_log_take(const void *holder, zenps_log_fn log, void *ctx) {
  pthread_mutex_lock(&state.lock);
  struct caller *const caller = caller_create(log, ctx);
  set(holder, caller);
  pthread_mutex_unlock(&state.lock);
  if (!caller) zps_log_write(ZPS_LOG_ERROR, "log", "no thread for the log's callback: the log stays on stderr");
}

void zps_worker_log_drop(const void *holder) {
  pthread_mutex_lock(&state.lock);
  if (state.holder == holder) set(NULL, NULL);
  pthread_mutex_unlock(&state.lock);
}
