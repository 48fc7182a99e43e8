/* Random streams in every codec, dtype, width and policy, and one instruction carried out on them. The result is
 * checked as a peer's would be, and fits its bound. */
#ifndef ZPS_TESTS_WORKER_COMPUTE_COMPUTE_RIG_H
#define ZPS_TESTS_WORKER_COMPUTE_COMPUTE_RIG_H

#include "common/base/rng.h"
#include "worker/compute/compute.h"

enum { ROWS_MAX = 1500, WIDTH_MAX = 3 };

/* Rows lo..hi-1; `values` are zero where no row is present. */
struct compute_ref {
  uint64_t lo, hi;
  bool present[ROWS_MAX];
  double values[ROWS_MAX][WIDTH_MAX];
};

struct compute_rig {
  struct zps_rng rng;
  struct zps_compute compute;
  struct zps_compute_scratch *scratch;
  struct zps_program program;
  struct zps_own *own;
  struct zps_compute_in ins[4];
  void *bytes[4]; /* theirs */
  void *out;
};

void compute_rig_init(struct compute_rig *rig);
void compute_rig_fini(struct compute_rig *rig);
/* Calls check() many times, each with an empty program, another shape and another range of rows. */
void compute_any_stream(void (*check)(struct compute_rig *rig, uint64_t lo, uint64_t hi));

/* Below `below`. */
uint32_t compute_draw(struct compute_rig *rig, uint32_t below);
/* A value of the dtype, as a double. */
void compute_store(enum zps_dtype dtype, void *values, uint64_t i, double value);
double compute_load(enum zps_dtype dtype, const void *values, uint64_t i);

/* Rows lo..hi-1; to be freed. */
struct compute_ref *compute_draw_ref(struct compute_rig *rig, uint64_t lo, uint64_t hi);
/* Codes a reference stream as input `i`. */
void compute_put_in(struct compute_rig *rig, unsigned i, const struct compute_ref *ref, enum zps_codec codec);
/* Both: the stream that is input `i`, to be freed. */
struct compute_ref *compute_draw_in(struct compute_rig *rig, unsigned i, uint64_t lo, uint64_t hi);

/* Carries out the program's last instruction on the inputs. The returned streams live until the next call. */
struct zps_slice_view compute_run(struct compute_rig *rig);
/* The same rows with the same bits (-0.0 differs from +0.0), in the codec that the policy demands. In the paper's
 * policy all rows may be there. */
void compute_check_rows(struct compute_rig *rig, const struct zps_slice_view *view, const struct compute_ref *expected);
/* Number `i` of a short vector. */
double compute_vector_at(const struct zps_slice_view *view, uint32_t i);

#endif
