/*
 * libsvm files ("label index:value ...", indices from 1), read in parts: every rank scans the file but keeps only its
 * own samples, every world-th of the training set and of the held-out set. Which samples are held out depends on the
 * line number alone, so any number of ranks sees the same two sets.
 */
#ifndef ZPS_EXAMPLES_LIBSVM_H
#define ZPS_EXAMPLES_LIBSVM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct sample {
  double label;
  uint32_t n;
  const uint32_t *index; /* feature numbers; 0 is the bias, which every sample has */
  const float *value;
};

struct sample_set {
  uint64_t n_all;  /* in the file */
  uint64_t n_own;  /* of this rank: number i of them is number i * world + rank of all */
  uint64_t *first; /* n_own + 1 offsets */
  double *labels;
  uint64_t capacity;
  uint32_t *index;
  float *value;
  uint64_t n_entries, entries_capacity;
};

struct libsvm {
  struct sample_set training, held_out;
  uint32_t n_features; /* largest number of this rank's samples, plus 1 */
};

/* `holdout`: every so-many-th line is held out (0: none). */
zps_err_t libsvm_read(const char *path, unsigned holdout, int rank, int world, struct libsvm *data,
                      struct zps_error *error) ZPS_MUSTCHECK;
void libsvm_free(struct libsvm *data);
struct sample sample_at(const struct sample_set *set, uint64_t own_index);

#endif
