/* The thread in which a process leads, or follows. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/thread.h"
#include "server/state/lead.h"

#define ZPS_LOG_COMPONENT "lead"
#include "common/base/log.h"

struct zps_lead_thread {
  struct zps_lead lead; /* the thread's own */
  char *prefix, *address;
  void (*changed)(void *ctx);
  void *ctx;
  pthread_t thread;

  pthread_mutex_t lock;
  pthread_cond_t wake;
  bool stop;                 /* guarded by lock */
  struct zps_lead_view view; /* guarded by lock; of the last step */
};

/* Whether etcd answers, once when that changes. */
static void tell(const struct zps_lead_view *before, const struct zps_lead_view *now) {
  if (now->state == ZPS_LEAD_LOST || !before->away.code == !now->away.code) return;
  if (!now->away.code)
    zps_log_info("etcd answers again");
  else if (now->state == ZPS_LEAD_LEADS)
    zps_log_warn("etcd does not answer: this coordinator loses its lead in %.1f s, if etcd stays away: %s",
                 (double)(now->until_ns - zps_clock_ns()) / (double)ZPS_NS_PER_S, now->away.text);
  else
    zps_log_warn("etcd does not answer, retrying: %s", now->away.text);
}

static bool differs(const struct zps_lead_view *a, const struct zps_lead_view *b) {
  return a->state != b->state || a->until_ns != b->until_ns || !a->away.code != !b->away.code ||
         strcmp(a->leader, b->leader) != 0;
}

/* False: to stop. */
static bool wait_until(struct zps_lead_thread *thread, uint64_t until_ns) {
  pthread_mutex_lock(&thread->lock);
  while (!thread->stop && zps_thread_wait(&thread->wake, &thread->lock, until_ns)) continue;
  const bool stop = thread->stop;
  pthread_mutex_unlock(&thread->lock);
  return !stop;
}

static void *run(void *arg) {
  struct zps_lead_thread *thread = arg;
  uint64_t next_ns;
  do {
    const struct zps_lead_view before = thread->lead.view;
    next_ns = zps_lead_step(&thread->lead, zps_clock_ns());
    pthread_mutex_lock(&thread->lock);
    thread->view = thread->lead.view;
    const bool stop = thread->stop; /* what a stop has cut short says nothing */
    pthread_mutex_unlock(&thread->lock);
    if (stop) break;
    tell(&before, &thread->lead.view);
    if (differs(&before, &thread->lead.view)) thread->changed(thread->ctx);
  } while (wait_until(thread, next_ns));
  return NULL;
}

static void destroy(struct zps_lead_thread *thread) {
  thread->lead.transport->ops->close(thread->lead.transport);
  pthread_cond_destroy(&thread->wake);
  pthread_mutex_destroy(&thread->lock);
  free(thread->prefix);
  free(thread->address);
  free(thread);
}

zps_err_t zps_lead_start(const struct zps_lead_config *config, struct zps_etcd_transport *transport,
                         void (*changed)(void *ctx), void *ctx, struct zps_lead_thread **thread_p,
                         struct zps_error *error) {
  struct zps_lead_thread *thread = calloc(1, sizeof *thread);
  if (!thread) {
    transport->ops->close(transport);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a thread that follows who leads");
  }
  struct zps_lead_config copy = *config;
  pthread_mutex_init(&thread->lock, NULL);
  zps_thread_cond_init(&thread->wake);
  copy.prefix = thread->prefix = strdup(config->prefix);
  copy.address = thread->address = strdup(config->address);
  zps_lead_init(&thread->lead, &copy, transport);
  thread->changed = changed;
  thread->ctx = ctx;
  zps_err_t err = ZPS_OK;
  if (!copy.prefix || !copy.address)
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for a thread that follows who leads");
  const int status = err ? 0 : zps_thread_start(&thread->thread, run, thread);
  if (status) err = zps_fail_errno(error, ZPS_ERR_NOMEM, status, "cannot start a thread that follows who leads");
  if (err) {
    destroy(thread);
    return err;
  }
  *thread_p = thread;
  return ZPS_OK;
}

void zps_lead_look(struct zps_lead_thread *thread, struct zps_lead_view *view_p) {
  pthread_mutex_lock(&thread->lock);
  *view_p = thread->view;
  pthread_mutex_unlock(&thread->lock);
}

void zps_lead_stop(struct zps_lead_thread *thread) {
  if (!thread) return;
  pthread_mutex_lock(&thread->lock);
  thread->stop = true;
  pthread_cond_signal(&thread->wake);
  pthread_mutex_unlock(&thread->lock);
  struct zps_etcd_transport *const transport = thread->lead.transport;
  transport->ops->interrupt(transport, true);
  pthread_join(thread->thread, NULL);
  transport->ops->interrupt(transport, false);
  zps_lead_resign(&thread->lead);
  destroy(thread);
}
