#include "server/shard/quota.h"

#include <inttypes.h>

#include "common/base/account.h"
#include "common/base/config.h"
#include "server/shard/job.h"
#include "server/shard/shard_impl.h"

bool zps_quota_fits(const struct zps_job *job, uint64_t bytes, bool is_half) {
  const uint64_t limit_bytes = job->shard->quota.memory_bytes, taken_bytes = job->account->bytes;
  const uint64_t standing_bytes = job->standing_bytes < limit_bytes ? job->standing_bytes : limit_bytes;
  const uint64_t most_bytes = is_half ? standing_bytes + (limit_bytes - standing_bytes) / 2 : limit_bytes;
  return limit_bytes == 0 || (bytes <= most_bytes && taken_bytes <= most_bytes - bytes);
}

zps_err_t zps_quota_take(struct zps_job *job, uint64_t bytes, const char *what, struct zps_error *error) {
  if (!zps_quota_fits(job, bytes, false))
    return zps_fail(error, ZPS_ERR_QUOTA,
                    "job %s: %s take %" PRIu64 " bytes of this server's memory, and %" PRIu64 " of the %" PRIu64
                    " that a job may have are taken (%s)",
                    job->name, what, bytes, job->account->bytes, job->shard->quota.memory_bytes,
                    zps_config_label("job.max_memory"));
  zps_account_add(job->account, bytes);
  return ZPS_OK;
}

zps_err_t zps_quota_take_wants(struct zps_job *job, uint64_t bytes, struct zps_error *error) {
  struct zps_shard *const shard = job->shard;
  const uint64_t all_bytes = shard->memory_limit_bytes / 2, others_bytes = shard->wants_bytes - job->wants_bytes;
  const uint64_t share_bytes = (all_bytes - others_bytes) / 2; /* others have less than all */
  if (job->wants_bytes + bytes > share_bytes)
    return zps_fail(error, ZPS_ERR_NOMEM,
                    "job %s: the rows that its ranks name take more than the %" PRIu64
                    " bytes that it may have: half of what other jobs leave of %" PRIu64 " (half of %s)",
                    job->name, share_bytes, all_bytes, zps_config_label("server.memory_limit"));
  const zps_err_t err = zps_quota_take(job, bytes, "the rows that its ranks name", error);
  if (err) return err;
  job->wants_bytes += bytes;
  shard->wants_bytes += bytes;
  return ZPS_OK;
}

void zps_quota_give_wants(struct zps_job *job, uint64_t bytes) {
  job->wants_bytes -= bytes;
  job->shard->wants_bytes -= bytes;
  zps_account_sub(job->account, bytes);
}

zps_err_t zps_quota_round(const struct zps_job *job, struct zps_error *error) {
  const uint64_t most = job->shard->quota.rounds;
  if (most == 0 || job->n_rounds < most) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_QUOTA,
                  "%u rounds of the job are in flight on this server, and it may have %" PRIu64 " (%s)", job->n_rounds,
                  most, zps_config_label("job.max_rounds"));
}
