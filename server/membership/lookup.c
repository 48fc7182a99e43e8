/* What there is under a number, and whether it runs; states by name. Changes nothing. */
#include "server/membership/members_impl.h"

static const char *const job_state_names[] = {[ZPS_JOB_JOINING] = "joining",
                                              [ZPS_JOB_OPENING] = "opening",
                                              [ZPS_JOB_RUNNING] = "running",
                                              [ZPS_JOB_CLOSING] = "closing"};
static const char *const rank_state_names[] = {
    [ZPS_RANK_JOINING] = "joining", [ZPS_RANK_IN] = "in", [ZPS_RANK_LEFT] = "left", [ZPS_RANK_LOST] = "lost"};

const char *zps_job_state_name(enum zps_job_state state) {
  return job_state_names[state];
}
const char *zps_rank_state_name(enum zps_rank_state state) {
  return rank_state_names[state];
}

struct zps_member_job *zps_members_job_find(const struct zps_members *members, uint64_t job_id) {
  struct zps_member_job *job = members->jobs;
  while (job && job->job_id != job_id) job = job->next;
  return job;
}

zps_err_t zps_members_running(const struct zps_member_job *job, uint64_t job_id, struct zps_error *error) {
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  return job->state == ZPS_JOB_CLOSING ? zps_fail(error, job->error.code, "%s", job->error.text) : ZPS_OK;
}

uint64_t zps_member_job_age_ns(const struct zps_member_job *job, uint64_t now_ns) {
  return job->aged_ns + (now_ns > job->started_ns ? now_ns - job->started_ns : 0);
}

struct zps_member_tensor *zps_members_tensor_find(const struct zps_member_job *job, uint32_t number) {
  uint32_t low = 0, high = job->n_tensors;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (job->tensors[middle]->spec.tensor < number)
      low = middle + 1;
    else
      high = middle;
  }
  return low < job->n_tensors && job->tensors[low]->spec.tensor == number ? job->tensors[low] : NULL;
}

bool zps_member_job_has(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING) < job->view.n_places;
}

bool zps_member_job_holds(const struct zps_member_job *job, const struct zps_member_server *server) {
  return zps_view_find(&job->view, server, 1u << ZPS_PLACE_IN) < job->view.n_places;
}

bool zps_member_job_admits(const struct zps_member_job *job, uint32_t position) {
  return position < job->view.n_places && job->view.places[position].state == ZPS_PLACE_JOINING;
}

bool zps_member_map_is_open(const struct zps_member_job *job) {
  return job->map.state == ZPS_MAP_SERVERS || job->map.state == ZPS_MAP_RANKS;
}

bool zps_members_tensor_has(const struct zps_tensor_spec *spec, uint32_t rank) {
  for (uint32_t i = 0; i < spec->n_ranks; i++)
    if (spec->ranks[i] == rank) return true;
  return spec->n_ranks == 0;
}
