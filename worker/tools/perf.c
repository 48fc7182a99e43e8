/*
 * zenps-perf: measures and verifies zenps_allreduce() on random or recorded sparsity patterns. Runs as the ranks of a
 * job, under zenpsrun, torchrun or anything that sets ZENPS_RANK and ZENPS_WORLD_SIZE.
 */
#include "worker/tools/perf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/codec/values.h"

static const char *const dtype_values[] = {"f32", "f64", NULL};
static const char *const layout_values[] = {"dense", "rows", NULL};
static const char *const op_values[] = {"sum", "mean", "max", "min", NULL};
static const char *const codec_values[] = {"auto", "paper", NULL};
static const char *const values_values[] = {ZPS_VALUES_NAME_LIST, NULL};

enum { LEVELS_MAX = 16 };

#define OPT(type_, field, ...)                                                                                  \
  {                                                                                                             \
    .type = (type_), .offset = offsetof(struct perf_options, field), .flags = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV, \
    __VA_ARGS__                                                                                                 \
  }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_UINT, rows, .name = "rows", .short_flag = 'r', .arg = "R", .min = 0, .max = 1e12,
        .help = "rows of the tensor (default: 1048576; with --trace its largest id + 1)"),
    OPT(ZPS_OPT_UINT, width, .name = "width", .short_flag = 'w', .arg = "W", .def = "1", .min = 1, .max = 1048576,
        .help = "values per row"),
    OPT(ZPS_OPT_DOUBLE, density, .name = "density", .short_flag = 'd', .arg = "D", .def = "0.01", .min = 0, .max = 1,
        .help = "share of rows that each rank touches in a step"),
    OPT(ZPS_OPT_DOUBLE, skew, .name = "skew", .arg = "Z", .def = "0", .min = 0, .max = 10,
        .help = "exponent of a power law over row numbers (0: uniform)"),
    OPT(ZPS_OPT_STRING, trace, .name = "trace", .arg = "FILE",
        .help = "row ids from FILE (plain or .xz), one sample a line, instead of random rows"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .short_flag = 'b', .arg = "B", .def = "128", .min = 1, .max = 1e9,
        .help = "samples of the trace that each rank takes in a step"),
    OPT(ZPS_OPT_UINT, steps, .name = "steps", .short_flag = 'k', .arg = "K", .def = "20", .min = 1, .max = 1000000,
        .help = "measured steps"),
    OPT(ZPS_OPT_UINT, warmup, .name = "warmup", .arg = "J", .def = "3", .min = 0, .max = 1000000,
        .help = "steps before the measured ones"),
    OPT(ZPS_OPT_UINT, threads, .name = "threads", .short_flag = 't', .arg = "T", .def = "0", .min = 0, .max = 1024,
        .help = "threads that encode and decode (0: the library's default)"),
    OPT(ZPS_OPT_ENUM, dtype, .name = "dtype", .def = "f32", .values = dtype_values, .help = "type of the values"),
    OPT(ZPS_OPT_ENUM, op, .name = "op", .def = "sum", .values = op_values,
        .help = "what is made of the ranks' gradients"),
    OPT(ZPS_OPT_ENUM, codec, .name = "codec", .def = "auto", .values = codec_values,
        .help = "how row numbers travel: as small as can be, or as in the Zen paper"),
    OPT(ZPS_OPT_ENUM, values, .name = "values", .def = "raw", .values = values_values,
        .help = "what values travel as: as they are, or rounded to 16 bits or to QSGD levels of 2, 4 or 8 bits"),
    OPT(ZPS_OPT_ENUM, layout, .name = "layout", .def = "dense", .values = layout_values,
        .help = "how gradients go in: a dense array, or a list of rows"),
    OPT(ZPS_OPT_ENUM, out_layout, .name = "out", .def = "dense", .values = layout_values,
        .help = "how results come out"),
    OPT(ZPS_OPT_UINT, duplicates, .name = "duplicates", .arg = "N", .def = "1", .min = 1, .max = 255,
        .help = "times each row is repeated in the list (--layout rows)"),
    OPT(ZPS_OPT_UINT, empty, .name = "empty", .arg = "E", .def = "0", .min = 0, .max = 4096,
        .help = "the last E ranks touch no row"),
    OPT(ZPS_OPT_UINT, partitions, .name = "partitions", .arg = "P", .def = "0", .min = 0, .max = 65536,
        .help = "partitions of the tensor (0: the default)"),
    OPT(ZPS_OPT_UINT, block_bits, .name = "block-bits", .arg = "BITS", .def = "0", .min = 0, .max = 31,
        .help = "hash blocks of 2^BITS rows"),
    OPT(ZPS_OPT_STRING, scheme, .name = "scheme", .short_flag = 'S', .arg = "NAME",
        .help = "how rounds are carried out: over servers: balanced sparse-ps dense-ps omnireduce; or between workers: "
                "recursive-doubling split-allgather dsar agsparse ring rabenseifner two-level blueconnect oktopk gtopk "
                "topka topkdsa gaussiank hierarchical; or the coordinator's choice: auto, or auto:NAME,NAME "
                "(default: ZENPS_SCHEME, then balanced)"),
    OPT(ZPS_OPT_UINT, topk, .name = "topk", .arg = "K", .def = "0", .min = 0, .max = 1e12,
        .help = "rows that a lossy scheme keeps"),
    OPT(ZPS_OPT_DOUBLE, keep, .name = "keep", .arg = "D", .def = "0", .min = 0, .max = 1,
        .help = "the same, as a share of the rows"),
    OPT(ZPS_OPT_STRING, levels, .name = "levels", .arg = "AxB",
        .help =
            "factors of the number of ranks, innermost first (blueconnect, two-level, hierarchical; default: by host)"),
    OPT(ZPS_OPT_UINT, chunks, .name = "chunks", .arg = "C", .def = "0", .min = 0, .max = 64,
        .help = "pieces of a dense scheme's blocks (0: of a megabyte)"),
    OPT(ZPS_OPT_UINT, bits, .name = "bits", .arg = "B", .def = "0", .min = 0, .max = 8,
        .help = "QSGD bits of dsar's dense half (0: exact)"),
    OPT(ZPS_OPT_BOOL, hierarchical, .name = "hierarchical",
        .help = "partition by Zen's Algorithm 1 instead of the ordered walk"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15,
        .help = "of rows and values"),
    OPT(ZPS_OPT_BOOL, verify, .name = "verify", .short_flag = 'v',
        .help = "compare every step's result, bit by bit, with the sum of all ranks' inputs (rounded as they travel)"),
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one line of JSON instead of a table"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenps-perf",
    .summary = "measure and verify sparse allreduce on a zenps job",
    .description =
        "Example: zenpsrun -n 4 --servers 2 -- zenps-perf --rows 4194304 --density 0.01 --verify\n"
        "Every rank regenerates its rows and values from the seed, so results can be checked against an independent "
        "sum.",
    .opts = opts,
    .config_size = sizeof(struct perf_options),
};

