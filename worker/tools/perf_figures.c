/* What the operations of a case cost this rank. */
#include <stdlib.h>
#include <string.h>

#include "worker/tools/perf.h"

/* A push and a pull that were in flight together cost as much as one operation. */
static zenps_status_t add_push(const zenps_request_t *request, zenps_request_stats_t *stats) {
  zenps_request_stats_t push = {.struct_size = sizeof push};
  const zenps_status_t status = zenps_request_stats(request, &push);
  if (status != ZENPS_OK) return status;
  stats->bytes_out += push.bytes_out;
  stats->bytes_in += push.bytes_in;
  stats->payload_out += push.payload_out;
  stats->bound_bytes += push.bound_bytes;
  stats->nnz_in = push.nnz_in;
  stats->encode_ns = push.encode_ns;
  stats->push_ns = push.push_ns;
  return status;
}

zenps_status_t perf_figures_add(struct perf *perf, const zenps_request_t *request, const zenps_request_t *push,
                                double ms, uint64_t index) {
  struct perf_result *result = &perf->result;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  uint32_t *sent = calloc(2 * (size_t)result->partitions, sizeof *sent), *in_union = sent + result->partitions;
  if (!sent) return ZENPS_ERR_NOMEM;
  zenps_status_t status = zenps_request_stats(request, &stats);
  if (status == ZENPS_OK) status = zenps_request_partition_nnz(request, sent, in_union);
  if (status == ZENPS_OK && push) status = zenps_request_partition_nnz(push, sent, NULL);
  if (status == ZENPS_OK && push) status = add_push(push, &stats);
  if (status == ZENPS_OK) {
    uint64_t most_sent = 0, most_union = 0;
    for (uint32_t p = 0; p < result->partitions; p++) {
      result->sent[p] += sent[p];
      result->in_union[p] += in_union[p];
      if (sent[p] > most_sent) most_sent = sent[p];
      if (in_union[p] > most_union) most_union = in_union[p];
    }
    if (stats.nnz_in) result->worst_push += (double)result->partitions * (double)most_sent / (double)stats.nnz_in;
    if (stats.nnz_out) result->worst_pull += (double)result->partitions * (double)most_union / (double)stats.nnz_out;
    result->ran = index == 0 || (result->ran && strcmp(result->ran, stats.scheme) == 0) ? stats.scheme : NULL;
    result->ms[index] = ms;
    result->encode_ms[index] = (double)stats.encode_ns / 1e6;
    result->push_ms[index] = (double)stats.push_ns / 1e6;
    result->wait_ms[index] = (double)stats.wait_ns / 1e6;
    result->pull_ms[index] = (double)stats.pull_ns / 1e6;
    result->decode_ms[index] = (double)stats.decode_ns / 1e6;
    result->bytes_out += stats.bytes_out;
    result->bytes_in += stats.bytes_in;
    result->payload_out += stats.payload_out;
    result->payload_in += stats.payload_in;
    result->shared_out += stats.shared_out;
    result->shared_in += stats.shared_in;
    result->bound_bytes += stats.bound_bytes;
    result->nnz_in += stats.nnz_in;
    result->nnz_out += stats.nnz_out;
    result->partitioned_in = (int)stats.partitioned_in;
    result->merged_in = (int)stats.merged_in;
    result->hash_parallel += stats.hash_parallel;
    result->hash_serial += stats.hash_serial;
    result->hash_lost_races += stats.hash_lost_races;
    result->late += (uint64_t)stats.late;
  }
  free(sent);
  return status;
}

zps_err_t perf_figures_init(struct perf *perf, struct zps_error *error) {
  struct perf_result *result = &perf->result;
  double **arrays[] = {&result->start_s, &result->ms,      &result->encode_ms, &result->push_ms,
                       &result->wait_ms, &result->pull_ms, &result->decode_ms};
  result->steps = perf->left;
  result->partitions = zenps_tensor_partitions(perf->tensor);
  bool ok = true;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
    ok &= (*arrays[i] = calloc(result->steps, sizeof(double))) != NULL;
  ok &= (result->sent = calloc(result->partitions, sizeof(uint64_t))) != NULL;
  ok &= (result->in_union = calloc(result->partitions, sizeof(uint64_t))) != NULL;
  return ok ? ZPS_OK
            : zps_fail(error, ZPS_ERR_NOMEM, "out of memory for the results of %llu steps",
                       (unsigned long long)result->steps);
}

void perf_figures_fini(struct perf *perf) {
  struct perf_result *const result = &perf->result;
  free(result->start_s);
  free(result->ms);
  free(result->encode_ms);
  free(result->push_ms);
  free(result->wait_ms);
  free(result->pull_ms);
  free(result->decode_ms);
  free(result->sent);
  free(result->in_union);
}
