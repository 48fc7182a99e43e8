#include "common/base/descriptors.h"

#include <sys/resource.h>

unsigned long zps_descriptors_wanted(unsigned long soft, unsigned long hard) {
  const unsigned long most = hard < ZPS_DESCRIPTORS_ENOUGH ? hard : ZPS_DESCRIPTORS_ENOUGH;
  return soft > most ? soft : most;
}

unsigned long zps_descriptors_raise(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t soft = limit.rlim_cur;
  limit.rlim_cur = zps_descriptors_wanted(soft, limit.rlim_max);
  return limit.rlim_cur == soft || setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : soft;
}
