/*
 * Groups of ranks that meet: each says that it is there, and hears when all are. A trainer's groups, and the ranks that
 * have made their links to each other: until all have, none may send to another one, which may have posted no receives
 * for it. Those of the job are the group "@links"; those of group g alone are "@links/g".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/text.h"
#include "server/membership/members_impl.h"

#define ZPS_LOG_COMPONENT "members"
#include "common/base/log.h"

#define LINKS "@links"
#define LISTED_MAX 12u

/* ------------------------------------------------------------ a group */

struct zps_member_group *zps_members_group_find(const struct zps_member_job *job, const char *name) {
  struct zps_member_group *group = job->groups;
  while (group && strcmp(group->name, name) != 0) group = group->next;
  return group;
}

/* `ranks` NULL: all of the job. */
static zps_err_t group_create(struct zps_member_job *job, const char *name, const uint32_t *ranks, uint32_t n_ranks,
                              uint32_t first_rank, struct zps_member_group **group_p, struct zps_error *error) {
  struct zps_member_group *group =
      calloc(1, sizeof *group + n_ranks * (sizeof group->members[0] + sizeof group->ranks[0]));
  if (!group) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for group '%s'", name);
  snprintf(group->name, sizeof group->name, "%s", name);
  group->n_ranks = n_ranks;
  group->first_rank = first_rank;
  group->members = (struct zps_group_member *)(group + 1);
  group->ranks = (uint32_t *)(group->members + n_ranks);
  for (uint32_t i = 0; i < n_ranks; i++) group->ranks[i] = ranks ? ranks[i] : i;
  group->next = job->groups;
  job->groups = group;
  job->n_groups++;
  *group_p = group;
  return ZPS_OK;
}

static void group_destroy(struct zps_member_job *job, struct zps_member_group *group) {
  struct zps_member_group **link = &job->groups;
  while (*link != group) link = &(*link)->next;
  *link = group->next;
  job->n_groups--;
  free(group);
}

void zps_members_groups_free(struct zps_member_job *job) {
  while (job->groups) group_destroy(job, job->groups);
}

bool zps_members_group_has(const struct zps_member_group *group, uint32_t rank, uint32_t *place_p) {
  for (uint32_t i = 0; i < group->n_ranks; i++) {
    if (group->ranks[i] != rank) continue;
    *place_p = i;
    return true;
  }
  return false;
}

static bool is_list(const struct zps_member_group *group, const uint32_t *ranks, uint32_t n_ranks) {
  if (!ranks) return true;
  return group->n_ranks == n_ranks && memcmp(group->ranks, ranks, n_ranks * sizeof *ranks) == 0;
}

/* ------------------------------------------------------------ answers */

static void answer(struct zps_members *members, struct zps_member_job *job, const struct zps_member_group *group,
                   uint32_t index, zps_err_t code, const char *text) {
  struct zps_group_member *member = &group->members[index];
  const struct zps_member_rank *rank = job->ranks[group->ranks[index]];
  void *token = member->token;
  member->token = NULL;
  zps_members_act(members, .type = code ? ZPS_ACT_GROUP_FAILED : ZPS_ACT_GROUP_DONE, .client = rank->client,
                  .token = token, .job = job, .group = group, .rank = rank->rank, .code = code, .text = text);
}

/* The rank is there no more. */
static void leave_member(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                         uint32_t index, zps_err_t code, const char *text) {
  if (!group->members[index].here) return;
  if (group->members[index].token) answer(members, job, group, index, code, text);
  group->members[index].here = false;
  group->n_here--;
}

/* All that wait hear this; the group goes when no rank is in it. */
static void fail_waiting(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                         zps_err_t code, const char *text) {
  for (uint32_t i = 0; i < group->n_ranks; i++)
    if (group->members[i].token) leave_member(members, job, group, i, code, text);
  if (group->n_here == 0) group_destroy(job, group);
}

void zps_members_groups_fail(struct zps_members *members, struct zps_member_job *job, zps_err_t code,
                             const char *text) {
  for (struct zps_member_group *group = job->groups, *next; group; group = next) {
    next = group->next;
    fail_waiting(members, job, group, code, text);
  }
}

void zps_members_groups_drop(struct zps_members *members, struct zps_member_job *job, uint32_t rank, bool if_waiting,
                             zps_err_t code, const char *text) {
  for (struct zps_member_group *group = job->groups, *next; group; group = next) {
    uint32_t index;
    next = group->next;
    if (!zps_members_group_has(group, rank, &index) || (if_waiting && !group->members[index].token)) continue;
    leave_member(members, job, group, index, code, text);
    if (group->n_here == 0) group_destroy(job, group);
  }
}

/* ------------------------------------------------------------ open */

/* "0, 3, 6": the first ones, and how many there are. */
static void list_ranks(const uint32_t *ranks, uint32_t n, char *buf, size_t size) {
  buf[0] = '\0';
  for (uint32_t i = 0; i < n && i < LISTED_MAX; i++) zps_text_add(buf, size, "%s%u", i ? ", " : "", ranks[i]);
  if (n > LISTED_MAX) zps_text_add(buf, size, " and %u more", n - LISTED_MAX);
}

