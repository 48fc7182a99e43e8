#define ZPS_LOG_COMPONENT "zenpsd"
#include "server/daemon/limits.h"

#include <string.h>
#include <time.h>

#include "common/base/log.h"

void zps_in_effect_log_file(const struct zps_options *options, bool was_read) {
  const char *path = options->config;
  if (!path || !*path)
    zps_log_info("configuration: no file was named (--config, ZENPS_CONFIG): flags, environment and defaults count");
  else if (was_read)
    zps_log_info("configuration: read from %s", path + (*path == '-'));
  else
    zps_log_info("configuration: %s is missing, which '-' allows: flags, environment and defaults count", path + 1);
  char text[ZPS_PROFILE_TEXT_SIZE];
  if (zps_config_profile_text(&zps_options_table, options, text, sizeof text)) zps_log_info("%s", text);
}

void zps_in_effect_log_certificate(const struct zps_options *options, long long ends_s) {
  const time_t ends = (time_t)ends_s, now = time(NULL);
  struct tm parts;
  char text[32];
  if (!gmtime_r(&ends, &parts) || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) return;
  zps_log_info("certificate: %s ends at %s, in %.1f days; authority %s", options->tls_cert, text,
               difftime(ends, now) / (24 * 3600), options->tls_ca);
}

static unsigned long long mib(uint64_t bytes) {
  return (unsigned long long)(bytes >> 20);
}

void zps_in_effect_log_limits(const struct zps_options *options, unsigned conns) {
  if (zps_options_is_server(options))
    zps_log_info(
        "server: memory_limit %llu MiB, reduce_threads %llu, read_budget %llu MiB; per job (0: no limit): max_memory "
        "%llu MiB, max_rounds %llu",
        mib(options->server_memory_limit_bytes), (unsigned long long)options->server_reduce_threads,
        mib(options->server_read_budget_bytes), mib(options->job_max_memory_bytes),
        (unsigned long long)options->job_max_rounds);
  if (zps_options_is_coordinator(options))
    zps_log_info("coordinator: at most %u connections; per job: max_tensors %llu; per tenant: max_waiting %llu", conns,
                 (unsigned long long)options->job_max_tensors, (unsigned long long)options->job_max_waiting);
}
