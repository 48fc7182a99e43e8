/*
 * Trainers whose ranks may change (zenps/elastic.h). Each is a loop over the generations of its job:
 *
 *   do {
 *     ... the samples of this rank and the tensors, by train->rank and train->world ...
 *     is_done = train_take(train, state) && ... steps, as long as train_changed() is false ...;
 *     ... close the tensors ...
 *   } while (!is_done && train_next(train, steps));
 *
 * The state is what a rank that is new could not train on without: parameters, the optimizer's memory, and the place in
 * the data. It changes at once, when all sums of a step are there: a step that fails has changed nothing, and is taken
 * again. Steps are counted on all ranks alike, and the end of an epoch is one, since it is the last that changes the
 * state of its epoch. Where the job is not elastic, all of this does nothing.
 */
#ifndef ZPS_EXAMPLES_TRAIN_ELASTIC_H
#define ZPS_EXAMPLES_TRAIN_ELASTIC_H

#include "worker/examples/train.h"

/* The job as it was joined. */
void train_joined(struct train *train);
/* The ranks of a generation tell each other where they come from, and rank 0 says who is there. Collective. */
bool train_meet(struct train *train);

/* A step is not to begin, since ranks are lost or wait: train_next(). */
bool train_changed(struct train *train);
/* After the end of all tensors: whether another generation goes on, which is then joined. `steps`: those that this
 * rank's state has seen. False, and said on stderr: what failed is no matter of ranks, or too few are left. */
bool train_next(struct train *train, uint64_t steps);

/* A part of the state. */
struct train_state {
  void *data;
  size_t len;
};
/* The state of the rank that has come furthest, where this is not the first generation: all parts or none. Collective.
 */
bool train_take(struct train *train, const struct train_state *parts, unsigned n);
/* Rank 0 may have lost its last report with the generation: whether one of `epochs` is to be made again, by all ranks.
 * To be asked when the state has been taken. */
bool train_is_untold(struct train *train, uint64_t epochs);

#endif
