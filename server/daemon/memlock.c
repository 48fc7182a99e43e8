#include "server/daemon/memlock.h"

#include <linux/capability.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

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
      "provider %s pins memory, server.memory_limit is %llu MiB, but this process may lock only %llu MiB "
      "(RLIMIT_MEMLOCK): raise it (systemd: LimitMEMLOCK=infinity; shell: ulimit -l unlimited; containers: in the "
      "runtime's unit), or lower server.memory_limit",
      provider, (unsigned long long)(needed_bytes >> 20), (unsigned long long)(limit_bytes >> 20));
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
