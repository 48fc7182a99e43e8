#include "common/control/strangers.h"

#include "common/base/clock.h"

void zps_strangers_add(struct zps_strangers *strangers, struct zps_stranger *stranger, struct zps_origin origin,
                       uint64_t now_ns) {
  *stranger = (struct zps_stranger){.prev = strangers->newest, .origin = origin, .came_ns = now_ns, .is_listed = true};
  *(strangers->newest ? &strangers->newest->next : &strangers->oldest) = stranger;
  strangers->newest = stranger;
  strangers->n++;
}

void zps_strangers_remove(struct zps_strangers *strangers, struct zps_stranger *stranger) {
  if (!stranger->is_listed) return;
  *(stranger->prev ? &stranger->prev->next : &strangers->oldest) = stranger->next;
  *(stranger->next ? &stranger->next->prev : &strangers->newest) = stranger->prev;
  stranger->is_listed = false;
  strangers->n--;
}

enum zps_strangers_verdict zps_strangers_judge(const struct zps_strangers *strangers,
                                               const struct zps_stranger *stranger, uint64_t read_ns,
                                               struct zps_stranger **whom_p, unsigned *n_p, uint64_t *until_ns_p) {
  /* The oldest first, of those that have said nothing [0], and of all others [1]. */
  struct zps_stranger *here[2] = {NULL, NULL}, *all[2] = {NULL, NULL};
  unsigned n_here = 0;
  for (struct zps_stranger *other = strangers->oldest; other; other = other->next) {
    if (!all[other->has_spoken]) all[other->has_spoken] = other;
    if (!zps_origin_is(&other->origin, &stranger->origin)) continue;
    if (!here[other->has_spoken]) here[other->has_spoken] = other;
    n_here++;
  }
  const bool here_is_full = n_here > ZPS_STRANGERS_OF_ORIGIN_MAX;
  if (!here_is_full && strangers->n <= ZPS_STRANGERS_MAX) return ZPS_STRANGER_FITS;
  struct zps_stranger *const *const among = here_is_full ? here : all;
  *whom_p = among[0] ? among[0] : among[1];
  *n_p = (here_is_full ? n_here : strangers->n) - 1;
  *until_ns_p = (*whom_p)->came_ns + ZPS_STRANGERS_PATIENCE_MS * ZPS_NS_PER_MS;
  return read_ns < *until_ns_p ? ZPS_STRANGER_WAITS : ZPS_STRANGER_MAKES_ROOM;
}
