/*
 * Pulls: the rows of a step's sums that a rank asks for by itself, with PULL frames, and the answers; or, with SEEK
 * frames, of the newest sum of several steps.
 *
 * A pull belongs to the round whose sums it wants, which it opens where it comes first; a SEEK's is chosen when its
 * first frame comes. It is answered part by part as
 * sums are made, and over when the rank has read all (DONE) or everything travelled inline. Rounds stay while ranks
 * that gave apart have not pulled, and whoever has pulled where the tensor's sums are sought; of these a tensor keeps a
 * few, the newest.
 */
#ifndef ZPS_SERVER_SHARD_PULL_H
#define ZPS_SERVER_SHARD_PULL_H

#include "proto/wire.h"
#include "server/shard/pick.h"
#include "server/shard/step_replies.h"

#define ZPS_SHARD_KEPT 4u /* sums of a tensor that wait for pulls */

struct zps_job;
struct zps_member;
struct zps_tensor;

struct zps_shard_pull {
  struct zps_shard *shard;
  struct zps_shard_round *round; /* NULL: it has ended */
  struct zps_shard_pull *next;   /* of the round; ended: of the shard */
  uint32_t rank;
  struct zps_question question; /* the round's step; or of a SEEK one that may be behind it */
  bool is_whole;                /* all its frames are here */
  bool any_remote;              /* some answers are to be read: the rank says DONE */
  uint64_t deadline_ns;         /* the rank's */
  uint32_t n_parts, n_sent;
  uint32_t *ready, n_ready; /* parts to be sent */
  uint64_t wants_bytes;
  struct zps_shard_sum **sums; /* by part: the answers */
  struct zps_pick picks[];     /* by part */
};

/* PULL or SEEK. */
void zps_pull_frame(struct zps_member *member, const struct zps_frame_round *frame, bool is_seek);
/* Ends the rank's pull or SEEK of this step; false: there is none. The pull's round may be over then. */
bool zps_pull_end(struct zps_tensor *tensor, uint32_t rank, uint64_t step, bool is_seek);
/* The rank is gone: ends all its pulls of the tensor. */
void zps_pulls_gone(struct zps_tensor *tensor, uint32_t rank);
/* A sum of the round is there, for pulls that wait for it. */
void zps_pulls_answer(struct zps_shard_round *round, uint32_t part);
/* The round closes: ends its pulls, which are told why, unless `abort` is NULL. */
void zps_pulls_end(struct zps_shard_round *round, const struct zps_frame_abort *abort);
/* Of the tensor's other rounds that are kept for pulls, lets the oldest go where there are too many. */
void zps_pulls_limit(const struct zps_shard_round *round);
/* Lets the oldest kept round of a job go, for its memory (NULL: of all jobs); false: there is none. */
bool zps_pulls_make_room(struct zps_shard *shard, const struct zps_job *job);
void zps_pulls_bury(struct zps_shard *shard);

/* From pick.c: an answer, which is the pull's from here on; or why there is none. */
void zps_pull_picked(struct zps_pick *pick, zps_err_t code, struct zps_shard_sum *sum);

#endif
