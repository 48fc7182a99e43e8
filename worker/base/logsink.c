#include "worker/base/logsink.h"

#include <pthread.h>

#include "common/base/log.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct zps_worker_options *holder;

static void forward(void *ctx, enum zps_log_level level, const char *component, const char *text) {
  const struct zps_worker_options *options = ctx;
  options->log(options->log_ctx, (int)level, component, text);
}

void zps_worker_log_take(const struct zps_worker_options *options) {
  zps_log_set_level((enum zps_log_level)options->log_level);
  if (!options->log) return;
  pthread_mutex_lock(&lock);
  holder = options;
  zps_log_set_sink(forward, (void *)options);
  pthread_mutex_unlock(&lock);
}

void zps_worker_log_drop(const struct zps_worker_options *options) {
  pthread_mutex_lock(&lock);
  if (holder == options) {
    holder = NULL;
    zps_log_set_sink(NULL, NULL);
  }
  pthread_mutex_unlock(&lock);
}
