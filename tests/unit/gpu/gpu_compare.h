/* The cpu implementation and a device side by side: the emulated one, or one of the library that ZENPS_DEVICE_LIBRARY
 * names, such as libzenps_cuda.so.0 on a host with a GPU. */
#ifndef ZPS_TESTS_GPU_GPU_COMPARE_H
#define ZPS_TESTS_GPU_GPU_COMPARE_H

#include <stdio.h>

#include "tests/gpu/emu/control.h"
#include "tests/unit/codec/codec_reference.h"
#include "tests/unit/gpu/gpu_rig.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

enum {
  COO = 1u << ZPS_CODEC_COO,
  BITMAP = 1u << ZPS_CODEC_BITMAP,
  RICE = 1u << ZPS_CODEC_RICE,
  HOLES = 1u << ZPS_CODEC_HOLES,
  ALL = COO | BITMAP | RICE | HOLES,
};

struct shape {
  uint64_t rows;
  uint32_t width, n_parts, block_bits;
  enum zps_dtype dtype;
};

extern struct gpu_rig cpu, emu;
/* Whether `emu` is the emulation that is linked in, of which tests know more than of a device: the functions of
 * control.h have no effect on another. */
extern bool is_emulated;
extern const struct shape gpu_shapes[];
extern const struct shape gpu_stripes; /* a tensor of several, of single floats */
enum { N_SHAPES = 18 };

/* Of a group of tests, and of a test: kernels must have made no mistake. */
int gpu_group_setup(void **state);
int gpu_group_teardown(void **state);
int gpu_setup(void **state);
int gpu_teardown(void **state);

struct zps_partition partition_of(const struct shape *shape, uint64_t seed);
/* Fails the test unless both hold the same; sums may differ in which of several NaNs they are. */
void assert_same_slices(const struct gpu_slices *a, const struct gpu_slices *b, uint32_t width, enum zps_dtype dtype);
/* Codes a gradient on the host, every partition as the codec that `pick` says. */
struct gpu_slices encode_as(const struct ref_gradient *gradient, const struct zps_partition *part, unsigned pick,
                            enum zps_value_codec value_codec);

#endif
