#include <inttypes.h>

#include "worker/plane/plane.h"

void zps_plane_wait_pull(struct zps_plane *plane, struct zps_served_part *part) {
  part->next_pull = NULL;
  *plane->pulls_tail = part;
  plane->pulls_tail = &part->next_pull;
  plane->pump = true;
}

void zps_plane_wait_push(struct zps_plane *plane, struct zps_round *round) {
  round->waits_memory = true;
  round->memory_next = NULL;
  *plane->pushes_tail = round;
  plane->pushes_tail = &round->memory_next;
  plane->pump = true;
}

void zps_plane_wait_memory(struct zps_plane *plane, struct zps_round *round) {
  if (round->waits_memory) return;
  struct zps_round **at = &plane->waiting_rounds;
  while (*at) at = &(*at)->memory_next;
  round->waits_memory = true;
  round->memory_next = NULL;
  *at = round;
}

/* Takes a round out of a list of waiting ones; where the list ends. */
static struct zps_round **take_out(struct zps_round **at, const struct zps_round *round) {
  while (*at) {
    if (*at == round) {
      *at = round->memory_next;
    } else {
      at = &(*at)->memory_next;
    }
  }
  return at;
}

void zps_plane_forget_waiting(struct zps_plane *plane, struct zps_round *round) {
  struct zps_served_part **part_at = &plane->pulls;
  while (*part_at) {
    if ((*part_at)->task.round == round) {
      *part_at = (*part_at)->next_pull;
    } else {
      part_at = &(*part_at)->next_pull;
    }
  }
  plane->pulls_tail = part_at;
  plane->pushes_tail = take_out(&plane->pushes, round);
  take_out(&plane->waiting_rounds, round);
  round->waits_memory = false;
  plane->pump = true;
}

static void fail_for_memory(struct zps_plane *plane, struct zps_round *round, zps_err_t err) {
  zps_round_fail(round, err,
                 "no registered memory for it: the limit is %" PRIu64 " bytes, %" PRIu64
                 " are in use; raise ZENPS_MEMORY_LIMIT, or the limit of locked memory",
                 plane->memory_limit_bytes, plane->push_held + plane->pull_held);
}

/* Each in turn, also behind one that must go on waiting: it may be the one whose end frees memory. */
static void serve_waiting(struct zps_plane *plane) {
  for (struct zps_round *round = plane->waiting_rounds, *next; round; round = next) {
    next = round->memory_next;
    const zps_err_t err = round->ops->take_memory(round);
    if (err == ZPS_ERR_AGAIN) continue;
    take_out(&plane->waiting_rounds, round);
    round->waits_memory = false;
    if (err != ZPS_OK) fail_for_memory(plane, round, err);
  }
}

void zps_plane_pump(struct zps_plane *plane) {
  while (plane->pump) {
    plane->pump = false;
    serve_waiting(plane);
    struct zps_served_part *part;
    while ((part = plane->pulls) != NULL) {
      const zps_err_t err = zps_served_part_read(part);
      if (err == ZPS_ERR_AGAIN) return;
      plane->pulls = part->next_pull;
      if (!plane->pulls) plane->pulls_tail = &plane->pulls;
      if (err != ZPS_OK) fail_for_memory(plane, part->task.round, err);
    }
    struct zps_round *round;
    while ((round = plane->pushes) != NULL) {
      const zps_err_t err = round->ops->take_memory(round);
      if (err == ZPS_ERR_AGAIN) return;
      plane->pushes = round->memory_next;
      if (!plane->pushes) plane->pushes_tail = &plane->pushes;
      round->waits_memory = false;
      if (err != ZPS_OK) fail_for_memory(plane, round, err);
    }
  }
}
