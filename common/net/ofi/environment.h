/* Variables that libfabric and the libraries below it read when their providers start. A variable that the user has set
 * stays. */
#ifndef ZPS_NET_OFI_ENVIRONMENT_H
#define ZPS_NET_OFI_ENVIRONMENT_H

#include <stdbool.h>

#include "common/net/net.h"

/* Before the first look at the fabrics. Not thread-safe, as setenv() is not: fabrics are opened before threads are
 * started. */
void zps_ofi_environment_set(const struct zps_net_config *config);
/* Pure. `release`: the kernel's, as uname() has it. */
bool zps_ofi_fork_tears(const char *release);

#endif
