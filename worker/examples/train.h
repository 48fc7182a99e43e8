/*
 * The part that the example trainers share: the job, sparse gradients, and the account of what synchronising them
 * costs.
 *
 * A training step is always the same: accumulate gradients row by row (grad_row), start the sums of all tensors
 * (train_sync_start), wait for each (train_sync_wait), apply the rows that come back, clear (train_sync_done).
 */
#ifndef ZPS_EXAMPLES_TRAIN_H
#define ZPS_EXAMPLES_TRAIN_H

#include <stdbool.h>
#include <stdint.h>
#include <zenps/elastic.h>
#include <zenps/sparsify.h>
#include <zenps/zenps.h>

#include "worker/examples/train_xi.h"
#include "worker/tools/gpu.h"

/* A gradient with few rows that are not zero: the rows in order of first touch, and their values. */
struct grad {
  uint64_t rows, n;
  uint32_t width;
  uint64_t capacity;
  int64_t *row_ids;
  float *values;
  int64_t *slot_of_row; /* -1: not touched since grad_clear() */
};

/* False where memory is short; grad_fini() is allowed after that, too. */
bool grad_init(struct grad *grad, uint64_t rows, uint32_t width);
void grad_fini(struct grad *grad);
/* The accumulator of `row`: `width` values, zero at first touch. NULL when memory is short. */
float *grad_row(struct grad *grad, uint64_t row);
/* Adds another gradient of the same shape, row by row in its order. False where memory is short. */
bool grad_add(struct grad *grad, const struct grad *other);
/* Takes time for the rows that were touched alone. */
void grad_clear(struct grad *grad);

/* Only the greatest values of a gradient travel, the others wait in the residual (zenps/sparsify.h): the tensor then
 * has a row for each value. */
struct train_select {
  zenps_sparsifier_t *sparsifier; /* NULL: all values travel */
  float *dense;                   /* the gradient, zero between steps */
  zenps_grad_t values;            /* the sum, a row for each value that travelled */
  int64_t *row_ids;               /* the sum again, a row of `width` values each, others zero */
  float *rows;
  uint64_t capacity;
  double density;
  uint64_t k;      /* how many values the result is to have */
  bool in_scheme;  /* the scheme selects */
  uint64_t n_sent; /* values that this rank sent in the last step; where the scheme selects: values in the result */
  struct train_xi xi;
};

/* A parameter tensor's gradient and its sum over the ranks. */
struct train_tensor {
  zenps_tensor_t *tensor;
  struct grad grad;
  struct train_select select;
  zenps_grad_t sum; /* after train_sync_wait(): rows of the union in host memory, until train_sync_done() */
  double scale;     /* what `sum` lacks: see train_sync_start() */
  zenps_request_t *request;
  struct zps_gpu *gpu;                    /* the job's */
  struct zps_gpu_grad in_there, sum_here; /* the gradient in its memory, and the sum copied from there */
};

struct train {
  zenps_job_t *job;
  struct zps_gpu *gpu; /* gradients go through its memory; NULL: they do not */
  int rank, world;
  bool json;
  const char *program;
  /* since the last train_report() */
  double start_s, sync_s;
  uint64_t bytes_moved, dense_bytes, samples;
  uint64_t n_selected, n_kept, n_wanted; /* values that this rank sent, that are in the sums, and that are asked for */
  double xi;                             /* the sum of the n_xi measurements */
  uint64_t n_xi;
  uint64_t gathers;
  int status; /* to exit with, once something has failed: one of enum zps_exit */
  /* of an elastic job (train_elastic.h) */
  zenps_generation_t generation, was; /* this one, and the rank's one before; number 0: none */
  bool goes_on;                       /* what failed is over with this generation */
  char why[600];                      /* what that was */
  uint64_t told;                      /* epochs that were reported; UINT64_MAX: it is too new to know */
  uint64_t told_by_first;             /* what rank 0 said of that when it came; UINT64_MAX: nothing */
};

