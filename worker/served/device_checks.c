/* Checksums of what the fabric reads and writes in device memory, where no processor of the host sees it: the device
 * makes the Poly1305, of all slices of a push at once, and of all sums that have landed while it was busy with others.
 */
#include "common/base/container.h"
#include "common/session/mac.h"
#include "worker/served/served.h"

_Static_assert((int)ZPS_MAC_KEY_BYTES >= (int)ZPS_DEVICE_KEY_BYTES, "the key of a device's Poly1305");
_Static_assert((int)ZPS_MAC_HASH_BYTES == (int)ZPS_DEVICE_TAG_BYTES, "a device's Poly1305");

/* Pinned memory for the tags of all partitions. */
static zps_err_t need_tags(const struct zps_served_round *round, struct zps_device_tag **tags_p,
                           struct zps_error *error) {
  struct zps_device *const device = round->base.device->device;
  void *at = *tags_p;
  if (at) return ZPS_OK;
  const zps_err_t code =
      device->ops->allocate(device, ZPS_MEMORY_PINNED, round->base.tensor->part.n_parts * sizeof **tags_p, &at, error);
  *tags_p = at;
  return code;
}

/* ------------------------------------------------------------ slices that are pushed */

static bool is_hashed(const struct zps_served_round *round) {
  return round->base.plane->checks && zps_device_push_is_direct(round);
}

zps_err_t zps_device_push_hash(struct zps_served_round *round, struct zps_error *error) {
  struct zps_device_push *const push = &round->device_push;
  struct zps_device *const device = round->base.device->device;
  uint32_t n = 0;
  if (!is_hashed(round) || push->slices_bytes == push->small_bytes) return ZPS_OK;
  const zps_err_t code = need_tags(round, &push->tags, error);
  if (code != ZPS_OK) return code;
  for (; n < round->base.tensor->part.n_parts; n++) {
    const bool is_read = push->offsets[n] >= push->small_bytes; /* others travel inside frames */
    push->tags[n] =
        (struct zps_device_tag){.at_on_device = push->outs[n], .len_bytes = is_read ? round->parts[n].push_bytes : 0};
  }
  return device->ops->poly1305(device, zps_checks_key(round->base.plane->checks), push->tags, n, round->base.in.stream,
                               error);
}

uint64_t zps_device_push_sum(const struct zps_served_part *part) {
  const struct zps_served_round *const round = zps_served_of(part->task.round);
  return is_hashed(round) ? zps_checks_sum_of(round->base.plane->checks, round->device_push.tags[part->task.arg].tag)
                          : 0;
}

/* ------------------------------------------------------------ sums that are read */

static void hash_run(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_device *const device = round->base.device->device;
  struct zps_error error, ignored;
  uint32_t n = 0;
  zps_err_t code = zps_device_pull_prepare(round, &error);
  if (code == ZPS_OK) code = need_tags(round, &pull->tags, &error);
  if (code == ZPS_OK) {
    for (const struct zps_served_fetch *fetch = pull->hashing; fetch; fetch = fetch->next)
      pull->tags[n++] =
          (struct zps_device_tag){.at_on_device = fetch->part->sum, .len_bytes = fetch->part->result.len_bytes};
    code = device->ops->poly1305(device, zps_checks_key(round->base.plane->checks), pull->tags, n,
                                 round->base.out->stream, &error);
    const zps_err_t waited = zps_device_pull_wait(round, code == ZPS_OK ? &error : &ignored);
    if (code == ZPS_OK) code = waited;
  }
  if (code != ZPS_OK) zps_round_task_fail(task, &error);
}

/* The bytes of a round that is over may be any. */
static void answer(struct zps_served_round *round, bool has_tags) {
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_served_fetch *fetch = pull->hashing;
  pull->hashing = NULL;
  for (uint32_t i = 0; fetch; i++) {
    struct zps_served_fetch *const next = fetch->next;
    zps_checks_hashed(&fetch->read, has_tags ? pull->tags[i].tag : NULL);
    fetch = next;
  }
}

static void hash_done(struct zps_round_task *task);

/* A round that is over submits nothing more: the stream is the caller's again. */
static void start(struct zps_served_round *round) {
  struct zps_device_pull *const pull = &round->device_pull;
  if (!pull->landed) return;
  pull->hashing = pull->landed;
  pull->landed = NULL;
  if (zps_round_machine_over(round->base.machine)) {
    answer(round, false);
    return;
  }
  round->hash =
      (struct zps_round_task){.round = &round->base, .run = hash_run, .done = hash_done, .is_always_done = true};
  zps_round_task_start(&round->hash, round->base.device->out_pool);
}

static void hash_done(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  answer(round, !task->round->has_work_error);
  start(round);
}

void zps_device_pull_hash(struct zps_checked_read *read) {
  struct zps_served_fetch *const fetch = zps_container_of(read, struct zps_served_fetch, read);
  struct zps_served_round *const round = zps_served_of(fetch->part->task.round);
  struct zps_device_pull *const pull = &round->device_pull;
  if (!pull->landed) pull->landed_tail = &pull->landed;
  fetch->next = NULL;
  *pull->landed_tail = fetch;
  pull->landed_tail = &fetch->next;
  if (!pull->hashing) start(round);
}
