/* zenps-perf: its options, from the command line and from a file of cases. */
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/codec/values.h"
#include "worker/tools/lines.h"
#include "worker/tools/perf.h"

enum { ARGS_MAX = 256 };

static const char *const dtype_values[] = {"f32", "f64", "bf16", "f16", NULL};
static const char *const overlap_values[] = {"random", "same", "disjoint", NULL};
static const char *const layout_values[] = {"dense", "rows", NULL};
static const char *const out_values[] = {"dense", "rows", "in-place", NULL};
static const char *const collective_values[] = {"allreduce", "push-pull", "reduce-scatter", "allgather", NULL};
static const char *const op_values[] = {"sum", "mean", "max", "min", "mean-present", NULL};
static const char *const codec_values[] = {"auto", "paper", "coo", NULL};
static const char *const order_values[] = {"scheme", "ranks", "any", NULL};
static const char *const check_values[] = {"all", "turns", NULL};
static const char *const values_values[] = {ZPS_VALUES_NAME_LIST, NULL};

#define OPT(type, member, ...) ZPS_OPT_ROW(struct perf_options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_UINT, rows, .name = "rows", .short_flag = 'r', .arg = "R", .min = 0, .max = 1e12,
        .help = "rows of the tensor (default: 1048576; with --trace its largest id + 1)"),
    OPT(ZPS_OPT_UINT, width, .name = "width", .short_flag = 'w', .arg = "W", .def = "1", .min = 1, .max = 1048576,
        .help = "values per row"),
    OPT(ZPS_OPT_UINT, parts, .name = "parts", .arg = "N", .def = "1", .min = 1, .max = 1e6,
        .help = "number of even parts of gradient and result in one round, each with arrays of its own (1: one array)"),
    OPT(ZPS_OPT_DOUBLE, density, .name = "density", .short_flag = 'd', .arg = "D", .def = "0.01", .min = 0, .max = 1,
        .help = "share of rows that each rank touches in a step"),
    OPT(ZPS_OPT_DOUBLE, skew, .name = "skew", .arg = "Z", .def = "0", .min = 0, .max = 10,
        .help = "exponent of a power law over row numbers (0: uniform)"),
    OPT(ZPS_OPT_ENUM, overlap, .name = "overlap", .def = "random", .values = overlap_values,
        .help = "rows of ranks: random; same: all ranks touch the same rows; disjoint: no row of another rank, and at "
                "most an even share of the rows"),
    OPT(ZPS_OPT_STRING, trace, .name = "trace", .arg = "FILE",
        .help = "row ids from FILE (plain, .xz or .gz), one sample a line, instead of random rows"),
    OPT(ZPS_OPT_UINT, batch, .name = "batch", .short_flag = 'b', .arg = "B", .def = "128", .min = 1, .max = 1e9,
        .help = "samples of the trace that each rank takes in a step"),
    OPT(ZPS_OPT_UINT, steps, .name = "steps", .short_flag = 'k', .arg = "K", .def = "20", .min = 1, .max = 1000000,
        .help = "measured steps"),
    OPT(ZPS_OPT_UINT, warmup, .name = "warmup", .arg = "J", .def = "3", .min = 0, .max = 1000000,
        .help = "steps before the measured ones"),
    OPT(ZPS_OPT_UINT, settle, .name = "settle", .arg = "J", .def = "0", .min = 0, .max = 1000000,
        .help = "further steps, at most J, until the scheme auto settles on one; they sum one gradient repeatedly, and "
                "are not verified"),
    OPT(ZPS_OPT_UINT, threads, .name = "threads", .short_flag = 't', .arg = "T", .def = "0", .min = 0, .max = 1024,
        .help = "threads that encode and decode (0: the library's default)"),
    OPT(ZPS_OPT_ENUM, dtype, .name = "dtype", .def = "f32", .values = dtype_values,
        .help = "type of the values: f32, f64, bf16 or f16"),
    OPT(ZPS_OPT_ENUM, collective, .name = "collective", .def = "allreduce", .values = collective_values,
        .help = "step of a rank: allreduce: all ranks get the whole sum; push-pull: the same in two calls; "
                "reduce-scatter: each rank gets an even share of the sum's rows; allgather: ranks copy rows that one "
                "rank has (needs --layout rows --overlap disjoint)"),
    OPT(ZPS_OPT_ENUM, op, .name = "op", .def = "sum", .values = op_values, .help = "operation on the ranks' gradients"),
    OPT(ZPS_OPT_ENUM, codec, .name = "codec", .def = "auto", .values = codec_values,
        .help = "encoding of row numbers: auto: the smallest; paper: as in the Zen paper; coo: COO both ways"),
    OPT(ZPS_OPT_ENUM, values, .name = "values", .def = "raw", .values = values_values,
        .help = "encoding of values: as they are, or rounded to 16 bits or to QSGD levels of 2, 4 or 8 bits"),
    OPT(ZPS_OPT_ENUM, layout, .name = "layout", .def = "dense", .values = layout_values,
        .help = "layout of gradients: a dense array, or a list of rows"),
    OPT(ZPS_OPT_ENUM, out, .name = "out", .def = "dense", .values = out_values,
        .help = "layout of results: a dense array, a list of rows, or in the gradient's own dense array"),
    OPT(ZPS_OPT_ENUM, memory, .name = "memory", .def = "host", .values = zps_gpu_memory_values,
        .help = "where gradients and results are: in host memory, or in a GPU's (driven by libzenps_cuda.so.0, or by "
                "the library in ZENPS_DEVICE_LIBRARY)"),
    OPT(ZPS_OPT_STRING, device, .name = "device", .arg = "N",
        .help = "number of the GPU, with --memory device (default: ZENPS_DEVICE, then 0)"),
    OPT(ZPS_OPT_UINT, duplicates, .name = "duplicates", .arg = "N", .def = "1", .min = 1, .max = 255,
        .help = "times each row is repeated in the list (--layout rows)"),
    OPT(ZPS_OPT_UINT, empty, .name = "empty", .arg = "E", .def = "0", .min = 0, .max = 4096,
        .help = "the last E ranks touch no row"),
    OPT(ZPS_OPT_UINT, partitions, .name = "partitions", .arg = "P", .def = "0", .min = 0, .max = 65536,
        .help = "partitions of the tensor (0: the default)"),
    OPT(ZPS_OPT_UINT, quorum, .name = "quorum", .arg = "N", .def = "0", .min = 0, .max = 4096,
        .help = "rounds close without the slowest ranks: N ranks suffice after the grace (0: all ranks are needed). "
                "Ranks then start steps apart, and a rank that is too late skips steps"),
    OPT(ZPS_OPT_UINT, grace, .name = "grace", .arg = "MS", .def = "0", .min = 0, .max = 86400000,
        .help = "time of the other ranks, in milliseconds, after N ranks have pushed (needs --quorum)"),
    OPT(ZPS_OPT_STRING, scheme, .name = "scheme", .short_flag = 'S', .arg = "NAME[:OPTION=VALUE,...]",
        .help = "scheme of the rounds. Over servers:" ZPS_PLAN_SERVED_TEXT ". Between ranks:" ZPS_PLAN_BETWEEN_TEXT
                ". Chosen by the coordinator: auto, auto:any, or auto:NAME,NAME. Options: see below (default: "
                "ZENPS_SCHEME, then balanced)"),
    OPT(ZPS_OPT_ENUM, order, .name = "order", .def = "scheme", .values = order_values,
        .help = "order of the addends of a sum: ranks: by rank, refused by other schemes; any: auto may choose among "
                "all lossless schemes; scheme: the scheme's own, by rank for auto"),
    OPT(ZPS_OPT_BOOL, keep_zero_rows, .name = "keep-zero-rows",
        .help =
            "the tensor keeps listed rows of zeros; every eighth row of a rank is such a row (needs --layout rows)"),
    OPT(ZPS_OPT_UINT, seed, .name = "seed", .arg = "S", .def = "1", .min = 0, .max = 1e15,
        .help = "seed of rows and values"),
    OPT(ZPS_OPT_BOOL, verify, .name = "verify", .short_flag = 'v',
        .help = "compare every step's result, bit by bit, with the sum of all ranks' inputs (rounded as they travel). "
                "Lossy schemes: with the part that the scheme's definition keeps. QSGD levels of the option bits: with "
                "their bounds and expectation"),
    OPT(ZPS_OPT_ENUM, check, .name = "verify-by", .def = "all", .values = check_values,
        .help = "--verify: all: each rank computes the reference sum of every step; turns: ranks take turns, step by "
                "step. Results of all ranks must be equal either way"),
    OPT(ZPS_OPT_STRING, cases, .name = "cases", .arg = "FILE",
        .help = "run once for each line of FILE, all in one job; the line's options follow those given here"),
    OPT(ZPS_OPT_BOOL, json, .name = "json", .short_flag = 'j', .help = "print one line of JSON instead of a table"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenps-perf",
    .summary = "measure and verify sparse allreduce, and its parts, on a zenps job",
    .description =
        "Example: zenpsrun -n 4 --servers 2 -- zenps-perf --rows 4194304 --density 0.01 --verify\n"
        "Every rank generates its rows and values from the seed, so every rank can check results against an "
        "independent sum.\n"
        "Lossy schemes are checked against the definitions of their papers: topka, topkdsa, gaussiank and gtopk step "
        "by step; oktopk with the thresholds of its own last exact step, which it renews every tau_threshold steps. If "
        "an elastic job (zenpsrun --elastic) loses or gains ranks, the new set of ranks does the remaining steps, and "
        "verifies them as its own. Figures are those of the last generation. Not with --cases.\n"
        "Options of schemes, as in --scheme oktopk:k=1000,tau=64:" ZPS_SCHEME_OPTIONS_TEXT,
    .opts = opts,
    .config_size = sizeof(struct perf_options),
    .exits = ZPS_EXITS_CLIENT,
};

