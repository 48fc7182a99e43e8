#include "worker/base/logsink.h"

#include <pthread.h>

#include "common/base/log.h"

struct callback {
  zenps_log_fn log;
  void *ctx;
};

static struct {
  pthread_mutex_t lock;
  const void *holder;
  struct callback callbacks[2]; /* one is the log's, the other one is made ready */
  unsigned turn;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void forward(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  const struct callback *callback = ctx;
  callback->log(callback->ctx, (int)level, component, text);
}

void zps_worker_log_take(const void *holder, zenps_log_fn log, void *ctx) {
  pthread_mutex_lock(&state.lock);
  state.turn = !state.turn;
  state.callbacks[state.turn] = (struct callback){log, ctx};
  state.holder = holder;
  zps_log_set_sink(forward, &state.callbacks[state.turn]); /* waits for a call of the other one */
  pthread_mutex_unlock(&state.lock);
}

void zps_worker_log_drop(const void *holder) {
  pthread_mutex_lock(&state.lock);
  if (state.holder == holder) {
    state.holder = NULL;
    zps_log_set_sink(NULL, NULL);
  }
  pthread_mutex_unlock(&state.lock);
}
