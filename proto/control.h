/*
 * The common part of the control plane's messages. PROTOCOL.md, "Control plane", tells the purpose of each;
 * control_server.h, control_job.h, control_map.h, control_group.h, control_tensor.h, control_plan.h and control_stats.h
 * have them by subject.
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

/* heartbeat, of a worker or server: how long its progress thread has not run though it has something to do. 0: it runs,
 * which is what an empty object says. */
zps_json *zps_control_beat_write(uint64_t stuck_ms);
uint64_t zps_control_beat_read(const zps_json *params);

/* Member "link_secret" of a job: the key of its links. */
zps_json *zps_control_link_secret_write(zps_json *object, const struct zps_secret *secret);
zps_err_t zps_control_link_secret_read(const zps_json *object, struct zps_secret *secret,
                                       struct zps_error *error) ZPS_MUSTCHECK;

/* Member "fabric": a process's fabric endpoint, a struct zps_net_info. Its limits of messages and reads are not sent,
 * and read as 0. */
extern const struct zps_fields zps_control_fabric;
zps_json *zps_control_fabric_write(zps_json *object, const struct zps_net_info *fabric);
zps_err_t zps_control_fabric_read(const zps_json *object, struct zps_net_info *fabric,
                                  struct zps_error *error) ZPS_MUSTCHECK;

/* The members of messages without a struct of their own. Each message uses some of them. */
struct zps_job_call {
  uint64_t job_id;
  uint32_t rank, tensor;
  uint64_t timeout_ms;
  const char *text; /* Borrowed from the JSON by readers. */
};

/* Member "job_id" alone: the whole of job.peers and job.leave. */
zps_json *zps_control_job_id_write(uint64_t job_id);
zps_err_t zps_control_job_id_read(const zps_json *object, uint64_t *job_id_p, struct zps_error *error) ZPS_MUSTCHECK;

/* Members that several messages have. */
zps_err_t zps_control_get_u32(const zps_json *object, const char *key, uint32_t min, uint32_t max, uint32_t *value_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* `min` to `max` printable bytes: borrowed, or copied to `buf`, which has one more. */
zps_err_t zps_control_get_name(const zps_json *object, const char *key, size_t min, size_t max, const char **name_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_control_get_text(const zps_json *object, const char *key, size_t min, size_t max, char *buf,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* An array of 1 to `most` numbers below `end`, for the caller to free(). */
zps_err_t zps_control_get_u32s(const zps_json *object, const char *key, uint32_t most, uint32_t end,
                               uint32_t **values_p, uint32_t *n_p, struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_control_set_u32s(zps_json *object, const char *key, const uint32_t *values, uint32_t n);
/* A word that may be left out, which is 0 then: not written, and read as such. */
zps_err_t zps_control_opt_word(const zps_json *object, const char *key, uint64_t *value_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
zps_json *zps_control_set_opt_word(zps_json *object, const char *key, uint64_t value);

#endif