enum zps_dtype perf_options_dtype(const struct perf_options *options) {
  enum zps_dtype dtype = ZPS_DTYPE_F32;
  (void)zps_dtype_parse(dtype_values[options->dtype], &dtype); /* all of them are names */
  return dtype;
}

const char *perf_collective_name(const struct perf_options *options) {
  return collective_values[options->collective];
}

const char *perf_values_name(const struct perf_options *options) {
  return values_values[options->values];
}

/* Combinations that cannot be had; also fills in what follows from the options. */
static zps_err_t check(struct perf_options *options, struct zps_error *error) {
  const bool gathers = options->collective == PERF_ALLGATHER;
  if (options->out == PERF_IN_PLACE && options->layout == PERF_ROWS)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--out in-place needs --layout dense: a list of rows has no place for the rows of others");
  if (gathers && (options->layout == 0 || options->overlap != PERF_OVERLAP_DISJOINT || options->duplicates > 1))
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "--collective allgather needs --layout rows --overlap disjoint, without --duplicates: each row is of "
        "one rank, once");
  if (options->collective != PERF_ALLREDUCE && options->out == PERF_IN_PLACE)
    return zps_fail(error, ZPS_ERR_INVALID, "--out in-place is for --collective allreduce");
  if (options->parts > 1 && (gathers || options->collective == PERF_REDUCE_SCATTER || options->memory != 0))
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "--parts is for --collective allreduce and push-pull, in host memory: parts take a whole sum there");
  if (options->duplicates > 1 && options->layout == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "--duplicates %llu needs --layout rows: a dense array has each row once",
                    (unsigned long long)options->duplicates);
  if (options->keep_zero_rows && options->layout == 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--keep-zero-rows needs --layout rows: of a dense array rows of zeros are never sent");
  if (options->grace > 0 && options->quorum == 0)
    return zps_fail(error, ZPS_ERR_INVALID, "--grace needs --quorum: all ranks are needed without it");
  if (options->quorum > 0 && options->collective != PERF_ALLREDUCE)
    return zps_fail(error, ZPS_ERR_INVALID, "--quorum is for --collective allreduce");
  if (zps_gpu_index(options->memory, options->device, &options->gpu, error) != ZPS_OK) return ZPS_ERR_INVALID;
  const char *const variable = getenv("ZENPS_SCHEME"), *const otherwise = variable && *variable ? variable : "balanced";
  struct zps_error why;
  if (zps_scheme_text_parse(options->scheme ? options->scheme : otherwise, otherwise, &options->text, &why) != ZPS_OK)
    return zps_fail(error, ZPS_ERR_INVALID, "--scheme: %s", why.text);
  return ZPS_OK;
}

