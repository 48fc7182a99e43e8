/* The expected results of encode, reduce and decode, computed the slow and obvious way, and gradients to feed them. */
#ifndef ZPS_TESTS_CODEC_CODEC_REFERENCE_H
#define ZPS_TESTS_CODEC_CODEC_REFERENCE_H

#include "common/base/rng.h"
#include "common/codec/codec.h"
#include "common/codec/encode.h"
#include "common/codec/partition_murmur.h"
#include "tests/support/thin.h"

/* A gradient of one rank, dense, as unsorted rows with repeats, or both (the dense one is then the rows added up; not
 * of halves, whose sums are floats). */
struct ref_gradient {
  uint64_t rows;
  uint32_t width;
  enum zps_dtype dtype;
  void *dense;      /* rows * width */
  bool *present;    /* per row: not all zero */
  int64_t *row_ids; /* n_entries */
  void *values;     /* n_entries * width */
  uint64_t n_entries;
};

/* In place of block bits: rows are hashed one by one. */
#define REF_HASHED UINT32_MAX
/* A partition, and its table where rows are hashed (else NULL). */
struct zps_murmur *ref_partition(uint64_t rows, uint32_t n_parts, uint32_t block_bits, uint64_t seed,
                                 struct zps_partition *part);

size_t ref_row_bytes(const struct ref_gradient *gradient);
/* About density * rows rows are not zero; values include NaN, infinities, -0.0 and subnormals. */
struct ref_gradient ref_dense(struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype, double density);
/* About density * rows entries; rows repeat often, some add up to zero, some are zero from the start. */
struct ref_gradient ref_coo(struct zps_rng *rng, uint64_t rows, uint32_t width, enum zps_dtype dtype, double density);
void ref_free(struct ref_gradient *gradient);
struct zps_encode_input ref_input(const struct ref_gradient *gradient, const struct zps_partition *part);

/* sums += values, element by element. */
void ref_add(enum zps_dtype dtype, void *sums, const void *values, uint64_t n);
/* One value as text-book addition sees it: value `i` of an array. */
bool ref_is_zero(enum zps_dtype dtype, const void *values, uint64_t n);

/* Fails the test unless n bytes are the same; where they are not, cmocka says which. Its own assert_memory_equal() goes
 * byte by byte, which takes half of a test's time where most of it compares. */
void ref_assert_same(const void *a, const void *b, size_t n);

/* Fails the test unless `view` holds exactly the rows of partition `p` for which present[] is set, with the bits of
 * `dense`. */
void ref_assert_slice(const struct zps_partition *part, uint32_t p, const struct zps_slice_view *view,
                      const bool *present, const void *dense);

#endif