/* Under one name two ranks name different ranks. All that wait for the group hear of it; one that has met stays. */
static zps_err_t refuse_list(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                             uint32_t rank, const uint32_t *ranks, uint32_t n_ranks, struct zps_error *error) {
  char theirs[LISTED_MAX * 6 + 24], ours[LISTED_MAX * 6 + 24];
  struct zps_error why;
  list_ranks(group->ranks, group->n_ranks, theirs, sizeof theirs);
  list_ranks(ranks, n_ranks, ours, sizeof ours);
  zps_fail(&why, ZPS_ERR_SHAPE,
           "group '%.60s' is of ranks %s since rank %u (host %.40s) opened it, rank %u (host %.40s) says %s",
           group->name, theirs, group->first_rank, job->ranks[group->first_rank]->host, rank, job->ranks[rank]->host,
           ours);
  if (!group->is_met) fail_waiting(members, job, group, why.code, why.text);
  return zps_fail(error, why.code, "%s", why.text);
}

/* A group with a rank that has left never meets. */
static bool fail_if_left(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group) {
  char text[ZPS_NAME_MAX * 2 + 64];
  for (uint32_t i = 0; i < group->n_ranks; i++) {
    const struct zps_member_rank *other = job->ranks[group->ranks[i]];
    if (other->state == ZPS_RANK_IN) continue;
    snprintf(text, sizeof text, "rank %u (host %s, pid %u) has left job '%s'", other->rank, other->host, other->pid,
             job->name);
    fail_waiting(members, job, group, ZPS_ERR_MISSING, text);
    return true;
  }
  return false;
}

static zps_err_t enter(struct zps_members *members, struct zps_member_client *client, const char *name,
                       const uint32_t *ranks, uint32_t n_ranks, uint64_t timeout_ms, void *token, uint64_t now_ns,
                       struct zps_error *error) {
  struct zps_member_job *job = client->job;
  struct zps_member_group *group = zps_members_group_find(job, name);
  uint32_t index = 0;
  if (group && !is_list(group, ranks, n_ranks))
    return refuse_list(members, job, group, client->rank, ranks, n_ranks, error);
  if (!group && job->n_groups >= members->config.max_tensors)
    return zps_fail(error, ZPS_ERR_QUOTA, "job '%s' has %u groups, and a job may have %u (%s)", job->name,
                    job->n_groups, members->config.max_tensors, zps_config_label("job.max_tensors"));
  if (!group) {
    const zps_err_t err = group_create(job, name, ranks, n_ranks, client->rank, &group, error);
    if (err) return err;
  }
  if (!zps_members_group_has(group, client->rank, &index)) return ZPS_ERR_INTERNAL;
  struct zps_group_member *member = &group->members[index];
  if (member->token)
    return zps_fail(error, ZPS_ERR_BUSY, "rank %u of job '%s' waits for the other ranks' %s%s already", client->rank,
                    job->name, strcmp(name, LINKS) == 0 ? "links" : "opening of group ",
                    strcmp(name, LINKS) == 0 ? "" : name);
  const bool comes_again = group->is_met && !member->here;
  group->n_here += !member->here;
  *member = (struct zps_group_member){
      .here = true, .token = token, .timeout_ms = timeout_ms, .deadline_ns = now_ns + timeout_ms * ZPS_NS_PER_MS};
  if (comes_again) zps_members_note(members, .type = ZPS_NOTE_GROUP, .job = job, .group = group);
  return ZPS_OK;
}

static zps_err_t check_list(const struct zps_member_job *job, const struct zps_group_spec *spec, uint32_t rank,
                            struct zps_error *error) {
  bool is_in = false;
  for (uint32_t i = 0; i < spec->n_ranks; i++) {
    if (spec->ranks[i] >= job->world || (i > 0 && spec->ranks[i] <= spec->ranks[i - 1]))
      return zps_fail(error, ZPS_ERR_INVALID, "group '%s': its ranks must ascend and be below %u", spec->name,
                      job->world);
    is_in = is_in || spec->ranks[i] == rank;
  }
  return is_in ? ZPS_OK
               : zps_fail(error, ZPS_ERR_INVALID, "group '%s': rank %u opens it, but is none of its ranks", spec->name,
                          rank);
}

zps_err_t zps_members_group_open(struct zps_members *members, struct zps_member_client *client,
                                 const struct zps_group_spec *spec, void *token, uint64_t now_ns,
                                 struct zps_error *error) {
  zps_err_t err = zps_members_running(client->job, spec->job_id, error);
  if (err) return err;
  if (!zps_members_name_ok(spec->name) || strcmp(spec->name, LINKS) == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "groups' names are 1 to %u printable bytes, and not " LINKS, ZPS_NAME_MAX);
  err = check_list(client->job, spec, client->rank, error);
  return err ? err
             : enter(members, client, spec->name, spec->ranks, spec->n_ranks, spec->timeout_ms, token, now_ns, error);
}

