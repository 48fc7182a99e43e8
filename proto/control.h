/*
 * The common part of the control plane's messages. PROTOCOL.md, "Control plane", tells the purpose of each;
 * control_server.h, control_job.h, control_view.h, control_change.h, control_tensor.h, control_plan.h and control_stats.h have them by
 * subject.
 *
 * A message is a struct, a function that writes it as JSON and one that reads it back. Writers return NULL when memory
 * is short. Readers check every member, and refuse with a sentence that names the member and its right form; then there
 * is nothing to free. Text that a reader leaves as `const char *` is borrowed from the JSON it read.
 */
#ifndef ZPS_PROTO_CONTROL_H
#define ZPS_PROTO_CONTROL_H

#include "common/base/secret.h"
#include "common/net/net.h"
#include "proto/fields.h"

#define ZPS_NAME_MAX 128u /* bytes of a job's, tensor's, host's or rack's name, without NUL */
#define ZPS_WORLD_MAX 4096u
#define ZPS_SERVERS_MAX 1024u /* of a job */
#define ZPS_TIMEOUT_MAX_MS (7ull * 24 * 3600 * 1000)
#define ZPS_HEARTBEAT_MAX_MS (3600ull * 1000)

/* The interval of heartbeats, and the silence after which a process counts as dead: part of the answers that let a
 * process in. */
struct zps_heartbeat {
  uint64_t heartbeat_ms, dead_ms;
};
extern const struct zps_fields zps_control_heartbeat;

/* heartbeat. Members are 0 where they are left out. A coordinator sends `sent_us` alone, of its own monotonic clock. A
 * worker or server sends the others. */
struct zps_beat {
  uint64_t stuck_ms; /* how long the progress thread has not run though it has something to do */
  uint64_t sent_us;
  uint64_t clock_us;         /* the sender's calendar, since 1970 UTC */
  uint64_t echo_us, held_us; /* the coordinator's last sent_us, and the time from its arrival to this message */
};
extern const struct zps_fields zps_control_beat;
zps_json *zps_control_beat_write(const struct zps_beat *beat);
/* All zeros where the message has no sense: the heartbeat counts, whatever it says. */
struct zps_beat zps_control_beat_read(const zps_json *params);

/* The last heartbeat of the coordinator over a connection. All zeros: none has come. One thread uses it. */
struct zps_beat_heard {
  uint64_t sent_us, came_ns;
};
void zps_beat_hear(struct zps_beat_heard *heard, const zps_json *params, uint64_t now_ns);
/* The next heartbeat of this worker or server, as JSON. Its clock is read here. */
zps_json *zps_beat_next(const struct zps_beat_heard *heard, uint64_t stuck_ms, uint64_t now_ns);

/* Member "fabric": a process's fabric endpoint, a struct zps_net_info. Its limits of messages and reads are not sent,
 * and read as 0. */
extern const struct zps_fields zps_control_fabric;

/* Members "error" and "why": a struct zps_error, the first error of a rank. Code ZPS_OK: neither is there. */
extern const struct zps_fields zps_control_error;

/* The members of messages without a struct of their own. Each message uses some of them. */
struct zps_job_call {
  uint64_t job_id;
  uint32_t rank, tensor;
  uint64_t timeout_ms;
  const char *text; /* Borrowed from the JSON by readers. */
};

/* Member "job_id" alone: the whole of job.peers and job.changed. */
ZPS_MESSAGE_READER(job_id, uint64_t)
static inline zps_json *zps_control_job_id_write(uint64_t job_id) {
  return zps_fields_write(&zps_control_job_id, &job_id);
}

#endif
