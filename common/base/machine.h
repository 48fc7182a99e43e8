/*
 * The part of this machine that the process may use. Processors: those of its affinity, but no more than its control
 * groups give time for. Memory: the machine's, but no more than its control groups allow. Containers, systemd's
 * MemoryMax= and CPUQuota= and Slurm limit processes in that way.
 *
 * The limits of version 1 (cpu.cfs_quota_us, cpuset.effective_cpus, memory.limit_in_bytes) and 2 (cpu.max,
 * cpuset.cpus.effective, memory.max, memory.high) are read along the process's own path, from its group up to the mount
 * point: every ancestor's counts. Where nothing can be read there is no limit. Nothing is kept: limits change while a
 * process runs.
 */
#ifndef ZPS_BASE_MACHINE_H
#define ZPS_BASE_MACHINE_H

#include <stdint.h>

#define ZPS_NO_LIMIT UINT64_MAX

struct zps_machine_limits {
  uint64_t cores; /* of the quota, rounded up, and of the set */
  uint64_t memory_bytes;
};

/* The limits that control groups set. `root` is put in front of every path, for tests; "" is this machine. */
void zps_machine_limits(const char *root, struct zps_machine_limits *limits);

/* Processors of the machine, as far as control groups leave them: to this process and others in its container. At
 * least 1. */
unsigned zps_machine_cores(void);
/* Its part of them for one of `n_sharing` processes that share the container, such as ranks. No more than its affinity,
 * which may be that part already. At least 1. */
unsigned zps_machine_cores_each(uint64_t n_sharing);
/* 0 when not even the machine's is known. */
uint64_t zps_machine_memory_bytes(void);

#endif
