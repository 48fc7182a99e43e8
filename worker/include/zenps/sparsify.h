/*
 * zenps: selection of the entries of a dense gradient that are worth sending, with the residual that keeps the rest.
 *
 * A sparsifier belongs to one tensor of `n` values on one rank. Per step: zenps_sparsifier_select() adds the gradient
 * to the residual and selects the greatest magnitudes of that sum; the selection is a gradient in rows, ready for
 * zenps_allreduce() on a tensor of `n` rows of width 1; zenps_sparsifier_commit() then takes what was sent out of the
 * residual. Nothing is lost: committed values plus the residual equal the gradients, up to the rounding of additions
 * and up to options.decay. If the operation failed, zenps_sparsifier_cancel() leaves everything in the residual.
 *
 *   zenps_sparsifier_select(sparsifier, gradient, &in);
 *   zenps_allreduce(tensor, step, &in, &out, &request);  ... zenps_wait(request, -1) ...
 *   zenps_sparsifier_commit(sparsifier, &out);
 *
 * Where a scheme selects (ZENPS_SPARSIFY_SCHEME), select() only adds, and commit() is told what the result is made of:
 *
 *   zenps_sparsifier_select(sparsifier, gradient, &in);       in: ZENPS_DENSE, the residual itself
 *   zenps_allreduce(tensor, step, &in, &out, &request);  ... zenps_wait(request, -1) ...
 *   zenps_request_contributed(request, &rows);
 *   zenps_sparsifier_commit(sparsifier, &rows);
 *
 * Magnitudes: entries are ordered by the absolute value; of equal ones the lower index comes first. Zeros are never
 * selected, so fewer than k entries come out when fewer are there. NaN and Inf travel as values. Inf counts as greater
 * than every finite value, and NaN as greater than Inf: they are sent first and leave the residual. Means, deviations
 * and norms leave them out. The selection's rows ascend.
 *
 * Memory: n values of residual, as many again with momentum, n bits with ZENPS_RESIDUAL_GLOBAL, and per entry that can
 * be selected 8 bytes and two values (see zenps_sparsifier_options_t). All of it is allocated at creation.
 *
 * Device memory (options.memory): zenps_sparsifier_select() submits its work to out->stream, a cudaStream_t (NULL: the
 * default one). It reads the gradient in the order of that stream, and waits for it to count the entries.
 * zenps_sparsifier_commit() submits to the same stream, so the stream must live until then. The arrays of the selection
 * are in device memory, as zenps_allreduce() takes them.
 *
 * Threads: a sparsifier is used by one thread at a time; different ones are independent. No function needs a job or
 * starts threads; of those in host memory none blocks, and all work after fork(). Errors are those of zenps.h, with a
 * sentence in zenps_last_error().
 */
#ifndef ZENPS_SPARSIFY_H
#define ZENPS_SPARSIFY_H

#include <zenps/zenps.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zenps_sparsify {
  /* Exactly k. [SparCML section 2.2, Top-k SGD] */
  ZENPS_SPARSIFY_TOPK = 1,
  /* All from the threshold on that is the k/n quantile of a sample; refined outside 0.8 k to 1.3 k. [DGC, which Zen
   * uses with the top 5%: section 3.4] */
  ZENPS_SPARSIFY_SAMPLED = 2,
  /* Exactly k every `period` selections, in between all from the threshold on that this gave, which follows the counts
   * so that they are k on average; refined, and the period starts again, outside 0.5 k to 2 k. [Ok-Topk section 3.1.3]
   */
  ZENPS_SPARSIFY_REUSED = 3,
  /* All from the threshold on beyond which k of n values of a normal distribution with the sum's mean and deviation
   * lie; corrected in steps of 1.02 where that are not 0.75 k to 1.25 k; refined where no step yields 0.75 k to 2 k.
   * [Gaussiank, Ok-Topk sections 2 and 5.4] */
  ZENPS_SPARSIFY_GAUSSIAN = 4,
  /* Exactly k of each `bucket` consecutive values. [SparCML sections 2.2 and 8.3: 4 of 512. SparseLoCo, arXiv
   * 2508.15706: 64 of 4096 of an outer gradient, with `decay`] */
  ZENPS_SPARSIFY_BUCKETS = 5,
  /* All from `threshold` on, which the caller sets and changes; the k greatest when there are more than k. For ranks
   * that agree on one threshold, such as Zen's tensor-parallel ones. */
  ZENPS_SPARSIFY_THRESHOLD = 6,
  /* Nothing here, but in a scheme that keeps only the greatest rows, such as "oktopk": all of the sum goes, dense, and
   * the rows of zenps_request_contributed() (a tensor's option) are what leaves the residual. Takes no k. [Ok-Topk
   * algorithm 2] */
  ZENPS_SPARSIFY_SCHEME = 7
} zenps_sparsify_t;

typedef enum zenps_residual {
  /* What was selected leaves the residual [SparCML algorithm 1, DGC]. */
  ZENPS_RESIDUAL_SENT = 0,
  /* Only what is also in the result does [Ok-Topk algorithm 2]. For schemes that keep only the greatest rows: give them
   * no more than the tensor's k, or they drop some that look sent. */
  ZENPS_RESIDUAL_GLOBAL = 1
} zenps_residual_t;

