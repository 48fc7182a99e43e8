#include "common/base/queue.h"

#include <pthread.h>
#include <stdlib.h>

struct zps_queue {
  pthread_mutex_t lock;
  void (*wake)(void *ctx);
  void *ctx;
  size_t capacity, head, count;
  void *items[];
};

zps_err_t zps_queue_create(size_t capacity, void (*wake)(void *ctx), void *ctx, struct zps_queue **queue_p) {
  struct zps_queue *queue = calloc(1, sizeof *queue + capacity * sizeof queue->items[0]);
  if (!queue) return ZPS_ERR_NOMEM;
  pthread_mutex_init(&queue->lock, NULL);
  queue->wake = wake;
  queue->ctx = ctx;
  queue->capacity = capacity;
  *queue_p = queue;
  return ZPS_OK;
}

void zps_queue_destroy(struct zps_queue *queue) {
  if (!queue) return;
  pthread_mutex_destroy(&queue->lock);
  free(queue);
}

zps_err_t zps_queue_push(struct zps_queue *queue, void *item) {
  zps_err_t code = ZPS_OK;
  pthread_mutex_lock(&queue->lock);
  if (queue->count == queue->capacity) {
    code = ZPS_ERR_AGAIN;
  } else {
    queue->items[(queue->head + queue->count++) % queue->capacity] = item;
  }
  pthread_mutex_unlock(&queue->lock);
  if (code == ZPS_OK && queue->wake) queue->wake(queue->ctx);
  return code;
}

void *zps_queue_pop(struct zps_queue *queue) {
  void *item = NULL;
  pthread_mutex_lock(&queue->lock);
  if (queue->count > 0) {
    item = queue->items[queue->head];
    queue->head = (queue->head + 1) % queue->capacity;
    queue->count--;
  }
  pthread_mutex_unlock(&queue->lock);
  return item;
}
