#include "server/coordinator/layout.h"

#include <string.h>

uint32_t zps_layout_parts(uint64_t rows, uint32_t width, uint32_t n_servers, uint32_t asked) {
  uint64_t n = asked;
  if (!n) {
    const uint64_t least = (uint64_t)n_servers * ZPS_LAYOUT_PARTS_PER_SERVER;
    uint64_t most = (uint64_t)n_servers * ZPS_LAYOUT_PARTS_PER_SERVER_MAX;
    if (most > ZPS_LAYOUT_PARTS_MAX) most = ZPS_LAYOUT_PARTS_MAX;
    n = rows * width / ZPS_LAYOUT_VALUES_MIN;
    if (n > most) n = most;
    if (n < least) n = least;
    if (n > rows / ZPS_LAYOUT_ROWS_MIN) n = rows / ZPS_LAYOUT_ROWS_MIN;
    if (n < (rows >> 31) + 1) n = (rows >> 31) + 1;
    if (n > ZPS_PARTITION_PARTS_MAX) n = ZPS_PARTITION_PARTS_MAX;
  }
  return (uint32_t)(n > rows ? rows : n);
}

void zps_layout_owners(uint32_t tensor, uint32_t n_servers, uint32_t n_parts, uint32_t *owners) {
  for (uint32_t p = 0; p < n_parts; p++) owners[p] = (uint32_t)(((uint64_t)tensor + p) % n_servers);
}

bool zps_layout_is_even(const char *scheme) {
  static const char *const names[] = {"sparse-ps", "dense-ps", "omnireduce"};
  const size_t len = strcspn(scheme, " ");
  for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strlen(names[i]) == len && strncmp(scheme, names[i], len) == 0) return true;
  }
  return false;
}

void zps_layout_even(uint64_t rows, uint32_t width, uint32_t n_servers, uint32_t *n_parts_p, uint32_t *block_bits_p) {
  const uint64_t least = (uint64_t)n_servers * ZPS_LAYOUT_RANGES_PER_SERVER;
  uint64_t most = (uint64_t)n_servers * ZPS_LAYOUT_RANGES_PER_SERVER_MAX;
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
