#include "common/codec/runs.h"

#include "common/base/varint.h"

uint8_t *zps_index_run_put(uint8_t *at, uint32_t end, struct zps_index_run run) {
  at = zps_varint_put(at, (uint64_t)(run.first - end) << 1 | (run.n > 1));
  return run.n > 1 ? zps_varint_put(at, run.n - 2) : at;
}

zps_err_t zps_index_run_get(const uint8_t **at_p, const uint8_t *bytes_end, uint32_t end, uint32_t m,
                            struct zps_index_run *run_p, struct zps_error *error) {
  uint64_t gap, more = 0;
  bool ok = zps_varint_get(at_p, bytes_end, &gap);
  const bool several = ok && gap & 1;
  if (several) ok = zps_varint_get(at_p, bytes_end, &more);
  if (!ok) return zps_fail(error, ZPS_ERR_PROTOCOL, "a run after index %u: no number where one is due", end);
  const uint64_t left = m - end, n = several ? more + 2 : 1;
  gap >>= 1;
  if (gap >= left || more > UINT32_MAX || n > left - gap)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "a run of %llu rows, %llu after index %u, in a partition of %u",
                    (unsigned long long)n, (unsigned long long)gap, end, m);
  *run_p = (struct zps_index_run){.first = end + (uint32_t)gap, .n = (uint32_t)n};
  return ZPS_OK;
}

bool zps_runs_have(const struct zps_index_run *runs, size_t n_runs, const uint32_t *indices, uint32_t n) {
  size_t at = 0;
  for (uint32_t i = 0; i < n; i++) {
    while (at < n_runs && indices[i] - runs[at].first >= runs[at].n && indices[i] >= runs[at].first) at++;
    if (at == n_runs || indices[i] < runs[at].first) return false;
  }
  return true;
}