typedef struct zenps_sparsifier zenps_sparsifier_t;

/* Always initialise with ZENPS_SPARSIFIER_OPTIONS_INIT(). */
typedef struct zenps_sparsifier_options {
  size_t struct_size;
  zenps_sparsify_t kind; /* 0: ZENPS_SPARSIFY_TOPK */
  zenps_residual_t residual;
  uint64_t k;            /* entries, per bucket with ZENPS_SPARSIFY_BUCKETS; 0: from `density` */
  double density;        /* k / n (k / bucket), over 0 and at most 1; k is rounded to the nearest, at least 1.
                            ZENPS_SPARSIFY_THRESHOLD and _SCHEME take neither: k = n */
  uint32_t period;       /* ZENPS_SPARSIFY_REUSED: selections from one exact threshold to the next; 0: 32 */
  uint32_t bucket;       /* ZENPS_SPARSIFY_BUCKETS: values; 0: 512; the last one may be shorter and then has its share
                            of k, rounded up */
  uint64_t sample;       /* values that thresholds are estimated from; 0: n / 512, within 4096 and 131072 */
  uint64_t seed;         /* of the sample's positions; the result of exact kinds does not depend on it */
  double momentum;       /* DGC's momentum correction, 0 <= momentum < 1; 0: none. velocity = momentum * velocity +
                            gradient is what is added to the residual; it is cleared where the residual is (momentum
                            factor masking). The optimiser must then apply no momentum of its own. */
  double clip_norm;      /* gradients of a greater L2 norm are scaled down to this one before they are added (DGC's
                            local gradient clipping: give the global bound / sqrt(world)); 0: none */
  double threshold;      /* ZENPS_SPARSIFY_THRESHOLD: at least 0 */
  int unrefined;         /* 1: sampled, reused and Gaussian thresholds are taken at their word, as in the papers, as
                            long as no more than 2 k are selected; reused ones stay as they are, Gaussian ones are not
                            corrected */
  int capped;            /* 1: of what a threshold selects no more than the k greatest come out; the threshold stays.
                            For a scheme that keeps k of a rank's rows, such as "oktopk" */
  zenps_memory_t memory; /* ZENPS_DEVICE: gradients are in a GPU's memory, and residual, velocity and selection, too:
                            the same selection, bit for bit. Not with ZENPS_SPARSIFY_GAUSSIAN or clip_norm, and below
                            2^31 values; ZENPS_ERR_UNSUPPORTED says what is missing */
  int device;            /* number of that GPU */
  double decay;          /* error feedback with decay: select() adds the gradient to decay * residual. Over 0 and at
                            most 1; 0: 1, nothing is lost [SparseLoCo, arXiv 2508.15706: 0.95] */
} zenps_sparsifier_options_t;

/* What the last selection was. */
typedef struct zenps_sparsifier_stats {
  size_t struct_size;
  uint64_t k;        /* entries wanted, of all buckets together */
  uint64_t selected; /* entries that came out */
  double threshold;  /* the smallest magnitude that was asked for; 0 with ZENPS_SPARSIFY_BUCKETS */
  uint64_t steps;    /* selections so far */
  uint64_t refined;  /* those that a threshold missed, and that were done again exactly */
} zenps_sparsifier_stats_t;

ZENPS_API void zenps_sparsifier_options_init(zenps_sparsifier_options_t *options, size_t struct_size);
#define ZENPS_SPARSIFIER_OPTIONS_INIT(p) zenps_sparsifier_options_init((p), sizeof *(p))

/* For `n` values, 1 to 2^40, of ZENPS_F32 or ZENPS_F64; the residual is zero. ZENPS_ERR_INVALID says which option
 * cannot be right. */
ZENPS_API zenps_status_t zenps_sparsifier_create(const zenps_sparsifier_options_t *options, uint64_t n,
                                                 zenps_dtype_t dtype, zenps_sparsifier_t **sparsifier);
/* NULL is allowed. */
ZENPS_API void zenps_sparsifier_destroy(zenps_sparsifier_t *sparsifier);

/* `gradient`: n values, borrowed during the call. `out` (initialised) becomes the selection, ZENPS_ROWS (with
 * ZENPS_SPARSIFY_SCHEME the residual, ZENPS_DENSE); its arrays are the sparsifier's, valid until the next selection,
 * and must not be changed. ZENPS_ERR_BUSY: the former selection was neither committed nor canceled. */
ZENPS_API zenps_status_t zenps_sparsifier_select(zenps_sparsifier_t *sparsifier, const void *gradient,
                                                 zenps_grad_t *out);
