/* Groups of ranks: they belong to their job, and stay until it is closed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"
#include "worker/api/job.h"
#include "worker/base/error.h"
#include "worker/base/group.h"

/* ------------------------------------------------------------ the list of ranks */

static int compare(const void *a, const void *b) {
  const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* The group as it is asked for, its ranks in order; it belongs to no job yet. */
static zps_err_t make(struct zenps_job *job, const char *name, const int *ranks, uint32_t n, struct zenps_group **p,
                      struct zps_error *error) {
  const uint64_t world = job->options.world;
  bool has_me = false;
  if (n < 1 || n > world)
    return zps_fail(error, ZPS_ERR_INVALID, "group %s: %" PRIu32 " ranks; 1 to %" PRIu64 " can be", name, n, world);
  for (uint32_t i = 0; i < n; i++) {
    if (ranks[i] < 0 || (uint64_t)ranks[i] >= world)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "group %s: ranks[%" PRIu32 "] is %d, in a world of %" PRIu64 ": ranks are 0 to world - 1", name,
                      i, ranks[i], world);
    has_me = has_me || (uint64_t)ranks[i] == job->options.rank;
  }
  if (!has_me)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "group %s: rank %" PRIu64 " opens it, but is none of its ranks: only these open a group", name,
                    job->options.rank);
  struct zenps_group *group = calloc(1, sizeof *group + n * sizeof group->ranks[0]);
  if (!group) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for group %s", name);
  group->job = job;
  group->n_ranks = n;
  snprintf(group->name, sizeof group->name, "%s", name);
  for (uint32_t i = 0; i < n; i++) group->ranks[i] = (uint32_t)ranks[i];
  qsort(group->ranks, n, sizeof group->ranks[0], compare);
  for (uint32_t i = 1; i < n; i++) {
    const uint32_t rank = group->ranks[i];
    if (rank != group->ranks[i - 1]) continue;
    free(group);
    return zps_fail(error, ZPS_ERR_INVALID, "group %s: rank %" PRIu32 " is in its list twice", name, rank);
  }
  *p = group;
  return ZPS_OK;
}

static bool is_same(const struct zenps_group *a, const struct zenps_group *b) {
  return strcmp(a->name, b->name) == 0 && a->n_ranks == b->n_ranks &&
         memcmp(a->ranks, b->ranks, a->n_ranks * sizeof a->ranks[0]) == 0;
}

/* ------------------------------------------------------------ open */

/* Under the job's lock: the group itself, open or closed before, where it is known. An open one of this name with other
 * ranks is an error, as it is between ranks. */
static zps_err_t find(const struct zenps_job *job, const struct zenps_group *asked, struct zenps_group **known_p,
                      struct zps_error *error) {
  *known_p = NULL;
  for (struct zenps_group *group = job->groups; group; group = group->next) {
    if (is_same(group, asked)) *known_p = group;
    if (group->is_open && strcmp(group->name, asked->name) == 0 && !is_same(group, asked))
      return zps_fail(error, ZPS_ERR_SHAPE,
                      "group %s is open with %" PRIu32
                      " ranks; it cannot be opened with other ones before all of them "
                      "have closed it",
                      group->name, group->n_ranks);
  }
  return ZPS_OK;
}

/* `asked` is consumed. */
static zps_err_t group_open(struct zenps_job *job, struct zenps_group *asked, struct zenps_group **group_p,
                            struct zps_error *error) {
  struct zenps_group *known;
  pthread_mutex_lock(&job->lock);
  zps_err_t err = find(job, asked, &known, error);
  const bool is_open = err == ZPS_OK && known && known->is_open;
  pthread_mutex_unlock(&job->lock);
  if (err == ZPS_OK && !is_open)
    err = zps_membership_group_open(&job->membership, asked->name, asked->ranks, asked->n_ranks,
                                    job->options.round_timeout_ms, error);
  if (err == ZPS_OK && !known) {
    pthread_mutex_init(&asked->collective.lock, NULL);
    pthread_mutex_lock(&job->lock);
    asked->next = job->groups;
    job->groups = known = asked;
    pthread_mutex_unlock(&job->lock);
    asked = NULL;
  }
  if (err == ZPS_OK) {
    pthread_mutex_lock(&job->lock);
    known->is_open = true;
    pthread_mutex_unlock(&job->lock);
    *group_p = known;
  }
  free(asked);
  return err;
}

static zenps_status_t check_job(struct zenps_job *job) {
  pthread_mutex_lock(&job->lock);
  const zenps_status_t status = zps_worker_job_check(job);
  pthread_mutex_unlock(&job->lock);
  return status;
}

zenps_status_t zenps_group_open(zenps_job_t *job, const char *name, const int *ranks, uint32_t n,
                                zenps_group_t **group) {
  struct zenps_group *asked = NULL;
  struct zps_error error;
  if (!job || !name || !ranks || !group)
    return zps_worker_fail(ZPS_ERR_INVALID, "zenps_group_open: job, name, ranks or group is NULL");
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  if (zps_text_check_name("group", name, ZPS_GROUP_NAME_MAX, &error) != ZPS_OK) return zps_worker_raise(&error);
  if (name[0] == '@')
    return zps_worker_fail(ZPS_ERR_INVALID, "group name \"%s\" starts with '@', as the library's own do", name);
  const zenps_status_t status = check_job(job);
  if (status != ZENPS_OK) return status;
  zps_err_t err = make(job, name, ranks, n, &asked, &error);
  if (err == ZPS_OK) err = group_open(job, asked, group, &error);
  return err == ZPS_OK ? ZENPS_OK : zps_first_call(job, zps_worker_raise(&error));
}

/* ------------------------------------------------------------ close */

zenps_status_t zenps_group_close(zenps_group_t *group) {
  struct zps_error error;
  if (!group) return ZENPS_OK;
  struct zenps_job *job = group->job;
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  const zenps_status_t status = check_job(job);
  if (status != ZENPS_OK) return status;
  pthread_mutex_lock(&job->lock);
  const bool was_open = group->is_open;
  group->is_open = false;
  pthread_mutex_unlock(&job->lock);
  if (!was_open) return zps_worker_fail(ZPS_ERR_INVALID, "zenps_group_close: group %s is closed already", group->name);
  const zps_err_t err =
      zps_membership_group_close(&job->membership, group->name, job->options.round_timeout_ms, &error);
  return err == ZPS_OK ? ZENPS_OK : zps_first_call(job, zps_worker_raise(&error));
}
