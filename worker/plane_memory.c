#include <inttypes.h>

#include "worker/plane.h"

void zps_plane_wait_pull(struct zps_plane *plane, struct zps_worker_part *part) {
  part->next_pull = NULL;
  *plane->pulls_tail = part;
  plane->pulls_tail = &part->next_pull;
  plane->pump = true;
}

void zps_plane_wait_push(struct zps_plane *plane, struct zps_worker_round *round) {
  round->waits_memory = true;
  round->memory_next = NULL;
  *plane->pushes_tail = round;
  plane->pushes_tail = &round->memory_next;
  plane->pump = true;
}

void zps_plane_forget_waiting(struct zps_plane *plane, struct zps_worker_round *round) {
  struct zps_worker_part **part_at = &plane->pulls;
  while (*part_at) {
    if ((*part_at)->task.round == round) {
      *part_at = (*part_at)->next_pull;
    } else {
      part_at = &(*part_at)->next_pull;
    }
  }
  plane->pulls_tail = part_at;
  struct zps_worker_round **round_at = &plane->pushes;
  while (*round_at) {
    if (*round_at == round) {
      *round_at = round->memory_next;
    } else {
      round_at = &(*round_at)->memory_next;
    }
  }
  plane->pushes_tail = round_at;
  round->waits_memory = false;
  plane->pump = true;
}

static void fail_for_memory(struct zps_plane *plane, struct zps_worker_round *round, zps_err_t err) {
  zps_worker_round_fail(round, err,
                        "no registered memory for it: the limit is %" PRIu64 " bytes, %" PRIu64
                        " are in use; raise ZENPS_MEMORY_LIMIT, or the limit of locked memory",
                        plane->memory_limit_bytes, plane->push_held + plane->pull_held);
}

void zps_plane_pump(struct zps_plane *plane) {
  while (plane->pump) {
    plane->pump = false;
    struct zps_worker_part *part;
    while ((part = plane->pulls) != NULL) {
      const zps_err_t err = zps_worker_part_read(part);
      if (err == ZPS_ERR_AGAIN) return;
      plane->pulls = part->next_pull;
      if (!plane->pulls) plane->pulls_tail = &plane->pulls;
      if (err != ZPS_OK) fail_for_memory(plane, part->task.round, err);
    }
    struct zps_worker_round *round;
    while ((round = plane->pushes) != NULL) {
      const zps_err_t err = zps_worker_round_take_buffers(round);
      if (err == ZPS_ERR_AGAIN) return;
      plane->pushes = round->memory_next;
      if (!plane->pushes) plane->pushes_tail = &plane->pushes;
      round->waits_memory = false;
      if (err != ZPS_OK) fail_for_memory(plane, round, err);
    }
  }
}
