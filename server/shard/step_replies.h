/* The round of a step that a rank speaks of, or how it ended. */
#ifndef ZPS_SERVER_SHARD_STEP_REPLIES_H
#define ZPS_SERVER_SHARD_STEP_REPLIES_H

#include "proto/wire.h"

struct zps_member;
struct zps_shard_machine_event;
struct zps_shard_round;
struct zps_tensor;

struct zps_frame_abort zps_refusal(uint32_t tensor, uint64_t step, zps_err_t code);
/* What a rank's frames ask for, and answers name: a step, or a SEEK of it, which is refused with MISSED. */
struct zps_question {
  uint64_t step;
  bool is_seek;
  uint32_t seek; /* its number */
};

void zps_reply(struct zps_member *member, const struct zps_question *question, const struct zps_frame_abort *abort);
void zps_reply_text(struct zps_member *member, const struct zps_question *question, const struct zps_tensor *tensor,
                    zps_err_t code, const char *fmt, ...) ZPS_PRINTF(5, 6);
void zps_reply_unknown(struct zps_member *member, const struct zps_question *question, uint32_t tensor);
void zps_reply_completed(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step);
/* Tells a rank that comes late how the round ended. */
void zps_reply_tombstone(struct zps_member *member, const struct zps_tensor *tensor, uint64_t step);
/* Ends a step that has no round; those that come later are told. */
void zps_refuse_step(struct zps_tensor *tensor, struct zps_frame_abort refused, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* The round of this step, opened by the first rank that speaks of it; NULL when it has ended already, which a tombstone
 * tells. A new one takes `first` ahead of the ranks that are gone; NULL: nothing. */
struct zps_shard_round *zps_step_round(struct zps_tensor *tensor, uint64_t step, uint64_t now_ns,
                                       const struct zps_shard_machine_event *first);

#endif
