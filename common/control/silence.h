/*
 * How long the peer of a connection may be silent before it is dead: one rule for coordinator, servers and workers.
 * Each beats and looks at its peers by a timer. A late timer shows that this process itself was stopped, or its host.
 * Then messages of peers wait to be read, and peers that were stopped with it have yet to speak. So silence counts anew
 * from then on.
 *
 * Pure; of one thread.
 */
#ifndef ZPS_CONTROL_SILENCE_H
#define ZPS_CONTROL_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

struct zps_silence {
  uint64_t dead_ns;   /* ZPS_NEVER: any silence is allowed */
  uint64_t late_ns;   /* from one beat to the next: after more than this, the process has slept */
  uint64_t beat_ns;   /* the last one */
  uint64_t pardon_ns; /* silence before this counts for nothing */
};

/* `dead_ms`: 0 allows any silence. */
void zps_silence_begin(struct zps_silence *silence, uint64_t heartbeat_ms, uint64_t dead_ms, uint64_t now_ns);
/* A beat is due, and peers are looked at next. */
void zps_silence_beat(struct zps_silence *silence, uint64_t now_ns);
/* Of a peer last heard of at `heard_ns`: for how long it has been silent, if that is too long, else 0. */
uint64_t zps_silence_of(const struct zps_silence *silence, uint64_t heard_ns, uint64_t now_ns);

/* Another thread of this process, which counts its turns: it is stuck when it makes none though something is due. Zero
 * at first. */
struct zps_stuck {
  uint64_t turns, since_ns;
};
/* Look at it with each beat. For how long it has been stuck; 0: it is not. What passed while the process slept does not
 * count. */
uint64_t zps_stuck_look(struct zps_stuck *stuck, const struct zps_silence *silence, uint64_t turns, bool due,
                        uint64_t now_ns);

#endif
