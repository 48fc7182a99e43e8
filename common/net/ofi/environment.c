#include "common/net/ofi/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>

static void set_port_range(const struct zps_net_config *config) {
  static const char *const prefixes[] = {"FI_TCP", "FI_NET"};
  char name[40], value[8];
  for (size_t i = 0; config->port_low > 0 && i < sizeof prefixes / sizeof prefixes[0]; i++) {
    snprintf(name, sizeof name, "%s_PORT_LOW_RANGE", prefixes[i]);
    snprintf(value, sizeof value, "%u", config->port_low);
    setenv(name, value, 0);
    snprintf(name, sizeof name, "%s_PORT_HIGH_RANGE", prefixes[i]);
    snprintf(value, sizeof value, "%u", config->port_high);
    setenv(name, value, 0);
  }
}

/* From Linux 5.13 on the kernel copies pinned pages for a child of fork(), and tells libibverbs so. */
bool zps_ofi_fork_tears(const char *release) {
  unsigned major = 0, minor = 0;
  if (sscanf(release, "%u.%u", &major, &minor) != 2) return false;
  return major < 5 || (major == 5 && minor < 13);
}

/* A trainer forks its data loaders. On an older kernel its next write to a registered page goes to a new page, and the
 * card still reads the old one; the efa provider ends the process instead. With these variables children do not get
 * registered pages. efa refuses to open with both RDMAV_HUGEPAGES_SAFE and these. */
static void set_fork_safe(void) {
  static const char *const names[] = {"RDMAV_FORK_SAFE", "FI_EFA_FORK_SAFE"};
  struct utsname kernel;
  if (getenv("RDMAV_FORK_SAFE") || getenv("IBV_FORK_SAFE") || getenv("FI_EFA_FORK_SAFE") ||
      getenv("RDMAV_HUGEPAGES_SAFE"))
    return;
  if (uname(&kernel) != 0 || !zps_ofi_fork_tears(kernel.release)) return;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) setenv(names[i], "1", 0);
}

void zps_ofi_environment_set(const struct zps_net_config *config) {
  set_port_range(config);
  set_fork_safe();
}
