/* Reports of ranks on their rounds, added up per tensor and per rank. */
#include <string.h>

#include "server/membership/members_impl.h"

/* A tensor of the library's own, such as "@barrier". */
static bool is_internal(const char *tensor) {
  return tensor[0] == '@';
}

zps_err_t zps_members_tally(struct zps_member_client *client, uint64_t job_id, uint32_t tensor, uint64_t done,
                            const struct zps_tally *growth, uint64_t now_ns, struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  struct zps_member_tensor *const to = zps_members_tensor_find(job, tensor);
  if (!to && tensor < job->next_tensor) return ZPS_OK; /* It was closed meanwhile. */
  if (!to) return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no tensor %u", job->name, tensor);
  struct zps_member_rank *const rank = job->ranks[client->rank];
  zps_tally_add(&to->tally, growth);
  if (done > to->rounds_done) to->rounds_done = done;
  to->told_ns = rank->told_ns = now_ns;
  if (!is_internal(to->spec.name)) zps_tally_add(&rank->tally, growth);
  return ZPS_OK;
}

static zps_err_t check_round(const struct zps_member_job *job, const struct zps_rank_round *round,
                             struct zps_error *error) {
  if (round->tensor >= job->next_tensor)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s' has no tensor %u", job->name, round->tensor);
  for (uint32_t i = 0; i < round->n_ranks; i++)
    if (round->ranks[i] >= job->world)
      return zps_fail(error, ZPS_ERR_INVALID, "a round waits for rank %u, of %u ranks", round->ranks[i], job->world);
  return ZPS_OK;
}

zps_err_t zps_members_rank_told(struct zps_member_client *client, const struct zps_rank_news *news, uint64_t now_ns,
                                struct zps_error *error) {
  zps_err_t err = zps_members_running(client->job, news->job_id, error);
  for (uint32_t i = 0; !err && i < news->n_rounds; i++) err = check_round(client->job, &news->rounds[i], error);
  if (err) return err;
  struct zps_member_rank *const rank = client->job->ranks[client->rank];
  rank->kept_bytes = news->kept_bytes;
  rank->mishaps = news->mishaps;
  rank->load = news->load;
  rank->rounds_ns = now_ns;
  rank->n_rounds = news->n_rounds;
  memcpy(rank->rounds, news->rounds, sizeof rank->rounds);
  return ZPS_OK;
}

struct zps_tally zps_member_job_tally(const struct zps_member_job *job) {
  struct zps_tally sum = {0};
  uint64_t rounds = 0;
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *const tensor = job->tensors[i];
    if (is_internal(tensor->spec.name)) continue;
    zps_tally_add(&sum, &tensor->tally);
    rounds += tensor->rounds_done;
  }
  sum.rounds = rounds;
  return sum;
}
