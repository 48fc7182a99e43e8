/* The disk that the coordinator's state is on: what was written and not synced is lost with its process, from some byte
 * on. It stands in for server/state's files. */
#ifndef ZPS_TESTS_SIM_DISK_H
#define ZPS_TESTS_SIM_DISK_H

#include <stddef.h>

/* The process that wrote is dead. */
void sim_disk_tear(void);
size_t sim_disk_len(void);

#endif
