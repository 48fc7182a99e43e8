#include "server/coordinator/clocks.h"

#include <math.h>

#include "common/base/clock.h"

#define KEPT_NS (60 * ZPS_NS_PER_S)
#define DRIFT 2e-4 /* of two clocks against each other, at the most */

void zps_clock_offset_take(struct zps_clock_offset *offset, const struct zps_beat *beat, uint64_t now_ns,
                           uint64_t utc_us) {
  const uint64_t now_us = now_ns / ZPS_NS_PER_US;
  if (!beat->echo_us || !beat->clock_us || beat->echo_us > now_us || beat->held_us > now_us - beat->echo_us) return;
  const double way_ms = (double)(now_us - beat->echo_us - beat->held_us) / 1000 / 2;
  const struct zps_clock_offset found = {
      .at_ns = now_ns, .ms = ((double)beat->clock_us - (double)utc_us) / 1000 + way_ms, .error_ms = way_ms};
  const double age_ms = (double)(now_ns - offset->at_ns) / (double)ZPS_NS_PER_MS;
  const double kept_error_ms = offset->error_ms + age_ms * DRIFT;
  const bool is_old = !offset->at_ns || now_ns - offset->at_ns > KEPT_NS;
  if (is_old || found.error_ms <= kept_error_ms || fabs(found.ms - offset->ms) > found.error_ms + kept_error_ms)
    *offset = found;
}
