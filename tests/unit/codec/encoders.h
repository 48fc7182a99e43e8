/* Both encoders and a pool, made once for all tests of a program. Include after cmocka. */
#ifndef ZPS_TESTS_CODEC_ENCODERS_H
#define ZPS_TESTS_CODEC_ENCODERS_H

#include "common/base/workpool.h"
#include "common/codec/encode.h"

struct encoders {
  struct zps_encoder *ordered, *hierarchical;
  struct zps_workpool *pool;
};

static inline int encoders_setup(void **state) {
  static struct encoders encoders;
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_STRATIFIED, &encoders.ordered), ZPS_OK);
  assert_int_equal(zps_encoder_create(ZPS_PARTITIONER_HIERARCHICAL, &encoders.hierarchical), ZPS_OK);
  assert_int_equal(zps_workpool_create(3, "encode", &encoders.pool), ZPS_OK);
  *state = &encoders;
  return 0;
}

static inline int encoders_teardown(void **state) {
  struct encoders *const encoders = *state;
  zps_encoder_destroy(encoders->ordered);
  zps_encoder_destroy(encoders->hierarchical);
  zps_encoder_destroy(NULL);
  zps_workpool_destroy(encoders->pool);
  return 0;
}

#endif
