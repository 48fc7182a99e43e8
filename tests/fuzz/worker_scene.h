/* A rank without its API, whose data plane and rounds are the real ones, and the ends of the servers and other ranks
 * that it is linked to, made by hand; what these say is read from a fuzzer's bytes. */
#ifndef ZPS_TESTS_FUZZ_WORKER_SCENE_H
#define ZPS_TESTS_FUZZ_WORKER_SCENE_H

#include "tests/fuzz/peer.h"
#include "worker/peer/peer.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"
#include "worker/served/served.h"

enum {
  SERVERS = 2,
  RANKS = 3, /* with the rank itself, which is number 0 */
  MEMBERS = SERVERS + RANKS - 1,
  TENSORS = 2,
  SERVED_TENSOR = 5, /* over servers */
  PEER_TENSOR = 9,   /* between ranks: each tells its rows to all others */
  STEPS = 6,
  ROWS_MAX = 48,
  WIDTH_MAX = 2,
  PARTS_MAX = 4,
  ARENA_BYTES = 1 << 15
};

struct input {
  const uint8_t *at, *end;
};
unsigned input_next(struct input *input); /* 0 behind the last one */

/* A server, or another rank. */
struct member {
  struct peer peer;
  bool is_rank;
  uint32_t number;
  struct zps_net_mem memory; /* what it exposes */
  size_t used_bytes;
  uint32_t seek, seek_age, seek_age_max; /* of the last SEEK */
  uint64_t seek_step;
};

struct scene {
  struct zps_plane plane;
  struct zps_rounds rounds;
  struct zps_round_tensor tensors[TENSORS]; /* over servers; between ranks */
  struct zps_peer_tensor peer;
  uint32_t owners[PARTS_MAX];
  uint32_t rows, width, world;
  struct member members[MEMBERS];
  bool has_lied[TENSORS][STEPS]; /* somebody said of a step's sum what is not so */
};
extern struct scene scene;

/* The value at `i` of a rank's gradient, and of the sum of all. */
float scene_value(uint32_t rank, uint64_t step, uint32_t i);
float scene_sum(uint64_t step, uint32_t i);

void member_open(uint32_t i);
/* What a member should say, of a sum or its gradient; or with something of it spoilt. */
void member_answer(struct input *input, bool is_spoilt);
/* TAKEN, MISSED, ABORT, DONE. */
void member_say(struct input *input);
/* A frame with any bytes as its body, a message with the frame of another, or any bytes at all. */
void member_say_body(struct input *input);

#endif
