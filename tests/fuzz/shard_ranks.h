/* The ranks of a job on a shard, whose words are read from a fuzzer's bytes, and what they hear. */
#ifndef ZPS_TESTS_FUZZ_SHARD_RANKS_H
#define ZPS_TESTS_FUZZ_SHARD_RANKS_H

#include "tests/fuzz/shard_model.h"

enum { ARENA_BYTES = 1 << 18, FETCHES = 64 };

struct input {
  const uint8_t *at, *end;
};

struct fetch;

struct rank {
  struct peer peer;
  uint32_t number;
  struct zps_net_mem memory, fetched; /* what it exposes; where its reads go */
  size_t used_bytes;                  /* of the former */
  struct fetch *fetches;
  bool is_honest; /* it has said nothing for which its link ends, and nothing was said of it */
};

/* One at a time. */
struct scene {
  struct zps_shard *shard;
  uint32_t world, epoch;
  struct rank ranks[MODEL_RANKS];
  struct model_tensor tensors[MODEL_TENSORS];
};
extern struct scene scene;

/* 0 behind the last one. */
unsigned input_next(struct input *input);

/* Opens it, not yet connected. */
void rank_open(uint32_t number);
/* A PUSH or GIVE: of what it should be, or with one member of the frame spoilt. */
void rank_push(struct input *input, uint8_t type, bool is_spoilt);
/* A PULL or SEEK. */
void rank_pull(struct input *input, uint8_t type);
/* A DONE or ABORT. */
void rank_say(struct input *input, uint8_t type);
/* What no member says, sealed as a member's: a frame with any bytes as its body. */
void rank_say_body(struct input *input);
/* A message of two frames, of which the second is another rank's. */
void rank_say_for_another(struct input *input);
/* Any bytes as a message, sealed or not. */
void rank_say_bytes(struct input *input);

#endif