zps_err_t zps_members_linked(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                             uint64_t timeout_ms, void *token, uint64_t now_ns, struct zps_error *error) {
  const zps_err_t err = zps_members_running(client->job, job_id, error);
  return err ? err : enter(members, client, LINKS, NULL, client->job->world, timeout_ms, token, now_ns, error);
}

/* ------------------------------------------------------------ close, and ranks that do not come */

zps_err_t zps_members_group_close(struct zps_members *members, struct zps_member_client *client, uint64_t job_id,
                                  const char *name, struct zps_error *error) {
  struct zps_member_job *job = client->job;
  const zps_err_t err = zps_members_running(job, job_id, error);
  if (err) return err;
  struct zps_member_group *group = zps_members_group_find(job, name);
  uint32_t index = 0;
  if (!group || !zps_members_group_has(group, client->rank, &index) || !group->members[index].here)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "rank %u of job '%s' has no group '%s' open", client->rank, job->name,
                    name);
  if (group->is_met) zps_members_note(members, .type = ZPS_NOTE_SEAT, .job = job, .group = group, .rank = client->rank);
  zps_members_group_leave(members, job, group, index);
  return ZPS_OK;
}

void zps_members_group_leave(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group,
                             uint32_t index) {
  leave_member(members, job, group, index, ZPS_ERR_CLOSED, "the group was closed meanwhile");
  if (group->n_here == 0) group_destroy(job, group);
}

zps_err_t zps_members_group_meet(struct zps_member_job *job, const char *name, const uint32_t *ranks, uint32_t n_ranks,
                                 uint32_t first_rank, struct zps_member_group **group_p) {
  const zps_err_t err = group_create(job, name, ranks, n_ranks, first_rank, group_p, NULL);
  if (err) return err;
  for (uint32_t i = 0; i < n_ranks; i++) (*group_p)->members[i].here = true;
  (*group_p)->n_here = n_ranks;
  (*group_p)->is_met = true;
  return ZPS_OK;
}

/* "2, 5": the ranks that have not come. */
static void missing_ranks(const struct zps_member_group *group, char *buf, size_t size) {
  buf[0] = '\0';
  for (uint32_t i = 0; i < group->n_ranks && strlen(buf) + 16 < size; i++)
    if (!group->members[i].here) zps_text_add(buf, size, "%s%u", buf[0] ? ", " : "", group->ranks[i]);
}

/* What the ranks that wait are told. */
static void explain(const struct zps_member_job *job, const struct zps_member_group *group, uint64_t timeout_ms,
                    const char *missing, char *text, size_t size) {
  const bool links = strncmp(group->name, LINKS, strlen(LINKS)) == 0;
  const char *const name = !links ? group->name : group->name[strlen(LINKS)] ? strchr(group->name, '/') + 1 : NULL;
  snprintf(text, size, "job '%s'%s%s%s: after %g s these ranks have not opened %s: %s", job->name,
           name ? ", group '" : "", name ? name : "", name ? "'" : "", (double)timeout_ms / 1000,
           links ? "a tensor with a rank-to-rank scheme" : "it", missing);
}

/* The rank that waits whose time is up first; NULL: none waits. */
static const struct zps_group_member *next_up(const struct zps_member_group *group) {
  const struct zps_group_member *first = NULL;
  for (uint32_t i = 0; i < group->n_ranks && !group->is_met; i++) {
    const struct zps_group_member *const member = &group->members[i];
    if (member->token && (!first || member->deadline_ns < first->deadline_ns)) first = member;
  }
  return first;
}

static void meet(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group) {
  if (group->n_here == group->n_ranks && !group->is_met) {
    zps_log_about(.job = job->name);
    zps_log_debug("job '%s': the %u ranks of %s have met", job->name, group->n_ranks, group->name);
    group->is_met = true;
    zps_members_note(members, .type = ZPS_NOTE_GROUP, .job = job, .group = group);
  }
  for (uint32_t i = 0; i < group->n_ranks && group->is_met; i++)
    if (group->members[i].token) answer(members, job, group, i, ZPS_OK, NULL);
}

/* The first rank whose time is up ends it for all that wait: it would be missing, and they would name it. */
static uint64_t settle(struct zps_members *members, struct zps_member_job *job, struct zps_member_group *group) {
  char missing[200], text[600];
  meet(members, job, group);
  if (group->is_met || fail_if_left(members, job, group)) return ZPS_NEVER;
  const struct zps_group_member *const first = next_up(group);
  if (!first || first->deadline_ns > members->now_ns) return first ? first->deadline_ns : ZPS_NEVER;
  missing_ranks(group, missing, sizeof missing);
  explain(job, group, first->timeout_ms, missing, text, sizeof text);
  fail_waiting(members, job, group, ZPS_ERR_MISSING, text);
  return ZPS_NEVER;
}

uint64_t zps_members_groups_settle(struct zps_members *members, struct zps_member_job *job) {
  uint64_t deadline_ns = ZPS_NEVER;
  for (struct zps_member_group *group = job->groups, *next; group; group = next) {
    next = group->next;
    zps_members_sooner(&deadline_ns, settle(members, job, group));
  }
  return deadline_ns;
}
