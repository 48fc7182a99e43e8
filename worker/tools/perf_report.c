#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/codec_choice.h"
#include "common/control/json.h"
#include "worker/tools/gather.h"
#include "worker/tools/perf.h"
#include "worker/tools/settle.h"

/* The fields that every rank contributes to the summary, in this order. */
enum {
  BYTES_OUT,
  BYTES_IN,
  PAYLOAD_OUT,
  PAYLOAD_IN,
  BOUND,
  NNZ_IN,
  NNZ_OUT,
  SHARED_OUT,
  SHARED_IN,
  HASH_PARALLEL,
  HASH_SERIAL,
  HASH_LOST_RACES,
  WORST_PUSH,
  CPU_MS,
  VERIFIED,
  LATE,
  SKIPPED,
  DIGEST_HIGH,
  DIGEST_LOW,
  N_FIELDS
};

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The q-quantile of n values, which get sorted. */
static double quantile(double *values, uint64_t n, double q) {
  qsort(values, n, sizeof *values, by_value);
  const uint64_t at = (uint64_t)ceil(q * (double)n);
  return values[at > 0 ? at - 1 : 0];
}

struct summary {
  double fields[N_FIELDS]; /* means over ranks, per step */
  double median_ms, p99_ms;
  double imbalance_push, imbalance_pull, imbalance_push_step, imbalance_pull_step;
  double max_host_bytes;
  double *late, skipped; /* late: by rank, steps that closed without it; NULL: no memory. skipped: of all ranks */
  bool verified;
};

/* Imbalance by Zen's definition 8, with each rank's rows per partition accumulated over the steps; and the load of the
 * busiest process, a rank or a server, each counted as a host of its own, in its busier direction. */
static void find_imbalance(const struct perf *perf, const double *sent, const double *fields, struct summary *summary) {
  const struct perf_result *result = &perf->result;
  const uint32_t n_parts = result->partitions;
  const int world = zenps_world(perf->job), n_servers = zenps_servers(perf->job);
  const double steps = (double)result->steps, value_bytes = (double)(perf->options.width * perf->value_bytes);
  for (int rank = 0; rank < world; rank++) {
    double total = 0, most = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
      total += sent[(size_t)rank * n_parts + p];
      most = fmax(most, sent[(size_t)rank * n_parts + p]);
    }
    if (total > 0) summary->imbalance_push = fmax(summary->imbalance_push, n_parts * most / total);
    summary->imbalance_push_step = fmax(summary->imbalance_push_step, fields[rank * N_FIELDS + WORST_PUSH] / steps);
    summary->max_host_bytes = fmax(
        summary->max_host_bytes, fmax(fields[rank * N_FIELDS + BYTES_IN], fields[rank * N_FIELDS + BYTES_OUT]) / steps);
  }
  double most = 0;
  for (uint32_t p = 0; p < n_parts; p++) most = fmax(most, (double)result->in_union[p]);
  if (result->nnz_out > 0) summary->imbalance_pull = n_parts * most / (double)result->nnz_out;
  summary->imbalance_pull_step = result->worst_pull / steps;

  const double push_row = summary->fields[NNZ_IN] > 0 ? summary->fields[PAYLOAD_OUT] / summary->fields[NNZ_IN] : 0;
  const double index_bytes = ((double)result->payload_in - (double)result->nnz_out * value_bytes) / steps / n_parts;
  for (int server = 0; perf->served && server < n_servers; server++) {
    double in = 0, out = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
      if (zenps_tensor_owner(perf->tensor, p) != server) continue;
      for (int rank = 0; rank < world; rank++) in += sent[(size_t)rank * n_parts + p] / steps * push_row;
      out += world * ((double)result->in_union[p] / steps * value_bytes + index_bytes);
    }
    summary->max_host_bytes = fmax(summary->max_host_bytes, fmax(in, out));
  }
}

/* One tensor for each width that is needed. */
static zenps_status_t gather(struct perf *perf, uint32_t width, const double *own, double **all_p) {
  char name[32];
  snprintf(name, sizeof name, "perf.figures.%u", width);
  return zps_gather(perf->job, name, (*perf->n_gathers_p)++, width, own, all_p);
}

zenps_status_t perf_agree_long(struct perf *perf, double shortest_ms, bool *is_long_p) {
  double *all, most_ms = 0;
  const zenps_status_t status = gather(perf, 1, &shortest_ms, &all);
  if (status != ZENPS_OK) return status;
  for (int rank = 0; rank < zenps_world(perf->job); rank++) most_ms = fmax(most_ms, all[rank]);
  free(all);
  *is_long_p = zps_settle_is_long(most_ms);
  return ZENPS_OK;
}