/* How gradients travel: options that all trainers have, to be a member `sync` of their options. */
struct train_sync {
  int values; /* less 1 */
  char *scheme;
  int sparsify;
  double density;
  uint64_t warmup, period, xi;
  bool unrefined;
  int memory; /* index into the option's values */
  char *device;
};
#define TRAIN_SYNC_OPTS                                                                                                \
  OPT(ZPS_OPT_ENUM, sync.values, .name = "values", .def = "raw", .values = train_values,                               \
      .help = "values on the wire: raw, rounded to 16 bits, or QSGD levels of 2, 4 or 8 bits"),                        \
      OPT(ZPS_OPT_STRING, sync.scheme, .name = "scheme", .arg = "NAME[:OPTION=VALUE,...]",                             \
          .help =                                                                                                      \
              "how gradients are summed, over the servers or between ranks. zenps-perf --help lists names and "        \
              "options "                                                                                               \
              "(default: ZENPS_SCHEME, then balanced)"),                                                               \
      OPT(ZPS_OPT_ENUM, sync.sparsify, .name = "sparsify", .def = "none", .values = train_sparsify,                    \
          .help =                                                                                                      \
              "which values of a gradient travel. The others wait in a residual. none: all travel. topk: the "         \
              "greatest. "                                                                                             \
              "sampled: those over a threshold from a sample [DGC]. reused: those over a threshold kept for 32 steps " \
              "[Ok-Topk]. gaussian: those over the threshold of a normal distribution. buckets: the greatest of each " \
              "512 [SparCML]. scheme: a lossy --scheme selects them from the whole residual"),                         \
      OPT(ZPS_OPT_DOUBLE, sync.density, .name = "density", .arg = "D", .def = "0.01", .min = 1e-9, .max = 1,           \
          .help =                                                                                                      \
              "share of the values that --sparsify selects. For a lossy scheme without k and density in its text: "    \
              "share "                                                                                                 \
              "of the rows that it keeps"),                                                                            \
      OPT(ZPS_OPT_UINT, sync.warmup, .name = "warmup", .arg = "E", .def = "0", .min = 0, .max = 1000,                  \
          .help =                                                                                                      \
              "lower the share of --sparsify to --density step by step in the first E epochs, as in DGC. Not with a "  \
              "lossy scheme"),                                                                                         \
      OPT(ZPS_OPT_UINT, sync.xi, .name = "xi", .arg = "E", .def = "0", .min = 0, .max = UINT32_MAX,                    \
          .help = "with --sparsify: measure xi of Ok-Topk's assumption 1 every E steps, by two more sums (0: never)"), \
      OPT(ZPS_OPT_UINT, sync.period, .name = "period", .arg = "T", .def = "0", .min = 0, .max = UINT32_MAX,            \
          .help = "--sparsify reused: steps between exact thresholds (0: 32)"),                                        \
      OPT(ZPS_OPT_BOOL, sync.unrefined, .name = "unrefined",                                                           \
          .help = "--sparsify reused, gaussian: use the paper's thresholds, however many values they select"),         \
      OPT(ZPS_OPT_ENUM, sync.memory, .name = "memory", .def = "host", .values = zps_gpu_memory_values,                 \
          .help = "where gradients and sums are handed over: host memory, or a GPU's memory, by copies, as a trial"),  \
      OPT(ZPS_OPT_STRING, sync.device, .name = "device", .arg = "N",                                                   \
          .help = "number of the GPU, with --memory device (default: ZENPS_DEVICE, then 0)")
extern const char *const train_values[], *const train_sparsify[];

double train_seconds(void);
/* All of these say on stderr what failed and return false; but not what the next generation of an elastic job may mend:
 * train_next() says that, if there is none. */
bool train_open(struct train *train, const char *program, const struct train_sync *sync, bool json);
void train_close(struct train *train, bool is_done);
/* A call of the library's has failed, in which all ranks take part. Returns false. */
bool train_fail(struct train *train, const char *what);
bool train_tensor_open(struct train *train, struct train_tensor *tensor, const char *name, uint64_t rows,
                       uint32_t width, const struct train_sync *sync);
void train_tensor_close(struct train_tensor *tensor); /* a second time is allowed */

/* Before each epoch, from 0 on: the density of the warm-up. */
bool train_epoch(struct train_tensor *tensor, const struct train_sync *sync, uint64_t epoch);

/* Starts the sum of all ranks' tensor->grad. `rate`: what the trainer is going to multiply the sum with. Where values
 * are selected, the gradient is multiplied before it is added to the residual (SparCML's and Ok-Topk's algorithms: acc
 * = epsilon + alpha * gradient), so that what waits there is not applied at a later, smaller rate; tensor->scale then
 * is 1, else `rate`: the sum is to be multiplied with it. */
bool train_sync_start(struct train *train, struct train_tensor *tensor, uint64_t step, double rate);
bool train_sync_wait(struct train *train, struct train_tensor *tensor);
/* The wait for the sum, or for word of what became of it, would be none. */
bool train_sync_is_here(const struct train_tensor *tensor);
void train_sync_done(struct train_tensor *tensor);

/* Adds up `n` numbers over all ranks, in place. Collective. */
bool train_sum(struct train *train, double *values, uint32_t n);

/* Rank 0 prints an epoch: loss, held-out metric, and the costs since the last report, which are then counted afresh.
 * `unit` names the samples ("documents", "words"). Collective. */
bool train_report(struct train *train, unsigned epoch, double loss, const char *metric_name, double metric,
                  const char *unit);

#endif
