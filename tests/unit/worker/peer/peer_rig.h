/*
 * One worker's rounds between ranks, where the other ranks are fakes: the test sends their messages by hand, as a
 * scheme's program has them, or others. Gradients are of floats, ROWS x WIDTH at most.
 */
#ifndef ZPS_TESTS_WORKER_PEER_PEER_RIG_H
#define ZPS_TESTS_WORKER_PEER_PEER_RIG_H

#include "tests/unit/worker/round/worker_rig.h"
#include "worker/peer/peer.h"

enum { PEER_WIDTH = 2, PEER_ROWS_MAX = 1 << 16, PEER_TENSOR = 9 };

struct peer_config {
  struct rig_config worker; /* rank, world */
  const struct zps_peer_scheme *scheme;
  uint64_t rows;
  enum zps_op op;        /* 0: sum */
  const uint32_t *hosts; /* per rank; NULL: all on their own */
  const uint32_t *ranks; /* n_ranks of them, with the worker's: those that take part; NULL: all */
  uint32_t n_ranks;
};

/* A message of the worker's that the test has not taken. */
struct peer_message {
  struct peer_message *next;
  uint64_t step;
  struct zps_slice slice;
  _Alignas(8) uint8_t bytes[];
};

struct peer_rig {
  struct worker_rig worker;
  struct zps_round_tensor tensor;
  struct zps_peer_tensor peer;
  struct peer_message *messages[RIG_FAKES_MAX]; /* per rank: those to it */
  float in[PEER_ROWS_MAX * PEER_WIDTH], out[PEER_ROWS_MAX * PEER_WIDTH];
  float theirs[RIG_FAKES_MAX][PEER_ROWS_MAX * PEER_WIDTH]; /* gradients of the other ranks */
  struct rig_request request;                              /* for tests of one round */
};

void peer_open(struct peer_rig *rig, const struct peer_config *config);
void peer_close(struct peer_rig *rig);
/* Every `every`-th row of each rank's is not zero, rank r's shifted by r. */
void peer_draw(struct peer_rig *rig, unsigned every);
/* A dense gradient; a dense result in request->out.values; NULL: in rig->out. */
void peer_begin(struct peer_rig *rig, struct rig_request *request, uint64_t step, uint64_t timeout_ms);
/* rig->out is the sum of all. */
void peer_check(const struct peer_rig *rig);

/* The rank sends a message: rows [lo, hi) of `values`, which begin with row lo. */
enum peer_how { PEER_INLINE, PEER_READ }; /* in the frame; in the rank's memory */
void peer_say(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, enum peer_how how, uint64_t lo,
              uint64_t hi, const float *values);
/* Says all rows, zeros too. */
void peer_say_all(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, enum peer_how how, uint64_t lo,
                  uint64_t hi, const float *values);
void peer_say_slice(struct peer_rig *rig, uint32_t r, uint64_t step, const struct zps_slice *slice);

/* Whether such a message to the rank has come; taken: waits for it, and the caller frees it. */
bool peer_has(const struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag);
struct peer_message *peer_take(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag);
/* Takes it and holds it against rows [lo, hi) of `values`. */
void peer_expect(struct peer_rig *rig, uint32_t r, uint64_t step, uint32_t tag, uint64_t lo, uint64_t hi,
                 const float *values);

#endif
