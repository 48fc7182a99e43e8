/* The coordinator's calls: read, then carried out on the shard. */
#include <string.h>

#include "server/daemon/agent_impl.h"

static zps_err_t job_open(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  struct zps_job_spec spec;
  zps_err_t err = zps_control_job_open_read(params, &spec, error);
  if (err) return err;
  err = zps_shard_job_open(shard, &spec, error);
  zps_job_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_open(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  struct zps_tensor_spec spec;
  zps_err_t err = zps_control_tensor_open_read(params, &spec, error);
  if (err) return err;
  err = zps_shard_tensor_open(shard, &spec, error);
  zps_tensor_spec_fini(&spec);
  return err;
}

static zps_err_t tensor_forget(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  uint64_t job_id;
  uint32_t tensor;
  const zps_err_t err = zps_control_tensor_forget_read(params, &job_id, &tensor, error);
  return err ? err : zps_shard_tensor_close(shard, job_id, tensor, error);
}

static zps_err_t job_close(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  uint64_t job_id;
  const char *reason;
  zps_err_t err = zps_control_job_close_read(params, &job_id, &reason, error);
  if (err) return err;
  err = zps_shard_job_close(shard, job_id, reason);
  return err ? zps_fail(error, err, "no job 0x%016llx here", (unsigned long long)job_id) : ZPS_OK;
}

static zps_err_t rank_gone(struct zps_shard *shard, const zps_json *params, struct zps_error *error) {
  struct zps_rank_gone gone;
  zps_err_t err = zps_control_rank_gone_read(params, &gone, error);
  if (err) return err;
  err = zps_shard_rank_gone(shard, gone.job_id, gone.rank, gone.code, gone.text);
  return err ? zps_fail(error, err, "no rank %u of job 0x%016llx here", gone.rank, (unsigned long long)gone.job_id)
             : ZPS_OK;
}

static const struct {
  const char *name;
  zps_err_t (*run)(struct zps_shard *shard, const zps_json *params, struct zps_error *error);
} calls[] = {{"job.open", job_open},
             {"tensor.open", tensor_open},
             {"tensor.forget", tensor_forget},
             {"job.close", job_close},
             {"rank.gone", rank_gone}};

zps_err_t zps_agent_carry_out(struct zps_shard *shard, const char *method, const zps_json *params, zps_json **result_p,
                              struct zps_error *error) {
  for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
    if (strcmp(calls[i].name, method) == 0) return calls[i].run(shard, params, error);
  }
  if (strcmp(method, "stats.get") != 0)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "this server has no method '%.100s'", method);
  zps_json *result = zps_agent_stats(shard);
  if (!result) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the counters");
  *result_p = result;
  return ZPS_OK;
}