const char *perf_values_name(const struct perf_options *options) {
  return values_values[options->values];
}

static int fail_zenps(const char *what) {
  fprintf(stderr, "zenps-perf: %s: %s\n", what, zenps_last_error()->text);
  return EXIT_FAILURE;
}

/* The step's gradient: fills the arrays of `in`; for dense ones `clear` says to take the values out again. */
static void fill_input(struct perf *perf, uint64_t step, zenps_grad_t *in, bool clear) {
  const struct perf_options *options = &perf->options;
  const uint64_t width = options->width;
  const uint32_t rank = (uint32_t)zenps_rank(perf->job);
  uint64_t n;
  const int64_t *rows = perf_input_touched(perf->input, step, rank, &n);
  in->nnz = 0;
  for (uint64_t copy = 0; copy < options->duplicates; copy++) {
    const uint64_t key = perf_value_key(options->seed, step, rank, (uint32_t)copy);
    for (uint64_t i = 0; i < n; i++) {
      const uint64_t row = (uint64_t)rows[i], at = in->layout == ZENPS_DENSE ? row : in->nnz;
      if (in->layout == ZENPS_ROWS) in->row_ids[in->nnz++] = rows[i];
      for (uint64_t c = 0; c < width; c++) {
        const double value = clear ? 0 : perf_value(key, row * width + c, perf->value_bits);
        if (perf->value_bytes == 4) {
          ((float *)in->values)[at * width + c] = (float)value;
        } else {
          ((double *)in->values)[at * width + c] = value;
        }
      }
    }
  }
}