/* The figures of a rank that has all sums; of the first one where there is none. */
static const double *whole_rank(const double *fields, int world) {
  for (int rank = 0; rank < world; rank++)
    if (fields[rank * N_FIELDS + SKIPPED] == 0) return fields + rank * N_FIELDS;
  return fields;
}

static zenps_status_t summarise(struct perf *perf, struct summary *summary) {
  struct perf_result *result = &perf->result;
  const int world = zenps_world(perf->job);
  const uint64_t steps = result->steps;
  const double own[N_FIELDS] = {(double)result->bytes_out,
                                (double)result->bytes_in,
                                (double)result->payload_out,
                                (double)result->payload_in,
                                (double)result->bound_bytes,
                                (double)result->nnz_in,
                                (double)result->nnz_out,
                                (double)result->shared_out,
                                (double)result->shared_in,
                                (double)result->hash_parallel,
                                (double)result->hash_serial,
                                (double)result->hash_lost_races,
                                result->worst_push,
                                result->cpu_ms,
                                result->verified,
                                (double)result->late,
                                (double)result->skipped,
                                (double)(perf->digest >> 32),
                                (double)(uint32_t)perf->digest};
  double *fields = NULL, *ms = NULL, *sent = NULL, *own_sent = calloc(result->partitions, sizeof *own_sent);
  zenps_status_t status = own_sent ? gather(perf, N_FIELDS, own, &fields) : ZENPS_ERR_NOMEM;
  if (status == ZENPS_OK) status = gather(perf, (uint32_t)steps, result->ms, &ms);
  if (status == ZENPS_OK) {
    for (uint32_t p = 0; p < result->partitions; p++) own_sent[p] = (double)result->sent[p];
    status = gather(perf, result->partitions, own_sent, &sent);
  }
  if (status == ZENPS_OK) {
    summary->verified = true;
    summary->late = calloc((size_t)world, sizeof *summary->late);
    const double *const first = whole_rank(fields, world);
    for (int rank = 0; rank < world; rank++) {
      for (int i = 0; i < N_FIELDS; i++) summary->fields[i] += fields[rank * N_FIELDS + i] / world / (double)steps;
      summary->verified &= fields[rank * N_FIELDS + VERIFIED] != 0;
      const double *const own_fields = fields + rank * N_FIELDS;
      summary->verified &= own_fields[SKIPPED] > 0 || (own_fields[DIGEST_HIGH] == first[DIGEST_HIGH] &&
                                                       own_fields[DIGEST_LOW] == first[DIGEST_LOW]);
      summary->skipped += own_fields[SKIPPED];
      if (summary->late) summary->late[rank] = own_fields[LATE];
      for (uint64_t k = 0; k < steps; k++)
        ms[k] = fmax(ms[k], ms[(uint64_t)rank * steps + k]); /* a step takes as long as its slowest rank */
    }
    memcpy(result->ms, ms, steps * sizeof *ms);
    summary->median_ms = quantile(ms, steps, 0.5);
    summary->p99_ms = quantile(ms, steps, 0.99);
    find_imbalance(perf, sent, fields, summary);
    perf->result.verified = summary->verified;
  }
  free(own_sent);
  free(fields);
  free(ms);
  free(sent);
  return status;
}

/* How many times the least bytes that random rows take; 1 where there is nothing to send. */
static double over_bound(const struct summary *summary, double bytes) {
  return summary->fields[BOUND] > 0 ? bytes / summary->fields[BOUND] : 1;
}

/* When each of the first steps began here, for a reader who watched the machine meanwhile, and how long it took. No
 * more of them than keep the line short: launchers cut long ones. */
static zps_json *timeline(const struct perf_result *result) {
  zps_json *steps = zps_json_array();
  for (uint64_t k = 0; k < result->steps && k < 50; k++) {
    zps_json *step = zps_json_set_real(zps_json_object(), "start_s", result->start_s[k]);
    steps = zps_json_append(steps, zps_json_set_real(step, "ms", result->ms[k]));
  }
  return steps;
}

static zps_json *add_late(zps_json *line, const struct perf *perf, const struct summary *summary) {
  zps_json *late = zps_json_array();
  for (int rank = 0; summary->late && rank < zenps_world(perf->job); rank++)
    late = zps_json_append(late, zps_json_u64((uint64_t)summary->late[rank]));
  line = zps_json_set_u64(line, "quorum", perf->options.quorum);
  line = zps_json_set_u64(line, "grace_ms", perf->options.grace);
  line = zps_json_set_u64(line, "skipped", (uint64_t)summary->skipped);
  return zps_json_set(line, "late", late);
}

