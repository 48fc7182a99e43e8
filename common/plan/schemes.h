/* The schemes by which a round can be carried out, by the names that every command line knows them by. */
#ifndef ZPS_PLAN_SCHEMES_H
#define ZPS_PLAN_SCHEMES_H

#include <stddef.h>

#include "common/base/err.h"

/* Each of them by its number and name, in the order of the numbers: SERVED goes through servers, BETWEEN from worker to
 * worker. The only list of the names in code: numbers, command lines and error texts are made from it. */
#define ZPS_PLAN_SCHEME_LIST(SERVED, BETWEEN)                                                                          \
  SERVED(BALANCED, "balanced")                      /* Zen's Balanced Parallelism: hashed partitions at servers */     \
  BETWEEN(RECURSIVE_DOUBLING, "recursive-doubling") /* Zen's Hierarchical Centralization, SSAR_Recursive_double */     \
  BETWEEN(SPLIT_ALLGATHER, "split-allgather")       /* SparCML's SSAR_Split_allgather */                               \
  BETWEEN(DSAR, "dsar")                             /* SparCML's DSAR_Split_allgather */                               \
  BETWEEN(AGSPARSE, "agsparse")                     /* allgather of what everyone has */                               \
  SERVED(OMNIREDUCE, "omnireduce")                  /* non-zero blocks of 256 values at aggregators */                 \
  SERVED(SPARSE_PS, "sparse-ps")                    /* even ranges at servers, COO */                                  \
  SERVED(DENSE_PS, "dense-ps")                      /* even ranges at servers, all values */                           \
  BETWEEN(RING, "ring")                                                                                                \
  BETWEEN(RABENSEIFNER, "rabenseifner") /* recursive halving, then doubling */                                         \
  BETWEEN(TWO_LEVEL, "two-level")       /* a ring of one rank per host */                                              \
  BETWEEN(BLUECONNECT, "blueconnect")                                                                                  \
  BETWEEN(OKTOPK, "oktopk")                                                                                            \
  BETWEEN(GTOPK, "gtopk")                                                                                              \
  BETWEEN(TOPKA, "topka")                                                                                              \
  BETWEEN(TOPKDSA, "topkdsa")                                                                                          \
  BETWEEN(GAUSSIANK, "gaussiank")                                                                                      \
  SERVED(HIERARCHICAL, "hierarchical")  /* ranks of a host merge, one push per host, balanced */                       \
  BETWEEN(DENSE_SPLIT, "dense-split")   /* all values to the ranks of even ranges, their sums to all, in rank order */ \
  BETWEEN(BITMAP_SPLIT, "bitmap-split") /* the same of what is not zero, with a bit for each row */

#define ZPS_PLAN_NUMBER(number, name) ZPS_PLAN_##number,
#define ZPS_PLAN_WORD(number, name) " " name
#define ZPS_PLAN_NOTHING(number, name)

enum zps_plan_scheme {
  ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_NUMBER, ZPS_PLAN_NUMBER) ZPS_PLAN_SCHEMES, /* how many there are */
  ZPS_PLAN_AUTO = ZPS_PLAN_SCHEMES,                                        /* the planner's choice among them */
};

/* " balanced omnireduce ...", for texts: all, those over servers, those between workers. */
#define ZPS_PLAN_ALL_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_WORD, ZPS_PLAN_WORD)
#define ZPS_PLAN_SERVED_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_WORD, ZPS_PLAN_NOTHING)
#define ZPS_PLAN_BETWEEN_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_NOTHING, ZPS_PLAN_WORD)

/* "?" for numbers that are no scheme. */
const char *zps_plan_scheme_name(enum zps_plan_scheme scheme);
bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p);
/* "; did you mean 'ring'?" for the first `len` bytes of `name`, or "": the end of an error's text. Returns `text`. */
const char *zps_plan_scheme_meant(const char *name, size_t len, char *text, size_t size);
/* "balanced,ring" -> bits 1u << scheme, from the first `len` bytes of `text`; "auto" and unknown names are refused. */
zps_err_t zps_plan_schemes_parse(const char *text, size_t len, unsigned *schemes_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;
/* Keeps only the k greatest of what it sums. */
bool zps_plan_scheme_lossy(enum zps_plan_scheme scheme);
/* Sends all values, whatever they are. */
bool zps_plan_scheme_dense(enum zps_plan_scheme scheme);
/* Exact, and adds in rank order: whichever of these runs, nobody can tell by the values of the result. */
bool zps_plan_scheme_alike(enum zps_plan_scheme scheme);
/* Its result tells rows that some rank had from others. */
bool zps_plan_scheme_shows_union(enum zps_plan_scheme scheme);
/* Finds the rows of a gradient on its way, so that it can tell how many there are. */
bool zps_plan_scheme_finds_rows(enum zps_plan_scheme scheme);
/* Goes through servers, not from worker to worker. */
bool zps_plan_scheme_served(enum zps_plan_scheme scheme);

#endif