static double process_cpu_ms(void) {
  struct timespec used = {0};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static zenps_status_t record(struct perf *perf, const zenps_request_t *request, uint64_t index, double ms) {
  struct perf_result *result = &perf->result;
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  uint32_t *sent = calloc(2 * (size_t)result->partitions, sizeof *sent), *in_union = sent + result->partitions;
  if (!sent) return ZENPS_ERR_NOMEM;
  zenps_status_t status = zenps_request_stats(request, &stats);
  if (status == ZENPS_OK) status = zenps_request_partition_nnz(request, sent, in_union);
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
    result->bound_bytes += stats.bound_bytes;
    result->nnz_in += stats.nnz_in;
    result->nnz_out += stats.nnz_out;
  }
  free(sent);
  return status;
}

/* One step: a barrier, so that ranks start together, then the timed sum, then the check. */
static int run_step(struct perf *perf, uint64_t step, zenps_grad_t *in, zenps_grad_t *out, struct perf_check *check) {
  const struct perf_options *options = &perf->options;
  zenps_request_t *request = NULL;
  fill_input(perf, step, in, false);
  if (zenps_barrier(perf->job) != ZENPS_OK) return fail_zenps("barrier");
  const double start_cpu_ms = process_cpu_ms();
  const uint64_t start_ns = zps_clock_ns();
  zenps_status_t status = zenps_allreduce(perf->tensor, step, in, out, &request);
  if (status == ZENPS_OK) status = zenps_wait(request, -1);
  const double ms = (double)(zps_clock_ns() - start_ns) / 1e6, cpu_ms = process_cpu_ms() - start_cpu_ms;
  if (status != ZENPS_OK) {
    zenps_request_free(request);
    return fail_zenps("allreduce");
  }
  int failed = EXIT_SUCCESS;
  struct zps_error error;
  if (step >= options->warmup) {
    const uint64_t index = step - options->warmup;
    perf->result.start_s[index] = (double)start_ns / 1e9;
    perf->result.cpu_ms += cpu_ms;
    if (record(perf, request, index, ms) != ZENPS_OK) failed = fail_zenps("statistics");
  }
  if (check) perf_check_digest(perf, out);
  if (check && !perf->lossy && perf_check_step(check, step, out, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-perf: rank %d: %s\n", zenps_rank(perf->job), error.text);
    perf->result.verified = false;
  }
  zenps_request_free(request);
  if (in->layout == ZENPS_DENSE) fill_input(perf, step, in, true);
  return failed;
}

static int run_steps(struct perf *perf, struct perf_check *check) {
  const struct perf_options *options = &perf->options;
  const size_t row_bytes = options->width * perf->value_bytes;
  uint64_t entries = perf->rows;
  zenps_grad_t in, out;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = options->layout == 0 ? ZENPS_DENSE : ZENPS_ROWS;
  out.layout = options->out_layout == 0 ? ZENPS_DENSE : ZENPS_ROWS;
  if (in.layout == ZENPS_ROWS) {
    entries = perf->rows * options->duplicates;
    in.row_ids = malloc(entries * sizeof *in.row_ids);
  }
  in.values = calloc(entries, row_bytes);
  if (out.layout == ZENPS_DENSE) out.values = malloc(perf->rows * row_bytes);
  int failed = EXIT_FAILURE;
  if (!in.values || (in.layout == ZENPS_ROWS && !in.row_ids) || (out.layout == ZENPS_DENSE && !out.values)) {
    fprintf(stderr, "zenps-perf: out of memory for %llu rows of %zu bytes\n", (unsigned long long)perf->rows,
            row_bytes);
  } else {
    failed = EXIT_SUCCESS;
    for (uint64_t step = 0; !failed && step < options->warmup + options->steps; step++) {
      zenps_grad_t result = out; /* rows: the library's arrays, fresh each step */
      failed = run_step(perf, step, &in, &result, check);
    }
  }
  free(in.row_ids);
  free(in.values);
  free(out.values);
  return failed;
}

static zps_err_t result_init(struct perf *perf, struct zps_error *error) {
  struct perf_result *result = &perf->result;
  double **arrays[] = {&result->start_s, &result->ms,      &result->encode_ms, &result->push_ms,
                       &result->wait_ms, &result->pull_ms, &result->decode_ms};
  result->steps = perf->options.steps;
  result->partitions = zenps_tensor_partitions(perf->tensor);
  result->verified = true;
  bool ok = true;
  for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
    ok &= (*arrays[i] = calloc(result->steps, sizeof(double))) != NULL;
  ok &= (result->sent = calloc(result->partitions, sizeof(uint64_t))) != NULL;
  ok &= (result->in_union = calloc(result->partitions, sizeof(uint64_t))) != NULL;
  return ok ? ZPS_OK
            : zps_fail(error, ZPS_ERR_NOMEM, "out of memory for the results of %llu steps",
                       (unsigned long long)result->steps);
}

static void result_fini(struct perf_result *result) {
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

static zps_err_t open_input(struct perf *perf, struct zps_error *error) {
  const struct perf_options *options = &perf->options;
  const struct perf_input_config config = {
      .trace = options->trace,
      .rows = options->rows || options->trace ? options->rows : 1048576,
      .density = options->density,
      .skew = options->skew,
      .batch = options->batch,
      .world = (uint32_t)zenps_world(perf->job),
      .empty = (uint32_t)options->empty,
      .seed = options->seed,
  };
  const zps_err_t code = perf_input_create(&config, &perf->input, error);
  if (code == ZPS_OK) perf->rows = perf_input_rows(perf->input);
  return code;
}

static bool is_one_of(const char *name, const char *const *names) {
  while (*names && strcmp(*names, name) != 0) names++;
  return *names != NULL;
}

/* What results of the tensor's scheme can be held against. */
static void know_scheme(struct perf *perf) {
  static const char *const in_rank_order[] = {"balanced", "sparse-ps",       "dense-ps", "omnireduce",
                                              "agsparse", "split-allgather", "dsar",     NULL};
  static const char *const lossy[] = {"oktopk", "gtopk", "topka", "topkdsa", "gaussiank", NULL};
  zenps_tensor_info_t info = {.struct_size = sizeof info};
  const bool known = zenps_tensor_info(perf->tensor, &info) == ZENPS_OK;
  perf->scheme = known ? info.scheme : "?";
  perf->balanced = strcmp(perf->scheme, "balanced") == 0;
  perf->served = perf->balanced || strcmp(perf->scheme, "sparse-ps") == 0 || strcmp(perf->scheme, "dense-ps") == 0;
  perf->lossy = is_one_of(perf->scheme, lossy) || perf->options.bits > 0;
  perf->value_bits = is_one_of(perf->scheme, in_rank_order) ? 24 : 12;
}

/* "2x4" */
static bool parse_levels(const char *text, uint32_t *levels, uint32_t *n_p) {
  for (*n_p = 0; text && *text && *n_p < LEVELS_MAX;) {
    char *end;
    const unsigned long level = strtoul(text, &end, 10);
    if (end == text || level < 1 || level > 4096 || (*end != '\0' && *end != 'x')) return false;
    levels[(*n_p)++] = (uint32_t)level;
    text = *end == 'x' ? end + 1 : end;
  }
  return !text || !*text;
}

static int run(struct perf *perf) {
  const struct perf_options *options = &perf->options;
  uint32_t levels[LEVELS_MAX];
  struct zps_error error;
  zenps_tensor_options_t tensor_options;
  ZENPS_TENSOR_OPTIONS_INIT(&tensor_options);
  tensor_options.op = (zenps_op_t)(ZENPS_OP_SUM + options->op);
  tensor_options.partitions = (uint32_t)options->partitions;
  tensor_options.block_bits = (int)options->block_bits;
  tensor_options.hierarchical = options->hierarchical;
  tensor_options.codec = options->codec == 0 ? ZENPS_CODEC_AUTO : ZENPS_CODEC_PAPER;
  tensor_options.values = (zenps_values_t)((int)ZENPS_VALUES_RAW + options->values);
  tensor_options.scheme = options->scheme;
  tensor_options.k = options->topk;
  tensor_options.density = options->keep;
  tensor_options.levels = levels;
  tensor_options.chunks = (uint32_t)options->chunks;
  tensor_options.bits = (uint32_t)options->bits;
  if (!parse_levels(options->levels, levels, &tensor_options.n_levels)) {
    zps_fail(&error, ZPS_ERR_INVALID, "--levels '%s' must be numbers of ranks such as 2x4", options->levels);
    goto err;
  }
  perf->value_bytes = options->dtype == 0 ? sizeof(float) : sizeof(double);
  if (open_input(perf, &error) != ZPS_OK) goto err;
  if (zenps_tensor_open(perf->job, "perf", perf->rows, (uint32_t)options->width,
                        options->dtype == 0 ? ZENPS_F32 : ZENPS_F64, &tensor_options, &perf->tensor) != ZENPS_OK)
    return fail_zenps("cannot open the tensor");
  know_scheme(perf);
  if (result_init(perf, &error) != ZPS_OK) goto err;
  struct perf_check *check = NULL;
  if (options->verify && perf_check_create(perf, &check, &error) != ZPS_OK) goto err;
  int failed = run_steps(perf, check);
  perf_check_destroy(check);
  if (!failed && perf_report(perf) != ZENPS_OK) failed = fail_zenps("cannot gather the results");
  return failed || !perf->result.verified ? EXIT_FAILURE : EXIT_SUCCESS;

err:
  fprintf(stderr, "zenps-perf: %s\n", error.text);
  return EXIT_FAILURE;
}

int main(int argc, char **argv) {
  struct perf perf = {.job = NULL};
  struct zps_config_rest rest;
  struct zps_error error;
  if (zps_config_load(&table, argc, argv, NULL, &perf.options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "zenps-perf: %s\n", error.text);
    return 2;
  }
  if (rest.exit_now) return EXIT_SUCCESS;
  int failed;
  if (perf.options.duplicates > 1 && perf.options.layout == 0) {
    fprintf(stderr, "zenps-perf: --duplicates %llu needs --layout rows: a dense array has each row once\n",
            (unsigned long long)perf.options.duplicates);
    failed = 2;
  } else {
    zenps_options_t options;
    ZENPS_OPTIONS_INIT(&options);
    options.threads = (int)perf.options.threads;
    failed = zenps_open(&options, &perf.job) == ZENPS_OK ? run(&perf) : fail_zenps("cannot join the job");
  }
  zenps_close(perf.job);
  perf_input_destroy(perf.input);
  result_fini(&perf.result);
  zps_config_fini(&table, &perf.options);
  return failed;
}