zps_err_t perf_options_load(int argc, char **argv, struct perf_options *options, bool *exit_now_p,
                            struct zps_error *error) {
  struct zps_config_rest rest;
  zps_err_t code = zps_config_load(&table, argc, argv, NULL, options, &rest, error);
  if (code != ZPS_OK) return code;
  *exit_now_p = rest.exit_now;
  code = check(options, error);
  if (code != ZPS_OK) perf_options_fini(options);
  return code;
}

void perf_options_fini(struct perf_options *options) {
  zps_config_fini(&table, options);
}

void perf_options_tensor(const struct perf_options *options, zenps_tensor_options_t *tensor) {
  ZENPS_TENSOR_OPTIONS_INIT(tensor);
  tensor->op = (zenps_op_t)(ZENPS_OP_SUM + options->op);
  tensor->partitions = (uint32_t)options->partitions;
  tensor->keep_zero_rows = options->keep_zero_rows;
  tensor->codec = (zenps_codec_t)(ZENPS_CODEC_AUTO + options->codec);
  tensor->values = (zenps_values_t)((int)ZENPS_VALUES_RAW + options->values);
  tensor->scheme = options->scheme;
  tensor->order = (zenps_order_t)options->order;
  tensor->quorum = (uint32_t)options->quorum;
  tensor->grace_ms = (uint32_t)options->grace;
}

