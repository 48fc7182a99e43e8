/*
 * Messages of other ranks for rounds that have not begun here, and aborts of such rounds: kept until the round begins,
 * within bounds. Engine thread.
 */
#ifndef ZPS_WORKER_PLANE_UNEXPECTED_H
#define ZPS_WORKER_PLANE_UNEXPECTED_H

#include "proto/wire.h"

#define ZPS_UNEXPECTED_ROUNDS_MAX 4096u /* the oldest make room for new ones: they may never begin here */
#define ZPS_UNEXPECTED_BYTES_MAX (64ull << 20)
#define ZPS_PAST_ROUNDS 256u
#define ZPS_MISSED_ROUNDS 1024u

struct zps_unexpected_message {
  struct zps_unexpected_message *next;
  uint32_t src, frame_bytes; /* frame_bytes: of the frame it came in, for that frame's first message; else 0 */
  struct zps_slice slice;    /* inline: `data` lies behind this struct */
};

struct zps_unexpected_abort {
  struct zps_unexpected_abort *next;
  uint32_t src;
  struct zps_frame_abort abort;
};

struct zps_unexpected_round {
  struct zps_unexpected_round *next;
  uint32_t tensor;
  uint64_t step, bytes;
  bool overflown; /* messages or aborts were dropped */
  struct zps_unexpected_message *messages, **tail;
  struct zps_unexpected_abort *aborts; /* of attempts at this step; a rank's messages are those after its last one */
};

struct zps_unexpected { /* all zeros: empty */
  struct zps_unexpected_round *rounds;
  unsigned n_rounds;
  uint64_t bytes;
  struct {
    uint32_t tensor;
    uint64_t step;
  } past[ZPS_PAST_ROUNDS]; /* rounds that were done here, so that late frames are not taken for unexpected ones */
  unsigned n_past;
  struct {
    uint32_t tensor;
    uint64_t step;
  } missed[ZPS_MISSED_ROUNDS]; /* rounds whose messages were dropped, and that have no entry which says so */
  unsigned n_missed;
};

void zps_unexpected_fini(struct zps_unexpected *unexpected);
void zps_unexpected_add(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step, uint32_t src,
                        uint32_t frame_bytes, const struct zps_slice *slice);
void zps_unexpected_abort(struct zps_unexpected *unexpected, uint32_t src, const struct zps_frame_abort *abort);
/* The messages and aborts that have come for this round, for the caller to free; NULL: none. *dropped_p: some were
 * dropped. */
struct zps_unexpected_round *zps_unexpected_take(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step,
                                                 bool *dropped_p);
void zps_unexpected_round_free(struct zps_unexpected_round *round);
/* A message on its own, copied; NULL: no memory. */
struct zps_unexpected_message *zps_unexpected_copy(uint32_t src, const struct zps_slice *slice);
/* Bytes that it takes. */
uint64_t zps_unexpected_cost(const struct zps_unexpected_message *message);

void zps_unexpected_note_past(struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step);
bool zps_unexpected_is_past(const struct zps_unexpected *unexpected, uint32_t tensor, uint64_t step);

#endif
