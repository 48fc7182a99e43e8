/* A process that may lock little memory, as one of an ordinary user may. */
#ifndef ZPS_TESTS_LOCKED_H
#define ZPS_TESTS_LOCKED_H

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

struct locked {
  struct rlimit before;
  struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
};

static inline void locked_begin(struct locked *locked, rlim_t bytes) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct caps[_LINUX_CAPABILITY_U32S_3];
  assert_int_equal(syscall(SYS_capget, &header, locked->caps), 0);
  memcpy(caps, locked->caps, sizeof caps);
  caps[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
  assert_int_equal(syscall(SYS_capset, &header, caps), 0);
  assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &locked->before), 0);
  const struct rlimit lower = {.rlim_cur = bytes, .rlim_max = locked->before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &lower), 0);
}

static inline void locked_end(const struct locked *locked) {
  struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
  assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &locked->before), 0);
  assert_int_equal(syscall(SYS_capset, &header, locked->caps), 0);
}

#endif
