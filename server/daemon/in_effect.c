/* Log lines about the options: the file that was read, and the limits in effect. */
#include "server/daemon/in_effect.h"

#define ZPS_LOG_COMPONENT "zenpsd"
#include "common/base/log.h"

void zps_in_effect_log_file(const struct zps_options *options, bool was_read) {
  const char *path = options->config;
  if (!path || !*path)
    zps_log_info("configuration: no file was named (--config, ZENPS_CONFIG): flags, environment and defaults count");
  else if (was_read)
    zps_log_info("configuration: read from %s", path + (*path == '-'));
  else
    zps_log_info("configuration: %s is missing, as it may be (-): flags, environment and defaults count", path + 1);
}

static unsigned long long mib(uint64_t bytes) {
  return (unsigned long long)(bytes >> 20);
}

void zps_in_effect_log_limits(const struct zps_options *options, unsigned conns) {
  if (zps_options_is_server(options))
    zps_log_info(
        "server: memory_limit %llu MiB, reduce_threads %llu, read_budget %llu MiB; of one job (0: no limit of its "
        "own): "
        "max_memory %llu MiB, max_rounds %llu",
        mib(options->server_memory_limit_bytes), (unsigned long long)options->server_reduce_threads,
        mib(options->server_read_budget_bytes), mib(options->job_max_memory_bytes),
        (unsigned long long)options->job_max_rounds);
  if (zps_options_is_coordinator(options))
    zps_log_info("coordinator: %u connections at most; of one job: max_tensors %llu; of one tenant: max_waiting %llu",
                 conns, (unsigned long long)options->job_max_tensors, (unsigned long long)options->job_max_waiting);
}
