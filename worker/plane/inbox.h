/*
 * Messages from API and pool threads to the engine thread, embedded in their owners' objects: no allocation, no limit,
 * in the order sent. One engine command stands for all that wait, so that the engine's bounded queue cannot fill up.
 */
#ifndef ZPS_WORKER_PLANE_INBOX_H
#define ZPS_WORKER_PLANE_INBOX_H

#include <pthread.h>
#include <stddef.h>

#include "common/session/engine.h"

#define zps_owner_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

struct zps_mail {
  void (*run)(struct zps_mail *mail); /* on the engine thread; may free or send `mail` again */
  struct zps_mail *next;              /* the inbox's */
};

struct zps_inbox {
  struct zps_command command;
  struct zps_engine *engine;
  pthread_mutex_t lock;
  struct zps_mail *head, **tail;
  bool armed; /* the command is in the engine's queue, or about to be */
};

/* `engine` is borrowed. The inbox must outlive the engine. */
void zps_inbox_init(struct zps_inbox *inbox);
void zps_inbox_fini(struct zps_inbox *inbox);
/* From any thread, once the engine is set. `mail` is the inbox's until it runs. */
void zps_inbox_send(struct zps_inbox *inbox, struct zps_mail *mail);
/* On the engine thread: runs what waits. */
void zps_inbox_drain(struct zps_inbox *inbox);

#endif
