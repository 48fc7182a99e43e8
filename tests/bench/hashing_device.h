/* Algorithm 1 on a device, through its vtable: as in rounds, from a dense gradient to slices in the order of slots. */
#ifndef ZPS_TESTS_BENCH_HASHING_DEVICE_H
#define ZPS_TESTS_BENCH_HASHING_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/codec/hierarchical.h"

struct hashing_device;

/* The device of `library`; NULL after a line on stderr. */
struct hashing_device *hashing_device_open(const char *program, const char *library);
void hashing_device_close(struct hashing_device *device); /* NULL is allowed */

/* A gradient of `rows` floats, zero but at n indices, over n_parts partitions by the seed's h0. False after a line on
 * stderr, as of the next one. */
bool hashing_device_put(struct hashing_device *device, uint64_t rows, uint32_t n_parts, uint64_t seed,
                        const uint64_t *indices, uint64_t n);

struct hashing_device_times {
  double hash_ns, walk_ns; /* of the fastest of the runs; walk: rows are found and dealt in order instead */
  struct zps_hier_stats stats;
};
bool hashing_device_run(struct hashing_device *device, const struct zps_hier_options *options, uint64_t runs,
                        struct hashing_device_times *times);

#endif
