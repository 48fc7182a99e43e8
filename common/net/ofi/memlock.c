#include "common/net/ofi/memlock.h"

#include <linux/capability.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REMEDY                                                                                                 \
  "systemd: LimitMEMLOCK=infinity; shell: ulimit -l unlimited; Slurm: PropagateResourceLimitsExcept=MEMLOCK; " \
  "containers: in the runtime's unit"

static bool pins(const char *provider) {
  /* gni pins, too, but whether its driver counts that here is not known. */
  static const char *const pinning[] = {"verbs", "efa", "cxi"};
  for (unsigned i = 0; i < sizeof pinning / sizeof pinning[0]; i++) {
    if (strncmp(provider, pinning[i], strlen(pinning[i])) == 0) return true;
  }
  return false;
}

zps_err_t zps_memlock_judge(const char *provider, uint64_t limit_bytes, bool may_lock, uint64_t needed_bytes,
                            struct zps_error *error) {
  if (!pins(provider) || may_lock || limit_bytes >= needed_bytes) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_REFUSED,
                  "provider %s pins memory, and up to %llu MiB are to be registered, but this process may lock only "
                  "%llu KiB (RLIMIT_MEMLOCK): raise it (" REMEDY
                  "), or lower server.memory_limit, or ZENPS_MEMORY_LIMIT of a rank",
                  provider, (unsigned long long)(needed_bytes >> 20), (unsigned long long)(limit_bytes >> 10));
}

static bool may_lock(void) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK);
}

static uint64_t limit_bytes(void) {
  struct rlimit limit;
  const bool is_limited = getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? limit.rlim_cur : UINT64_MAX;
}

zps_err_t zps_memlock_check(const char *provider, uint64_t needed_bytes, struct zps_error *error) {
  return zps_memlock_judge(provider, limit_bytes(), may_lock(), needed_bytes, error);
}

const char *zps_memlock_advice(const char *provider, char *text, size_t size) {
  const uint64_t bytes = limit_bytes();
  text[0] = '\0';
  if (!pins(provider) || bytes == UINT64_MAX || may_lock()) return text;
  snprintf(text, size, ": this process may lock %llu KiB of memory: raise ulimit -l (" REMEDY ")",
           (unsigned long long)(bytes >> 10));
  return text;
}
