#define ZPS_LOG_COMPONENT "inbox"
#include "worker/plane/inbox.h"

#include "common/base/log.h"

static void command_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct zps_inbox *inbox = (struct zps_inbox *)command;
  pthread_mutex_lock(&inbox->lock);
  inbox->armed = false;
  pthread_mutex_unlock(&inbox->lock);
  zps_inbox_drain(inbox);
}

void zps_inbox_init(struct zps_inbox *inbox) {
  *inbox = (struct zps_inbox){.command.run = command_run};
  inbox->tail = &inbox->head;
  pthread_mutex_init(&inbox->lock, NULL);
}

void zps_inbox_fini(struct zps_inbox *inbox) {
  pthread_mutex_destroy(&inbox->lock);
}

void zps_inbox_send(struct zps_inbox *inbox, struct zps_mail *mail) {
  mail->next = NULL;
  pthread_mutex_lock(&inbox->lock);
  *inbox->tail = mail;
  inbox->tail = &mail->next;
  const bool armed = inbox->armed;
  inbox->armed = true;
  pthread_mutex_unlock(&inbox->lock);
  if (armed) return;
  /* Without the lock, which the engine wants as soon as it is awake. Full with one command of ours at most: cannot be.
   * If it were, the engine's next tick would find the mail. */
  const zps_err_t err = zps_engine_post(inbox->engine, &inbox->command);
  if (err == ZPS_OK) return;
  pthread_mutex_lock(&inbox->lock);
  inbox->armed = false;
  pthread_mutex_unlock(&inbox->lock);
  zps_log_warn_limited("the progress thread was not woken: %s", zps_err_str(err));
}

void zps_inbox_drain(struct zps_inbox *inbox) {
  pthread_mutex_lock(&inbox->lock);
  struct zps_mail *mail = inbox->head;
  inbox->head = NULL;
  inbox->tail = &inbox->head;
  pthread_mutex_unlock(&inbox->lock);
  while (mail) {
    struct zps_mail *next = mail->next;
    mail->run(mail);
    mail = next;
  }
}