static void print_late(const struct perf *perf, const struct summary *summary) {
  printf("late   ");
  for (int rank = 0; summary->late && rank < zenps_world(perf->job); rank++)
    if (summary->late[rank] > 0) printf("rank %d: %.0f steps; ", rank, summary->late[rank]);
  printf("%.0f sums skipped (quorum %llu, grace %llu ms)\n", summary->skipped, (unsigned long long)perf->options.quorum,
         (unsigned long long)perf->options.grace);
}

static void print_json(const struct perf *perf, const struct summary *summary) {
  const struct perf_options *options = &perf->options;
  struct perf_result result = perf->result;
  const double rows = (double)perf->rows, *mean = summary->fields;
  zps_json *steps = timeline(&result); /* before the medians sort what it reads */
  zps_json *phases = zps_json_object();
  phases = zps_json_set_real(phases, "encode_ms", quantile(result.encode_ms, result.steps, 0.5));
  phases = zps_json_set_real(phases, "push_ms", quantile(result.push_ms, result.steps, 0.5));
  phases = zps_json_set_real(phases, "wait_ms", quantile(result.wait_ms, result.steps, 0.5));
  phases = zps_json_set_real(phases, "pull_ms", quantile(result.pull_ms, result.steps, 0.5));
  phases = zps_json_set_real(phases, "decode_ms", quantile(result.decode_ms, result.steps, 0.5));
  zps_json *line = zps_json_object();
  line = zps_json_set_str(line, "system", "zenps");
  line = zps_json_set_u64(line, "n", (uint64_t)zenps_world(perf->job));
  line = zps_json_set_u64(line, "servers", (uint64_t)zenps_servers(perf->job));
  line = zps_json_set_u64(line, "rows", perf->rows);
  line = zps_json_set_u64(line, "width", options->width);
  line = zps_json_set_str(line, "dtype", zps_dtype_name(perf->dtype));
  line = zps_json_set_u64(line, "partitions", result.partitions);
  if (options->trace) line = zps_json_set_str(line, "trace", options->trace);
  if (options->trace) line = zps_json_set_u64(line, "batch", options->batch);
  line = zps_json_set_real(line, "density", mean[NNZ_IN] / rows);
  line = zps_json_set_real(line, "union_density", mean[NNZ_OUT] / rows);
  line = zps_json_set_str(line, "collective", perf_collective_name(options));
  line = zps_json_set_str(line, "scheme", perf->scheme);
  line = zps_json_set_str(line, "ran", result.ran);
  line = zps_json_set_str(line, "partitioner", perf->partitioner);
  line = zps_json_set_str(line, "partitioned_on",
                          !perf->partitioner                           ? NULL
                          : result.partitioned_in == (int)ZENPS_DEVICE ? "device"
                                                                       : "host");
  line = zps_json_set_str(line, "merged_on", zps_gpu_memory_values[result.merged_in == (int)ZENPS_DEVICE]);
  line = zps_json_set_real(line, "hash_parallel", mean[HASH_PARALLEL]);
  line = zps_json_set_real(line, "hash_serial", mean[HASH_SERIAL]);
  line = zps_json_set_real(line, "hash_lost_races", mean[HASH_LOST_RACES]);
  line = zps_json_set_str(line, "memory", zps_gpu_memory_values[options->memory]);
  line = zps_json_set_u64(line, "warmup", perf->first);
  line = zps_json_set_str(line, "provider", zenps_provider(perf->job));
  line = zps_json_set_u64(line, "steps", result.steps);
  line = zps_json_set_real(line, "median_ms", summary->median_ms);
  line = zps_json_set_real(line, "p99_ms", summary->p99_ms);
  line = zps_json_set_real(line, "cpu_ms", mean[CPU_MS]);
  line = zps_json_set_real(line, "bytes_in", mean[BYTES_IN]);
  line = zps_json_set_real(line, "bytes_out", mean[BYTES_OUT]);
  line = zps_json_set_real(line, "payload_in", mean[PAYLOAD_IN]);
  line = zps_json_set_real(line, "payload_out", mean[PAYLOAD_OUT]);
  line = zps_json_set_real(line, "shared_in", mean[SHARED_IN]);
  line = zps_json_set_real(line, "shared_out", mean[SHARED_OUT]);
  line =
      zps_json_set_str(line, "codec", zps_codec_policy_name((enum zps_codec_policy)(ZPS_CODEC_AUTO + options->codec)));
  line = zps_json_set_str(line, "values", perf_values_name(options));
  line = zps_json_set_real(line, "bound_bytes", mean[BOUND]);
  line = zps_json_set_real(line, "bytes_over_bound", over_bound(summary, mean[BYTES_IN] + mean[BYTES_OUT]));
  line = zps_json_set_real(line, "payload_over_bound", over_bound(summary, mean[PAYLOAD_IN] + mean[PAYLOAD_OUT]));
  line = zps_json_set_real(line, "max_host_bytes", summary->max_host_bytes);
  line = zps_json_set_real(line, "dense_bytes", rows * (double)(options->width * perf->value_bytes));
  line = zps_json_set_real(line, "imbalance_push", summary->imbalance_push);
  line = zps_json_set_real(line, "imbalance_pull", summary->imbalance_pull);
  line = zps_json_set_real(line, "imbalance_push_step", summary->imbalance_push_step);
  line = zps_json_set_real(line, "imbalance_pull_step", summary->imbalance_pull_step);
  line = zps_json_set(line, "phases", phases);
  line = zps_json_set(line, "timeline", steps);
  if (options->quorum > 0) line = add_late(line, perf, summary);
  line = options->verify ? zps_json_set_bool(line, "verified", summary->verified)
                         : zps_json_set_str(line, "verified", NULL);
  char *text = zps_json_dump(line);
  puts(text ? text : "{}");
  free(text);
  zps_json_unref(line);
}