/* ------------------------------------------------------------ cases */

/* Options that are the whole job's. */
static bool same_job(const struct perf_options *options, const struct perf_options *given) {
  return options->threads == given->threads && options->gpu == given->gpu && strcmp(options->cases, given->cases) == 0;
}

static zps_err_t load_line(char *line, int argc, char **argv, const struct perf_options *given,
                           struct perf_options *options, struct zps_error *error) {
  char *args[ARGS_MAX], *rest = NULL;
  int n = 0;
  bool exit_now;
  for (; n < argc && n < ARGS_MAX; n++) args[n] = argv[n];
  for (char *word = strtok_r(line, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
    if (n == ARGS_MAX) return zps_fail(error, ZPS_ERR_INVALID, "more than %d options", ARGS_MAX);
    args[n++] = word;
  }
  const zps_err_t code = perf_options_load(n, args, options, &exit_now, error);
  if (code != ZPS_OK) return code;
  if (!exit_now && same_job(options, given)) return ZPS_OK;
  perf_options_fini(options);
  return zps_fail(error, ZPS_ERR_INVALID,
                  "--cases, --threads, --memory, --device, --help and --version are not for single cases");
}

zps_err_t perf_cases_run(int argc, char **argv, const struct perf_options *given, perf_case_fn *run, void *ctx,
                         struct zps_error *error) {
  struct zps_tools_lines *lines;
  struct zps_error why;
  zps_err_t code = zps_tools_lines_open(given->cases, &lines, error);
  if (code != ZPS_OK) return code;
  char *line;
  size_t len;
  bool any = false;
  while ((code = zps_tools_lines_next(lines, &line, &len, error)) == ZPS_OK) {
    struct perf_options options;
    if (line[strspn(line, " \t")] == '\0' || line[0] == '#') continue;
    code = load_line(line, argc, argv, given, &options, &why);
    if (code != ZPS_OK) {
      zps_fail(error, code, "%s, line %llu: %s", given->cases, (unsigned long long)zps_tools_lines_number(lines),
               why.text);
      break;
    }
    any = true;
    const bool go_on = run(ctx, &options);
    perf_options_fini(&options);
    if (!go_on) break;
  }
  zps_tools_lines_close(lines);
  if (code != ZPS_ERR_CLOSED) return code;
  return any ? ZPS_OK
             : zps_fail(error, ZPS_ERR_INVALID, "%s holds no case: a line has the options of one", given->cases);
}
