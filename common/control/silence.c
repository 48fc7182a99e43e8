#include "common/control/silence.h"

#include "common/base/clock.h"

static uint64_t ns_of(uint64_t ms) {
  return ms < ZPS_NEVER / ZPS_NS_PER_MS ? ms * ZPS_NS_PER_MS : ZPS_NEVER;
}

void zps_silence_begin(struct zps_silence *silence, uint64_t heartbeat_ms, uint64_t dead_ms, uint64_t now_ns) {
  const uint64_t dead_ns = dead_ms ? ns_of(dead_ms) : ZPS_NEVER, beat_ns = ns_of(heartbeat_ms);
  *silence = (struct zps_silence){.dead_ns = dead_ns, .beat_ns = now_ns, .pardon_ns = now_ns};
  silence->late_ns = beat_ns < ZPS_NEVER - dead_ns / 2 ? dead_ns / 2 + beat_ns : ZPS_NEVER;
}

void zps_silence_beat(struct zps_silence *silence, uint64_t now_ns) {
  if (now_ns > silence->beat_ns && now_ns - silence->beat_ns > silence->late_ns) silence->pardon_ns = now_ns;
  silence->beat_ns = now_ns;
}

uint64_t zps_silence_of(const struct zps_silence *silence, uint64_t heard_ns, uint64_t now_ns) {
  const uint64_t since_ns = heard_ns > silence->pardon_ns ? heard_ns : silence->pardon_ns;
  const uint64_t silent_ns = now_ns > since_ns ? now_ns - since_ns : 0;
  return silent_ns > silence->dead_ns ? silent_ns : 0;
}

uint64_t zps_stuck_look(struct zps_stuck *stuck, const struct zps_silence *silence, uint64_t turns, bool due,
                        uint64_t now_ns) {
  if (!due || turns != stuck->turns || stuck->since_ns == 0) {
    stuck->turns = turns;
    stuck->since_ns = now_ns;
    return 0;
  }
  const uint64_t since_ns = stuck->since_ns > silence->pardon_ns ? stuck->since_ns : silence->pardon_ns;
  return now_ns > since_ns ? now_ns - since_ns : 0;
}
