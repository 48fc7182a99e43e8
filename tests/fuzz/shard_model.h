/* What ranks push to a shard and what they must be told: each contribution follows from tensor, step, rank and
 * partition, so that whoever pushes it, whenever and however often, the sum of a step is known. */
#ifndef ZPS_TESTS_FUZZ_SHARD_MODEL_H
#define ZPS_TESTS_FUZZ_SHARD_MODEL_H

#include "proto/control_tensor.h"
#include "server/shard/tensor.h"
#include "tests/fuzz/peer.h"

enum { MODEL_RANKS = 3, MODEL_TENSORS = 2, MODEL_PARTS = 4, MODEL_STEPS = 8, MODEL_ROWS = 64, MODEL_WIDTH = 80 };
#define MODEL_BYTES_MAX (MODEL_ROWS * (MODEL_WIDTH * sizeof(double) + sizeof(uint32_t)))

/* What a rank has said of a step. */
struct model_asked {
  bool sent[MODEL_PARTS];
  bool all; /* with a PUSH; */
  unsigned n_pulls;
  uint64_t wanted[MODEL_PARTS]; /* by these, rows */
};

struct model_tensor {
  struct zps_tensor_spec spec;
  uint32_t world;
  uint32_t owners[MODEL_PARTS], ranks[MODEL_RANKS];
  uint32_t sizes[MODEL_PARTS]; /* rows */
  bool here[MODEL_PARTS];      /* this server's, in the epoch at hand */
  bool is_open, any_order;
  struct {
    bool tainted; /* a rank has said something else, too: no sum of it is known */
    struct model_asked ranks[MODEL_RANKS];
  } steps[MODEL_STEPS];
};

/* What a rank pushes of a partition: values, coded; then indices. */
struct model_slice {
  uint32_t nnz;
  uint8_t codec;
  bool is_wide;
  uint64_t len_bytes;
  _Alignas(16) uint8_t bytes[MODEL_BYTES_MAX];
};

bool model_takes_part(const struct model_tensor *tensor, uint32_t rank);
void model_slice(const struct model_tensor *tensor, uint64_t step, uint32_t rank, uint32_t part, bool is_coo,
                 bool is_wide, struct model_slice *slice);
/* A RESULT or FOUND frame's slice that this rank was sent, of the sum of this step, whose bytes are `data`. Aborts the
 * program where it is not what it must be. */
void model_check(const struct model_tensor *tensor, uint64_t step, uint32_t rank, bool is_found,
                 const struct zps_slice *slice, const void *data);

#endif
