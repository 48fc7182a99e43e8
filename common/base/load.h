/* How busy this process's main thread has been, and how long it has waited for a processor: Linux's
 * /proc/self/schedstat.
 */
#ifndef ZPS_BASE_LOAD_H
#define ZPS_BASE_LOAD_H

#include <stdint.h>

/* Thousandths of the time between two measurements; 0 and 0: not known. */
struct zps_load {
  uint64_t busy, starved;
};

/* The last measurement; zero at the beginning. One thread at a time. */
struct zps_load_probe {
  uint64_t at_ns, busy_ns, starved_ns;
};

/* Since the measurement before this one, of which there must have been one. */
struct zps_load zps_load_measure(struct zps_load_probe *probe, uint64_t now_ns);

#endif
