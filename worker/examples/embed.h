/* zenps-embed, in parts: embed.c is the program, embed_model.c the model. */
#ifndef ZPS_EXAMPLES_EMBED_H
#define ZPS_EXAMPLES_EMBED_H

#include "worker/examples/corpus.h"
#include "worker/examples/train_elastic.h"

enum { EMBED_DIM_MAX = 1024, EMBED_NEGATIVES_MAX = 64 };

struct embed_options {
  uint64_t dim, window, negatives, epochs, batch, min_count, max_words, seed, max_steps;
  double rate, subsample;
  int mode; /* 0 skip-gram, 1 CBOW */
  char *show;
  struct train_sync sync;
  bool json;
};

/* One of the two sets of vectors. */
struct embed_vectors {
  struct train_tensor gradient;
  float *rows;    /* words x dim */
  float *adagrad; /* per word: sum of mean squares of its gradients */
};

/* How far training has come, on all ranks alike. */
struct embed_progress {
  uint64_t steps;       /* with the ends of epochs */
  uint64_t epoch, step; /* those that are done, the steps of this epoch */
  double loss, metric;  /* of the last one */
};

struct embed {
  struct embed_options options;
  struct train train;
  struct corpus corpus;
  struct embed_vectors centres, contexts;
  struct embed_progress progress;
  double loss; /* sum over this rank's n_predictions in this epoch */
  uint64_t n_predictions;
  bool out_of_memory;
};

/* Adds the gradient of one position: its word and the window around it. */
void embed_position(struct embed *model, uint64_t position);
/* A step of row-wise Adagrad by the sum that is there. */
void embed_apply(struct embed *model, struct embed_vectors *vectors);
/* Share of held-out neighbour pairs whose true word scores above a random one; this rank's part of them. */
void embed_evaluate(const struct embed *model, double *ranked_right, double *n_pairs);
/* Prints the words whose vectors point most nearly the same way. */
void embed_show(const struct embed *model, const char *word);

#endif