/* What ranks that hold parts of one layer do to take one threshold for all (Zen's LLM workloads: tensor parallelism
 * with DGC), with a ZENPS_SPARSIFY_THRESHOLD sparsifier for each part:
 *
 *   zenps_sparsifier_sample(sparsifier, gradient, NULL, own, capacity, &n_own);
 *   ... gather the samples of all parts, by whatever collective there is, such as zenps_allreduce() of a row each ...
 *   zenps_sparsify_threshold(samples, n_parts, 0.05, &threshold);
 *   zenps_sparsifier_set_threshold(sparsifier, threshold);
 *   zenps_sparsifier_select(sparsifier, gradient, &in);
 *
 * All get the same threshold from the same samples, and about `density` of the layer's values are selected, wherever in
 * it they are. */
typedef struct zenps_sample {
  const double *magnitudes;
  uint64_t n;  /* of them */
  uint64_t of; /* values that they stand for */
} zenps_sample_t;
/* Writes the magnitudes of a sample of what the next select() of this gradient chooses from: *n of them,
 * options.sample, or ZENPS_ERR_TRUNCATED where `capacity` is less (then *n says how many). Changes nothing. With device
 * memory it is in the order of `stream`, and waits for it. ZENPS_ERR_INVALID but for ZENPS_SPARSIFY_THRESHOLD. */
ZENPS_API zenps_status_t zenps_sparsifier_sample(zenps_sparsifier_t *sparsifier, const void *gradient, void *stream,
                                                 double *magnitudes, uint64_t capacity, uint64_t *n);
/* The greatest threshold from which on at least `density` (over 0, at most 1) of all the values that the samples stand
 * for are estimated to lie. NaN counts as greater than Inf. */
ZENPS_API zenps_status_t zenps_sparsify_threshold(const zenps_sample_t *samples, uint32_t n_samples, double density,
                                                  double *threshold);
/* Ends a selection that was sent. `result` is the sum over all ranks, or what a scheme kept of it: with
 * ZENPS_RESIDUAL_GLOBAL the rows listed (in any order) or, when dense, the values that are not zero are "in the
 * result"; only `row_ids` of a result in rows is read, in device memory, too. A dense result must be in host memory.
 * With ZENPS_RESIDUAL_SENT it is not looked at and may be NULL. A row that the tensor does not have is
 * ZENPS_ERR_INVALID and changes nothing. With ZENPS_SPARSIFY_SCHEME `result` is what zenps_request_contributed() gave,
 * whatever `residual` says. */
ZENPS_API zenps_status_t zenps_sparsifier_commit(zenps_sparsifier_t *sparsifier, const zenps_grad_t *result);
/* Ends a selection that was not sent: the residual keeps all of it. */
ZENPS_API zenps_status_t zenps_sparsifier_cancel(zenps_sparsifier_t *sparsifier);

/* Other k from the next selection on, as in DGC's warm-up. May allocate. Not between selection and commit. */
ZENPS_API zenps_status_t zenps_sparsifier_set_k(zenps_sparsifier_t *sparsifier, uint64_t k);
/* ZENPS_SPARSIFY_THRESHOLD alone. */
ZENPS_API zenps_status_t zenps_sparsifier_set_threshold(zenps_sparsifier_t *sparsifier, double threshold);

/* The n values of the residual and, NULL without momentum, of the velocity: to be saved with a checkpoint, written back
 * (after creation, or between commit and selection), or zeroed; where options.memory says. Between selection and commit
 * the residual includes the selection. Valid until the sparsifier is destroyed. */
ZENPS_API void *zenps_sparsifier_residual(zenps_sparsifier_t *sparsifier);
ZENPS_API void *zenps_sparsifier_velocity(zenps_sparsifier_t *sparsifier);
/* All of the state as bytes, for a checkpoint: residual, velocity, thresholds and where in their period they are, k,
 * counters, and which rows a selection has that was neither committed nor canceled. *needed (never NULL) is set to
 * their number; ZENPS_ERR_TRUNCATED where `capacity` is less, so NULL and 0 ask for it. With device memory it waits for
 * what the last call submitted. */
ZENPS_API zenps_status_t zenps_sparsifier_save(const zenps_sparsifier_t *sparsifier, void *buffer, size_t capacity,
                                               size_t *needed);
/* Goes on from saved bytes, as if the run had not been interrupted, bit for bit, where the sparsifier was created with
 * the same options; in host or device memory, whichever they were saved in. k, and the threshold of
 * ZENPS_SPARSIFY_THRESHOLD, become those of the state. A selection in hand can be committed or canceled; its arrays are
 * not there any more. ZENPS_ERR_SHAPE: of other n, kind or dtype, or with momentum where this one is without;
 * ZENPS_ERR_INVALID: truncated, changed, or no such state; ZENPS_ERR_VERSION: of another format; ZENPS_ERR_BUSY between
 * selection and commit. Those change nothing; an error of the device leaves the residual undefined. May allocate. */
ZENPS_API zenps_status_t zenps_sparsifier_load(zenps_sparsifier_t *sparsifier, const void *buffer, size_t len);
/* `stats->struct_size` must be set. */
ZENPS_API zenps_status_t zenps_sparsifier_stats(const zenps_sparsifier_t *sparsifier, zenps_sparsifier_stats_t *stats);

#ifdef __cplusplus
}
#endif
#endif
