/* A group of a job's ranks, as its tensors and their schemes know it. worker/api/group.c opens it. */
#ifndef ZPS_WORKER_BASE_GROUP_H
#define ZPS_WORKER_BASE_GROUP_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "zenps/zenps.h"

#define ZPS_GROUP_NAME_MAX 120u /* bytes: the library's own names of it have some in front */

/* Barriers and broadcasts among the same ranks. */
struct zps_collective {
  pthread_mutex_t lock;        /* one at a time */
  struct zenps_tensor *tensor; /* of the meetings; NULL: there was none yet. The job's */
  uint64_t meetings;           /* begun, so the next one's step */
  uint64_t segments;           /* of broadcasts, begun: the next one's step */
};

struct zenps_group {
  struct zenps_job *job;
  struct zenps_group *next;
  char name[ZPS_GROUP_NAME_MAX + 1];
  bool is_open;   /* under the job's lock. One that is closed stays, for its tensors */
  bool is_linked; /* under the job's `open`: its ranks have made their links to each other */
  struct zps_collective collective;
  uint32_t n_ranks;
  uint32_t ranks[]; /* ascending */
};

/* Under the job's lock. Whether `group` is among its `groups`, and open. */
static inline bool zps_groups_have(const struct zenps_group *groups, const struct zenps_group *group) {
  while (groups && groups != group) groups = groups->next;
  return groups && groups->is_open;
}

/* Those of a job that is being closed. */
static inline void zps_groups_destroy(struct zenps_group *group) {
  for (struct zenps_group *next; group; group = next) {
    next = group->next;
    pthread_mutex_destroy(&group->collective.lock);
    free(group);
  }
}

#endif
