/* zenps-perf: what its parts share. perf_options.c has the options, perf.c runs the steps, perf_arrays.c has
 * their arrays, perf_check.c verifies them, perf_report.c gathers and prints. */
#ifndef ZPS_TOOLS_PERF_H
#define ZPS_TOOLS_PERF_H

#include <zenps/elastic.h>
#include <zenps/zenps.h>

#include "common/base/err.h"
#include "common/codec/dtype.h"
#include "common/plan/scheme_options.h"
#include "worker/tools/gpu.h"
#include "worker/tools/perf_input.h"

enum { PERF_MEAN_PRESENT = 4 };                                               /* --op, by its place there */
enum { PERF_DENSE, PERF_ROWS, PERF_IN_PLACE };                                /* --out */
enum { PERF_ALLREDUCE, PERF_PUSH_PULL, PERF_REDUCE_SCATTER, PERF_ALLGATHER }; /* --collective */

struct perf_options {
  uint64_t rows, width, parts, batch, steps, warmup, settle, threads, empty, seed, partitions, duplicates, quorum,
      grace;
  double density, skew;
  char *trace, *cases;
  int overlap, dtype, layout, out, op, codec, values, check, order, collective; /* indices into the option's values */
  char *scheme;                                                                 /* The text; NULL: ZENPS_SCHEME. */
  struct zps_scheme_text text;                                                  /* The scheme, taken apart. */
  int memory;                                                                   /* an index, too */
  char *device;
  int gpu; /* the number of that GPU; -1: none */
  bool verify, json, keep_zero_rows;
};

/* One rank's measurements; arrays have one entry per measured step unless said otherwise. */
struct perf_result {
  uint64_t steps;
  double *start_s; /* on the machine's monotonic clock */
  double *ms, *encode_ms, *push_ms, *wait_ms, *pull_ms, *decode_ms;
  double cpu_ms; /* of the whole process inside the timed parts of all measured steps */
  uint64_t bytes_out, bytes_in, payload_out, payload_in; /* all measured steps; */
  uint64_t shared_out, shared_in;                        /* of the payload, through memory that ranks of a host share */
  uint64_t bound_bytes;
  uint64_t nnz_in, nnz_out;
  uint64_t hash_parallel, hash_serial, hash_lost_races; /* of Algorithm 1 */
  int partitioned_in, merged_in;                        /* the last step: enum zenps_memory */
  uint32_t partitions;
  uint64_t *sent, *in_union;     /* per partition, all measured steps */
  double worst_push, worst_pull; /* sums over steps of each step's own imbalance */
  uint64_t late, skipped; /* Late: measured steps that closed without this rank. Skipped: late steps without a sum. */
  const char *ran;        /* the scheme that all measured steps ran under; NULL: several */
  bool verified;
};

/* One case: a tensor of its own in the job. */
struct perf {
  struct perf_options options;
  zenps_job_t *job;
  struct zps_gpu *gpu;   /* gradients and results are there; NULL: in host memory */
  unsigned number;       /* of the case */
  uint64_t *n_gathers_p; /* the job's count, to number them */
  zenps_tensor_t *tensor;
  struct perf_input *input;
  uint64_t first;     /* measured step */
  const int64_t *own; /* rows of this rank's gradient, until another one is drawn */
  uint64_t n_own;
  uint64_t rows;
  enum zps_dtype dtype;
  uint64_t share_first, share_rows; /* rows of the result that come to this rank */
  size_t value_bytes, sum_bytes;    /* of an element, and of a sum while it is made */
  const char *scheme;               /* the tensor's */
  const char *partitioner;          /* NULL: it has none */
  bool balanced;                    /* it is that one */
  bool served;                      /* servers own rows */
  bool lossy;                       /* it keeps only some rows */
  unsigned value_bits; /* fewer where the scheme adds in an order of its own that the reference does not follow: then
                          every order gives the same bits */
  uint64_t digest;     /* of all results so far */
  struct perf_result result;
  /* Of the generation, where the job is elastic; else of the whole case. */
  zenps_generation_t generation;
  uint64_t left, done; /* measured steps: to be done in it, and those that are */
  bool goes_on;        /* it is over, and the case is not */
};

/* The element of the tensor's dtype that is next to the value. */
double perf_element(const struct perf *perf, double value);
/* Under --keep-zero-rows: a row whose values are all zero, on every rank that has it. */
bool perf_row_is_zero(const struct perf *perf, uint64_t row);

/* perf_generation.c */
/* Of the job as it was joined. */
zenps_status_t perf_generation_find(struct perf *perf);
/* Whether the job's ranks have changed, or `status` is of an operation that failed by that. Jobs of several cases,
 * which a newcomer could not find its place in, end as those that are not elastic do. */
bool perf_generation_is_over(struct perf *perf, zenps_status_t status);
/* perf->job is another one then, NULL on failure. */
zenps_status_t perf_generation_next(struct perf *perf);

/* perf_options.c */
zps_err_t perf_options_load(int argc, char **argv, struct perf_options *options, bool *exit_now_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
void perf_options_fini(struct perf_options *options);
/* The options must outlive `tensor`. */
void perf_options_tensor(const struct perf_options *options, zenps_tensor_options_t *tensor);
enum zps_dtype perf_options_dtype(const struct perf_options *options);
const char *perf_collective_name(const struct perf_options *options);
/* The format that values travel in. */
const char *perf_values_name(const struct perf_options *options);
/* Calls `run` for each line of given->cases, with the options of argv and then the line's; until it returns false. */
typedef bool perf_case_fn(void *ctx, const struct perf_options *options);
zps_err_t perf_cases_run(int argc, char **argv, const struct perf_options *given, perf_case_fn *run, void *ctx,
                         struct zps_error *error) ZPS_MUSTCHECK;

/* perf_check.c: the reference sum, kept between calls. */
struct perf_check;
zps_err_t perf_check_create(struct perf *perf, struct perf_check **check_p, struct zps_error *error) ZPS_MUSTCHECK;
void perf_check_destroy(struct perf_check *check);
/* Compares a result of `step`, which are called for in order (from 0 on, where the scheme is lossy), with what all
 * ranks' regenerated inputs should give; nothing where that is another rank's turn. ZPS_ERR_INTERNAL says where the
 * first difference is. */
zps_err_t perf_check_step(struct perf_check *check, uint64_t step, const zenps_request_t *request,
                          const zenps_grad_t *out, struct zps_error *error) ZPS_MUSTCHECK;

/* Takes a result into perf->digest. */
void perf_check_digest(struct perf *perf, const zenps_grad_t *out);

/* perf_figures.c: perf->result, of perf->left steps. */
zps_err_t perf_figures_init(struct perf *perf, struct zps_error *error) ZPS_MUSTCHECK;
void perf_figures_fini(struct perf *perf);
/* Adds a measured step, by its place among them. `push`: where it was apart; NULL: it was not. */
zenps_status_t perf_figures_add(struct perf *perf, const zenps_request_t *request, const zenps_request_t *push,
                                double ms, uint64_t index);

/* perf_report.c: gathers every rank's figures through the job itself; rank 0 prints. */
zenps_status_t perf_report(struct perf *perf);
/* Whether steps are long on the slowest rank; `shortest_ms` is the shortest of this rank's. Collective. */
zenps_status_t perf_agree_long(struct perf *perf, double shortest_ms, bool *is_long_p);

#endif
