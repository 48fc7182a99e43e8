/* How long a thread that could run waits for a processor, where the kernel tells (Linux's schedstat). */
#ifndef ZPS_BASE_WAITS_H
#define ZPS_BASE_WAITS_H

#include <stdint.h>

struct zps_waits {
  int fd;             /* -1: the kernel keeps no such file */
  uint64_t looked_ns; /* when it was last asked; 0: never */
  uint64_t waited_ns, turns;
  double mean_ns; /* lately, each time that it came to run */
};

/* Of the calling thread. */
void zps_waits_init(struct zps_waits *waits);
void zps_waits_fini(struct zps_waits *waits);
/* The mean, of some tens of milliseconds; 0: not known. Costs a clock's value, and now and then a system call. */
uint64_t zps_waits_look(struct zps_waits *waits, uint64_t now_ns);
/* Takes in the kernel's line; for zps_waits_look(), and tests. */
void zps_waits_take(struct zps_waits *waits, const char *line);

#endif
