/* The schemes by which a round can be carried out, by the names that every command line knows them by. */
#ifndef ZPS_PLAN_SCHEMES_H
#define ZPS_PLAN_SCHEMES_H

#include <stddef.h>

#include "common/base/err.h"

enum zps_plan_scheme {
  ZPS_PLAN_BALANCED,           /* Zen's Balanced Parallelism: hashed partitions at servers */
  ZPS_PLAN_RECURSIVE_DOUBLING, /* Zen's Hierarchical Centralization, SparCML's SSAR_Recursive_double */
  ZPS_PLAN_SPLIT_ALLGATHER,    /* SparCML's SSAR_Split_allgather */
  ZPS_PLAN_DSAR,               /* SparCML's DSAR_Split_allgather */
  ZPS_PLAN_AGSPARSE,           /* allgather of what everyone has */
  ZPS_PLAN_OMNIREDUCE,         /* non-zero blocks of 256 values at aggregators */
  ZPS_PLAN_SPARSE_PS,          /* even ranges at servers, COO */
  ZPS_PLAN_DENSE_PS,           /* even ranges at servers, all values */
  ZPS_PLAN_RING,
  ZPS_PLAN_RABENSEIFNER, /* recursive halving, then doubling */
  ZPS_PLAN_TWO_LEVEL,    /* a ring of one rank per host */
  ZPS_PLAN_BLUECONNECT,
  ZPS_PLAN_OKTOPK,
  ZPS_PLAN_GTOPK,
  ZPS_PLAN_TOPKA,
  ZPS_PLAN_TOPKDSA,
  ZPS_PLAN_GAUSSIANK,
  ZPS_PLAN_HIERARCHICAL,            /* ranks of a host merge, one push per host, balanced */
  ZPS_PLAN_DENSE_SPLIT,             /* all values to the ranks of even ranges, and their sums to all, in rank order */
  ZPS_PLAN_SCHEMES,                 /* how many there are */
  ZPS_PLAN_AUTO = ZPS_PLAN_SCHEMES, /* the planner's choice among them */
};

/* All names in the order of their numbers, "auto" last: for tables of options and error texts. */
#define ZPS_PLAN_SCHEME_NAME_LIST                                                                                 \
  "balanced", "recursive-doubling", "split-allgather", "dsar", "agsparse", "omnireduce", "sparse-ps", "dense-ps", \
      "ring", "rabenseifner", "two-level", "blueconnect", "oktopk", "gtopk", "topka", "topkdsa", "gaussiank",     \
      "hierarchical", "dense-split", "auto"

/* "?" for numbers that are no scheme. */
const char *zps_plan_scheme_name(enum zps_plan_scheme scheme);
bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p);
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
