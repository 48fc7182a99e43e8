#include "server/coordinator/outbox.h"

#include <stdlib.h>
#include <string.h>

struct zps_outbox_entry {
  struct zps_outbox_call call;
  struct zps_outbox_entry *next;
  char text[]; /* call.text */
};

void zps_outbox_init(struct zps_outbox *outbox, unsigned job_max, void *ctx,
                     zps_err_t (*send)(void *ctx, const struct zps_outbox_call *call),
                     void (*dropped)(void *ctx, const struct zps_outbox_call *call)) {
  *outbox = (struct zps_outbox){.job_max = job_max, .ctx = ctx, .send = send, .dropped = dropped};
  outbox->tail = &outbox->first;
}

static void take(struct zps_outbox *outbox, struct zps_outbox_entry **link) {
  struct zps_outbox_entry *entry = *link;
  *link = entry->next;
  if (!*link) outbox->tail = link;
  outbox->n_waiting--;
  free(entry);
}

void zps_outbox_clear(struct zps_outbox *outbox) {
  while (outbox->first) take(outbox, &outbox->first);
}

void zps_outbox_flush(struct zps_outbox *outbox) {
  if (outbox->is_flushing) return;
  outbox->is_flushing = true;
  while (outbox->first && outbox->send(outbox->ctx, &outbox->first->call) != ZPS_ERR_AGAIN)
    take(outbox, &outbox->first);
  outbox->is_flushing = false;
}

/* Whether the server need not hear `other`, which waits, once it is to hear `call`. */
static bool makes_moot(const struct zps_outbox_call *call, const struct zps_outbox_call *other) {
  if (call->job_id != other->job_id) return false;
  if (call->type == ZPS_ACT_JOB_CLOSE) return true;
  return call->type == ZPS_ACT_TENSOR_FORGET && other->type == ZPS_ACT_TENSOR_OPEN && other->tensor == call->tensor;
}

/* True: the server has not heard of what the call ends, so there is nothing to end. */
static bool drop_moot(struct zps_outbox *outbox, const struct zps_outbox_call *call) {
  const enum zps_action_type begins = call->type == ZPS_ACT_JOB_CLOSE ? ZPS_ACT_JOB_OPEN : ZPS_ACT_TENSOR_OPEN;
  bool is_unheard = false, had_close = false;
  for (struct zps_outbox_entry **link = &outbox->first; *link;) {
    const struct zps_outbox_call *other = &(*link)->call;
    if (!makes_moot(call, other)) {
      link = &(*link)->next;
      continue;
    }
    is_unheard = is_unheard || other->type == begins;
    had_close = had_close || other->type == ZPS_ACT_JOB_CLOSE; /* Of an opening before, which it has heard. */
    outbox->dropped(outbox->ctx, other);
    take(outbox, link);
  }
  return is_unheard && !had_close;
}

static unsigned waiting_of(const struct zps_outbox *outbox, uint64_t job_id) {
  unsigned n = 0;
  for (const struct zps_outbox_entry *entry = outbox->first; entry; entry = entry->next)
    n += entry->call.job_id == job_id;
  return n;
}

static zps_err_t append(struct zps_outbox *outbox, const struct zps_outbox_call *call, struct zps_error *error) {
  const size_t text_size = call->text ? strlen(call->text) + 1 : 0;
  struct zps_outbox_entry *entry = malloc(sizeof *entry + text_size);
  if (!entry) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a call that has to wait");
  *entry = (struct zps_outbox_entry){.call = *call};
  if (call->text) entry->call.text = memcpy(entry->text, call->text, text_size);
  *outbox->tail = entry;
  outbox->tail = &entry->next;
  outbox->n_waiting++;
  return ZPS_OK;
}

zps_err_t zps_outbox_put(struct zps_outbox *outbox, const struct zps_outbox_call *call, struct zps_error *error) {
  if (drop_moot(outbox, call)) return ZPS_OK;
  zps_outbox_flush(outbox);
  if (!outbox->first && outbox->send(outbox->ctx, call) != ZPS_ERR_AGAIN) return ZPS_OK;
  const unsigned n = waiting_of(outbox, call->job_id);
  if (n >= outbox->job_max)
    return zps_fail(error, ZPS_ERR_BUSY, "%u calls of the job wait for it already, and at most %u may", n,
                    outbox->job_max);
  return append(outbox, call, error);
}
