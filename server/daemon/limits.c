#define ZPS_LOG_COMPONENT "zenpsd"
#include "server/daemon/limits.h"

#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/base/config.h"
#include "common/base/log.h"

void zps_in_effect_log_file(const struct zps_options *options, bool was_read) {
  const char *path = options->config;
  if (!path || !*path)
    zps_log_info("configuration: no file was named (--config, ZENPS_CONFIG): flags, environment and defaults count");
  else if (was_read)
    zps_log_info("configuration: read from %s", path + (*path == '-'));
  else
    zps_log_info("configuration: %s is missing, which '-' allows: flags, environment and defaults count", path + 1);
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

/* ------------------------------------------------------------ locked memory */

static bool pins(const char *provider) {
  /* By their manuals: none has been tried. gni pins, too, but whether its driver counts that here is not known. */
  static const char *const pinning[] = {"verbs", "efa", "cxi"};
  if (strncmp(provider, "fault+", 6) == 0) provider += 6;
  for (unsigned i = 0; i < sizeof pinning / sizeof pinning[0]; i++) {
    if (strncmp(provider, pinning[i], strlen(pinning[i])) == 0) return true;
  }
  return false;
}

zps_err_t zps_memlock_judge(const char *provider, uint64_t limit_bytes, bool may_lock, uint64_t needed_bytes,
                            struct zps_error *error) {
  if (!pins(provider) || may_lock || limit_bytes >= needed_bytes) return ZPS_OK;
  return zps_fail(
      error, ZPS_ERR_REFUSED,
      "provider %s pins memory, %s is %llu MiB, but this process may lock only %llu MiB (RLIMIT_MEMLOCK): raise it "
      "(systemd: LimitMEMLOCK=infinity; shell: ulimit -l unlimited; containers: in the runtime's unit), or lower "
      "server.memory_limit",
      provider, zps_config_said("server.memory_limit"), (unsigned long long)(needed_bytes >> 20),
      (unsigned long long)(limit_bytes >> 20));
}

static bool may_lock(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

zps_err_t zps_memlock_check(const char *provider, uint64_t needed_bytes, struct zps_error *error) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return ZPS_OK;
  return zps_memlock_judge(provider, limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur, may_lock(),
                           needed_bytes, error);
}
