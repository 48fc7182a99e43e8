/* How far the calendar of a server or rank is from the coordinator's, by heartbeats. The coordinator's tell the time at
 * which they were sent. The answers bring it back, with the time that they were held there, and with the other
 * calendar. The rest of the time was the way there and back. The offset is exact to half of it. */
#ifndef ZPS_SERVER_COORDINATOR_CLOCKS_H
#define ZPS_SERVER_COORDINATOR_CLOCKS_H

#include "proto/control.h"

/* All zeros: not known. */
struct zps_clock_offset {
  uint64_t at_ns;      /* when it was measured */
  double ms, error_ms; /* positive: the other clock is ahead */
};

/* `beat` came at `now_ns`, at which this process's calendar was `utc_us`. The best measurement of the last minute is
 * kept, unless a newer one contradicts it: then a clock was set. */
void zps_clock_offset_take(struct zps_clock_offset *offset, const struct zps_beat *beat, uint64_t now_ns,
                           uint64_t utc_us);

#endif
