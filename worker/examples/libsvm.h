/*
 * libsvm files ("label index:value ...", indices from 1), read by all ranks at once, each its own samples. "qid:N"
 * behind the label is skipped.
 *
 * A plain file is read in parts: a rank reads the lines that begin in its share of the file's bytes, twice: to count
 * them (libsvm_count), and, once it has heard from the others how many lines lie before, to parse them (libsvm_read).
 * A compressed file cannot be entered in the middle: every rank unpacks all of it and keeps every world-th sample.
 *
 * Every so-many-th line of the file is held out, so any number of ranks sees the same two sets. A sample has a number
 * in its set, by its place in the file; which of them a rank has, sample_own() says.
 */
#ifndef ZPS_EXAMPLES_LIBSVM_H
#define ZPS_EXAMPLES_LIBSVM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_tools_lines;

struct sample {
  double label;
  uint32_t n;
  const uint32_t *index; /* feature numbers; 0 is the bias, which every sample has */
  const float *value;
};

struct sample_set {
  uint64_t n_all; /* in the file */
  uint64_t n_own; /* of this rank: number first_number + i * stride for own sample i */
  uint64_t first_number, stride;
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

/* How a rank reads a file. */
struct libsvm_share {
  const char *path;
  unsigned holdout; /* every so-many-th line is held out; 0: none */
  int rank, world;
  uint32_t features;     /* indices are taken modulo so many; 0: as they are */
  uint32_t index_most;   /* largest index that is taken as it is */
  bool in_parts;         /* out, of libsvm_count(): a share of the bytes; else all of them */
  uint64_t n_lines;      /* out, in parts: of this rank's */
  uint64_t lines_before; /* in, for libsvm_read(), in parts: those of the ranks before */
  struct zps_tools_lines *lines;
};

/* Opens the file, and counts the lines of this rank's part, if it can be read in parts. A pipe or a compressed file
 * stays open until libsvm_read() or libsvm_close(). */
zps_err_t libsvm_count(struct libsvm_share *share, struct zps_error *error) ZPS_MUSTCHECK;
/* In parts, `n_all` and `first_number` of the sets have yet to be given by libsvm_place(); else they are there. */
zps_err_t libsvm_read(struct libsvm_share *share, struct libsvm *data, struct zps_error *error) ZPS_MUSTCHECK;
void libsvm_close(struct libsvm_share *share);
/* Numbers of samples that the ranks before, and all ranks, have in each set. */
void libsvm_place(struct libsvm *data, uint64_t training_before, uint64_t training_all, uint64_t held_out_before,
                  uint64_t held_out_all);
/* ZPS_ERR_INVALID where no sample is left to train on. */
zps_err_t libsvm_check(const struct libsvm *data, const char *path, struct zps_error *error) ZPS_MUSTCHECK;
void libsvm_free(struct libsvm *data);

/* Whether sample `number` of the set is this rank's, and which of its own. */
bool sample_own(const struct sample_set *set, uint64_t number, uint64_t *own_p);
struct sample sample_at(const struct sample_set *set, uint64_t own_index);

#endif
