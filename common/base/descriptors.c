#include "common/base/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

void zps_descriptors_fill(void) {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
    if (fd < 0) fd = open("/", O_RDONLY); /* a root folder without devices: the number is what counts */
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

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
