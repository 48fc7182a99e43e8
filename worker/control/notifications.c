/* What the coordinator is told of rounds, servers and memory, without an answer. */
#define ZPS_LOG_COMPONENT "membership"
#include "common/base/log.h"
#include "worker/control/membership.h"

static zps_err_t notify(struct zps_membership *membership, const char *method, zps_json *params) {
  return params ? zps_client_notify(membership->client, method, params) : ZPS_ERR_NOMEM;
}

zps_err_t zps_membership_report(struct zps_membership *membership, uint32_t tensor,
                                const struct zps_plan_request *told) {
  const struct zps_tensor_report report = {.job_id = membership->job_id, .tensor = tensor, .told = *told};
  return notify(membership, "tensor.report", zps_control_report_write(&report));
}

zps_err_t zps_membership_stats(struct zps_membership *membership, const struct zps_rank_report *report,
                               zps_json *tensors) {
  struct zps_rank_report own = *report;
  own.job_id = membership->job_id;
  return notify(membership, "job.stats", zps_control_stats_write(&own, tensors));
}

zps_err_t zps_membership_suspect(struct zps_membership *membership, const struct zps_job_suspects *suspects) {
  if (membership->lost) return ZPS_OK;
  return notify(membership, "job.suspect", zps_control_suspect_write(suspects));
}

zps_err_t zps_membership_mapped(struct zps_membership *membership, const struct zps_job_steps *steps) {
  return notify(membership, "job.mapped", zps_control_job_steps_write(steps));
}

void zps_membership_memory(struct zps_membership *membership, const char *memory) {
  atomic_store(&membership->memory, memory);
  if (membership->lost) return;
  const struct zps_job_call call = {.job_id = membership->job_id, .text = memory};
  if (notify(membership, "job.memory", zps_control_memory_write(&call)) != ZPS_OK)
    zps_log_info("the coordinator was not told of memory %s", memory);
}

void zps_membership_hold(struct zps_membership *membership, const char *why) {
  atomic_store(&membership->held, why);
  if (membership->lost) return;
  const struct zps_job_call call = {.job_id = membership->job_id, .text = why};
  if (notify(membership, "job.held", zps_control_held_write(&call)) != ZPS_OK)
    zps_log_info("the coordinator was not told that servers are to keep the job: %s", why);
}

void zps_membership_renew(struct zps_membership *membership) {
  zps_client_renew(membership->client);
}

void zps_membership_flush(struct zps_membership *membership, uint64_t timeout_ms) {
  zps_client_flush(membership->client, timeout_ms);
}
