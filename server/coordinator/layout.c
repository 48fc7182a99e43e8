#include "server/coordinator/layout.h"

#include "common/codec/partition.h"

uint32_t zps_layout_parts(uint64_t rows, uint32_t n_servers, uint32_t asked) {
  uint64_t n = asked;
  if (!n) {
    n = (uint64_t)n_servers * ZPS_LAYOUT_PARTS_PER_SERVER;
    if (n > rows / ZPS_LAYOUT_ROWS_MIN) n = rows / ZPS_LAYOUT_ROWS_MIN;
    if (n < (rows >> 31) + 1) n = (rows >> 31) + 1;
    if (n > ZPS_PARTITION_PARTS_MAX) n = ZPS_PARTITION_PARTS_MAX;
  }
  return (uint32_t)(n > rows ? rows : n);
}

void zps_layout_owners(uint32_t tensor, uint32_t n_servers, uint32_t n_parts, uint32_t *owners) {
  for (uint32_t p = 0; p < n_parts; p++) owners[p] = (uint32_t)(((uint64_t)tensor + p) % n_servers);
}
