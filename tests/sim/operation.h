/* What a rank does for a tensor in a step: a gradient in, a sum out, in one call or two. */
#ifndef ZPS_TESTS_SIM_OPERATION_H
#define ZPS_TESTS_SIM_OPERATION_H

#include "tests/sim/plan.h"
#include "zenps/zenps.h"

enum { SIM_ATTEMPTS = 8 }; /* at a step, of which the last goes well */

/* A step that is tried, maybe again: with other gradients, so that no sum can be of both, and under the next number, or
 * under the same one where all ranks have failed. */
struct sim_attempt {
  uint64_t step, n_before; /* attempts at this step */
  uint64_t number;         /* of all attempts at steps */
  uint64_t told;           /* the step that the library is told */
};

struct sim_operation {
  struct sim_attempt attempt;
  zenps_request_t *request, *pull; /* pull: only where push and pull are apart */
  zenps_grad_t in, out;
  uint64_t first, count; /* the rows that were asked for */
  bool asks_all;         /* a pull of all rows */
  bool is_newest;        /* of whichever step the sum is */
  bool is_begun;         /* all that it takes */
  float *values, *packed, *result;
  int64_t *row_ids;
  uint64_t rows, n_values;
};

/* Opens the tensor as the plan has it. */
zenps_status_t sim_tensor_open(zenps_job_t *job, const struct sim_tensor_plan *plan, zenps_tensor_t **tensor_p);

void sim_operation_init(struct sim_operation *operation, const struct sim_tensor_plan *tensor);
void sim_operation_fini(struct sim_operation *operation);
/* Whichever of allreduce, push and pull, reduce-scatter: by dice, where they may be mixed. What has begun is to be
 * ended on failure, too. */
zenps_status_t sim_operation_begin(struct sim_operation *operation, const struct sim_plan *plan, uint32_t t,
                                   zenps_tensor_t *tensor, struct sim_attempt attempt, uint32_t rank);
/* Until it is done. *error_p is valid until sim_operation_free(). */
zenps_status_t sim_operation_wait(struct sim_operation *operation, const zenps_error_t **error_p);
/* A sum that a pull of the newest one has found may be dropped while it is pulled, for steps that this rank has pushed
 * since: whether these are enough for that. */
bool sim_operation_is_overtaken(const struct sim_operation *operation, const struct sim_tensor_plan *of,
                                uint64_t newest_pushed);
/* Begins such a pull anew. */
zenps_status_t sim_operation_ask_again(struct sim_operation *operation, const struct sim_tensor_plan *of,
                                       zenps_tensor_t *tensor);
/* Whether the result is the sum. */
bool sim_operation_is_right(struct sim_operation *operation, const struct sim_plan *plan, uint32_t run, uint32_t t,
                            uint32_t rank);
/* The arrays hold something else from then on. */
void sim_operation_free(struct sim_operation *operation);

#endif
