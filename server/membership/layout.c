#include "server/membership/layout.h"

#include <string.h>

#include "proto/wire.h"

static uint64_t quotient_up(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

/* Partitions that each server has at least, where there are rows enough: of a small tensor, they travel inside frames.
 */
static uint64_t least_each(uint64_t bytes, uint32_t world, uint32_t n_servers) {
  const uint64_t n = quotient_up(bytes, (uint64_t)n_servers * zps_wire_inline_bytes(bytes, world, n_servers));
  return n < ZPS_LAYOUT_PARTS_PER_SERVER ? n : ZPS_LAYOUT_PARTS_PER_SERVER;
}

static uint64_t default_parts(uint64_t rows, uint32_t width, uint64_t row_bytes, uint32_t world, uint32_t n_first,
                              uint32_t n_servers) {
  const uint64_t least = n_servers * least_each(rows * row_bytes, world, n_servers);
  uint64_t most = (uint64_t)n_first * ZPS_LAYOUT_PARTS_PER_SERVER_MAX;
  if (most > ZPS_LAYOUT_PARTS_MAX) most = ZPS_LAYOUT_PARTS_MAX;
  const uint64_t by_values = rows * width / ZPS_LAYOUT_VALUES_MIN, by_rows = rows / ZPS_LAYOUT_ROWS_MIN;
  const uint64_t each = by_values < n_servers ? by_values : n_servers; /* servers that take part, however few rows */
  uint64_t n = by_values > most ? most : by_values;
  if (n < least) n = least;
  if (n > by_rows) n = by_rows < each ? each : by_rows;
  if (n > n_servers) n -= n % n_servers;
  if (n < (rows >> 31) + 1) n = (rows >> 31) + 1;
  return n > ZPS_PARTITION_PARTS_MAX ? ZPS_PARTITION_PARTS_MAX : n;
}

struct zps_layout zps_layout_of(uint64_t rows, uint32_t width, enum zps_dtype dtype, uint32_t world, uint32_t n_first,
                                uint32_t n_servers, uint32_t asked) {
  struct zps_layout layout = {.n_owners = n_servers};
  const uint64_t all = (uint64_t)n_servers * ZPS_LAYOUT_SERVER_BYTES / world; /* of a tensor that all servers share */
  const uint64_t row_bytes = zps_row_bytes(width, dtype);
  uint64_t n = asked;
  if (!asked && rows <= all / row_bytes) {
    const uint64_t bytes = rows * row_bytes;
    layout.n_owners = (uint32_t)quotient_up(bytes * world, ZPS_LAYOUT_SERVER_BYTES);
    n = layout.n_owners * quotient_up(bytes, (uint64_t)layout.n_owners * ZPS_WIRE_INLINE_MAX);
  } else if (!asked) {
    n = default_parts(rows, width, row_bytes, world, n_first, n_servers);
  }
  layout.n_parts = (uint32_t)(n > rows ? rows : n);
  return layout;
}

void zps_layout_owners(const struct zps_layout *layout, uint32_t tensor, uint32_t n_servers, uint32_t *owners) {
  for (uint32_t p = 0; p < layout->n_parts; p++)
    owners[p] = (uint32_t)(((uint64_t)tensor + p % layout->n_owners) % n_servers);
}

bool zps_layout_is_even(const char *scheme) {
  static const char *const names[] = {"sparse-ps", "dense-ps", "omnireduce"};
  for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(scheme, names[i]) == 0) return true;
  }
  return false;
}

void zps_layout_even(uint64_t rows, uint32_t width, uint32_t n_first, uint32_t n_servers, uint32_t *n_parts_p,
                     uint32_t *block_bits_p) {
  const uint64_t fewest = (uint64_t)n_servers * (ZPS_LAYOUT_RANGES_PER_SERVER / 2);
  uint64_t least = (uint64_t)n_first * ZPS_LAYOUT_RANGES_PER_SERVER;
  uint64_t most = (uint64_t)n_first * ZPS_LAYOUT_RANGES_PER_SERVER_MAX;
  if (least < fewest) least = fewest;
  if (most > ZPS_LAYOUT_PARTS_MAX) most = ZPS_LAYOUT_PARTS_MAX;
  if (most > rows * width / ZPS_LAYOUT_VALUES_MIN) most = rows * width / ZPS_LAYOUT_VALUES_MIN;
  if (most < least) most = least;
  if (most > ZPS_PARTITION_PARTS_MAX) most = ZPS_PARTITION_PARTS_MAX;
  uint32_t bits = 0;
  while (bits < ZPS_PARTITION_BLOCK_BITS_MAX && ((rows - 1) >> bits) >= most) bits++;
  *n_parts_p = (uint32_t)((rows - 1) >> bits) + 1;
  *block_bits_p = bits;
}

void zps_layout_even_owners(const struct zps_partition *part, uint32_t tensor, uint32_t n_servers, uint32_t *owners) {
  for (uint32_t p = 0; p < part->n_parts; p++) {
    const uint64_t range = zps_partition_block(part, 0, p) * n_servers / part->n_parts;
    owners[p] = (uint32_t)((tensor + range) % n_servers);
  }
}