static const char *verdict(const struct perf *perf) {
  return perf->options.text.options.bits
             ? "every value of every step is a level next to the reference, and the draws are fair"
         : perf->lossy ? "every step equals what the scheme's definition keeps, bit for bit"
                       : "every step equals the reference sum, bit for bit";
}

static void print_table(const struct perf *perf, const struct summary *summary) {
  const struct perf_options *options = &perf->options;
  struct perf_result result = perf->result;
  const double rows = (double)perf->rows, *mean = summary->fields;
  const double dense = rows * (double)(options->width * perf->value_bytes);
  printf("ranks %d, servers %d, provider %s, scheme %s, %u partitions, gradients in %s memory\n",
         zenps_world(perf->job), zenps_servers(perf->job), zenps_provider(perf->job), perf->scheme, result.partitions,
         zps_gpu_memory_values[options->memory]);
  printf("tensor %llu x %llu %s as %s (%.1f MB dense), density %.4g%%, of the union %.4g%%\n",
         (unsigned long long)perf->rows, (unsigned long long)options->width, zps_dtype_name(perf->dtype),
         perf_values_name(options), dense / 1e6, 100 * mean[NNZ_IN] / rows, 100 * mean[NNZ_OUT] / rows);
  printf("step   median %.3f ms, 99th percentile %.3f ms, over %llu steps after %llu, %s\n", summary->median_ms,
         summary->p99_ms, (unsigned long long)result.steps, (unsigned long long)perf->first,
         result.ran ? result.ran : "under several schemes");
  printf("phases encode %.3f, push %.3f, wait %.3f, pull %.3f, decode %.3f ms (medians of rank 0)\n",
         quantile(result.encode_ms, result.steps, 0.5), quantile(result.push_ms, result.steps, 0.5),
         quantile(result.wait_ms, result.steps, 0.5), quantile(result.pull_ms, result.steps, 0.5),
         quantile(result.decode_ms, result.steps, 0.5));
  printf("bytes  out %.0f, in %.0f per rank and step; busiest process %.0f\n", mean[BYTES_OUT], mean[BYTES_IN],
         summary->max_host_bytes);
  printf("bound  %.0f bytes (values and the entropy of their rows), of which %.4f are sent, %.4f without frames\n",
         mean[BOUND], over_bound(summary, mean[BYTES_IN] + mean[BYTES_OUT]),
         over_bound(summary, mean[PAYLOAD_IN] + mean[PAYLOAD_OUT]));
  if (mean[HASH_PARALLEL] + mean[HASH_SERIAL] > 0)
    printf("hashed %.0f rows to parallel memory, %.0f to serial memory, after %.0f lost races\n", mean[HASH_PARALLEL],
           mean[HASH_SERIAL], mean[HASH_LOST_RACES]);
  printf("imbalance push %.3f, pull %.3f (in single steps %.3f, %.3f)\n", summary->imbalance_push,
         summary->imbalance_pull, summary->imbalance_push_step, summary->imbalance_pull_step);
  if (options->quorum > 0) print_late(perf, summary);
  if (options->verify) printf("verified: %s\n", summary->verified ? verdict(perf) : "NO");
}

zenps_status_t perf_report(struct perf *perf) {
  struct summary summary = {.verified = false};
  const zenps_status_t status = summarise(perf, &summary);
  if (status == ZENPS_OK && zenps_rank(perf->job) == 0) {
    if (perf->options.json) {
      print_json(perf, &summary);
    } else {
      print_table(perf, &summary);
    }
  }
  free(summary.late);
  return status;
}
