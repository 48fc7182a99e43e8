/* The schemes by which a round can be carried out: the names that every command line knows them by, and the properties
 * of each. */
#ifndef ZPS_PLAN_SCHEMES_H
#define ZPS_PLAN_SCHEMES_H

#include <stddef.h>

#include "common/base/err.h"

/* Properties of a scheme. */
enum zps_scheme_flag {
  ZPS_SCHEME_SERVED = 1 << 0,     /* rounds go through servers, not between ranks */
  ZPS_SCHEME_RANK_ORDER = 1 << 1, /* adds in rank order: its sums have the bits of balanced's */
  ZPS_SCHEME_LOSSY = 1 << 2,      /* sums only the greatest k: only where a tensor's options allow it */
  ZPS_SCHEME_ALL_VALUES = 1 << 3, /* sends all values, also zeros: no max or min */
  ZPS_SCHEME_ZEROS = 1 << 4,      /* may send zeros of rows that no rank has: no max or min */
  ZPS_SCHEME_RANGES = 1 << 5,     /* served: rows lie at servers in even ranges */
  ZPS_SCHEME_BLOCKS = 1 << 6,     /* served: a block of values counts as a row */
  ZPS_SCHEME_NESTS = 1 << 7,      /* is made of another scheme, between hosts */
  ZPS_SCHEME_ZEROCOPY =
      1 << 8, /* each row is read by one rank, and all need that rank's sum of it: no copy has to be sent */
  ZPS_SCHEME_STATEFUL = 1 << 9, /* rounds of one tensor run one after another, in the order of their steps */
  ZPS_SCHEME_COO = 1 << 10,     /* between ranks: its paper's streams are COO, however full they are */
  ZPS_SCHEME_STREAMS = 1 << 11, /* sends SparCML's streams: what a rank gives can be rounded, sums become dense */
  ZPS_SCHEME_GATHERS = 1 << 12, /* ends with each rank's range of the sum going to all: straight, or by doubling */
  ZPS_SCHEME_LEVELS = 1 << 13,  /* looks at which ranks are near each other */
};

/* The most bytes of a result whose ranges go round by doubling between more than three ranks: beyond, bandwidth counts.
 * Schemes (worker/schemes/gather_ranges.h) and predictions use it. */
#define ZPS_PLAN_DOUBLING_BYTES (64u << 10)

/* Each of them by its number, name, flags and the page that describes it, in the order of the numbers: SERVED goes
 * through servers, BETWEEN between ranks. The only list: numbers, flags, command lines, error texts and
 * worker/schemes are made from it. */
#define ZPS_PLAN_SCHEME_LIST(SERVED, BETWEEN)                                                                        \
  SERVED(BALANCED, "balanced", ZPS_SCHEME_RANK_ORDER, "Zen section 3.1")                                             \
  BETWEEN(RECURSIVE_DOUBLING, "recursive-doubling", ZPS_SCHEME_STREAMS, "SparCML section 5.3.1")                     \
  BETWEEN(SPLIT_ALLGATHER, "split-allgather", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_STREAMS | ZPS_SCHEME_GATHERS,       \
          "SparCML section 5.3")                                                                                     \
  BETWEEN(DSAR, "dsar", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_ZEROS | ZPS_SCHEME_STREAMS | ZPS_SCHEME_GATHERS,          \
          "SparCML section 5.3")                                                                                     \
  BETWEEN(AGSPARSE, "agsparse", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_STREAMS, "Zen section 2.3")                       \
  SERVED(OMNIREDUCE, "omnireduce", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_RANGES | ZPS_SCHEME_BLOCKS | ZPS_SCHEME_ZEROS, \
         "Zen section 2.3")                                                                                          \
  SERVED(SPARSE_PS, "sparse-ps", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_RANGES, "Zen section 4.1")                       \
  SERVED(DENSE_PS, "dense-ps", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_RANGES | ZPS_SCHEME_ALL_VALUES, "zenps")           \
  BETWEEN(RING, "ring", ZPS_SCHEME_ALL_VALUES, "BlueConnect section 2")                                              \
  BETWEEN(RABENSEIFNER, "rabenseifner", ZPS_SCHEME_ALL_VALUES, "SparCML section 5")                                  \
  BETWEEN(TWO_LEVEL, "two-level", ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_LEVELS, "BlueConnect section 2")                \
  BETWEEN(BLUECONNECT, "blueconnect", ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_LEVELS, "BlueConnect section 3")            \
  BETWEEN(OKTOPK, "oktopk", ZPS_SCHEME_LOSSY | ZPS_SCHEME_STATEFUL | ZPS_SCHEME_COO, "Ok-Topk algorithm 1")          \
  BETWEEN(GTOPK, "gtopk", ZPS_SCHEME_LOSSY | ZPS_SCHEME_COO | ZPS_SCHEME_STREAMS, "gTopk")                           \
  BETWEEN(TOPKA, "topka", ZPS_SCHEME_LOSSY | ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_COO | ZPS_SCHEME_STREAMS,            \
          "Ok-Topk section 5")                                                                                       \
  BETWEEN(TOPKDSA, "topkdsa",                                                                                        \
          ZPS_SCHEME_LOSSY | ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_ZEROS | ZPS_SCHEME_STREAMS | ZPS_SCHEME_GATHERS,     \
          "Ok-Topk section 5")                                                                                       \
  BETWEEN(GAUSSIANK, "gaussiank", ZPS_SCHEME_LOSSY | ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_COO | ZPS_SCHEME_STREAMS,    \
          "Ok-Topk section 5")                                                                                       \
  SERVED(HIERARCHICAL, "hierarchical", ZPS_SCHEME_NESTS | ZPS_SCHEME_LEVELS, "BlueConnect section 2")                \
  BETWEEN(DENSE_SPLIT, "dense-split", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_ZEROCOPY, "zenps")  \
  BETWEEN(BITMAP_SPLIT, "bitmap-split", ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_ZEROS, "zenps")

#define ZPS_PLAN_NUMBER(number, name, flags, paper) ZPS_PLAN_##number,
#define ZPS_PLAN_WORD(number, name, flags, paper) " " name
#define ZPS_PLAN_NOTHING(number, name, flags, paper)
#define ZPS_PLAN_SERVED_FLAGS(number, name, flags, paper) ZPS_PLAN_FLAGS_##number = (flags) | ZPS_SCHEME_SERVED,
#define ZPS_PLAN_BETWEEN_FLAGS(number, name, flags, paper) ZPS_PLAN_FLAGS_##number = (flags),

enum zps_plan_scheme {
  ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_NUMBER, ZPS_PLAN_NUMBER) ZPS_PLAN_SCHEMES, /* how many there are */
  ZPS_PLAN_AUTO = ZPS_PLAN_SCHEMES,                                        /* the planner's choice among them */
};

/* ZPS_PLAN_FLAGS_RING and so on, for tables that the compiler fills. */
enum { ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_SERVED_FLAGS, ZPS_PLAN_BETWEEN_FLAGS) };

/* " balanced omnireduce ...", for texts: all, those over servers, those between ranks. */
#define ZPS_PLAN_ALL_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_WORD, ZPS_PLAN_WORD)
#define ZPS_PLAN_SERVED_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_WORD, ZPS_PLAN_NOTHING)
#define ZPS_PLAN_BETWEEN_TEXT ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_NOTHING, ZPS_PLAN_WORD)

/* The names by number, "auto" the last, where a constant must point to one. */
enum { ZPS_PLAN_NAME_SIZE = 24 };
extern const char zps_plan_scheme_names[ZPS_PLAN_SCHEMES + 1][ZPS_PLAN_NAME_SIZE];
/* "?" for numbers that are no scheme. */
const char *zps_plan_scheme_name(enum zps_plan_scheme scheme);
bool zps_plan_scheme_parse(const char *name, enum zps_plan_scheme *scheme_p);
/* "; did you mean 'ring'?" for the first `len` bytes of `name`, or "": the end of an error's text. Returns `text`. */
const char *zps_plan_scheme_meant(const char *name, size_t len, char *text, size_t size);
/* "balanced,ring" -> bits 1u << scheme, from the first `len` bytes of `text`; "auto" and unknown names are refused. */
zps_err_t zps_plan_schemes_parse(const char *text, size_t len, unsigned *schemes_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;

/* Bits of zps_scheme_flag; none for numbers that are no scheme. */
unsigned zps_plan_scheme_flags(enum zps_plan_scheme scheme);
/* "Zen section 3": where the scheme is described; "zenps" where no paper has it. */
const char *zps_plan_scheme_paper(enum zps_plan_scheme scheme);

static inline bool zps_plan_scheme_served(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_flags(scheme) & ZPS_SCHEME_SERVED;
}

static inline bool zps_plan_scheme_lossy(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_flags(scheme) & ZPS_SCHEME_LOSSY;
}

static inline bool zps_plan_scheme_all_values(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_flags(scheme) & ZPS_SCHEME_ALL_VALUES;
}

/* Exact, with sums in rank order: the values of its result are those of balanced, bit for bit. */
static inline bool zps_plan_scheme_exact_order(enum zps_plan_scheme scheme) {
  return (zps_plan_scheme_flags(scheme) & (ZPS_SCHEME_RANK_ORDER | ZPS_SCHEME_LOSSY)) == ZPS_SCHEME_RANK_ORDER;
}

/* Exact, with rows of balanced's kind, whatever order it adds in. */
static inline bool zps_plan_scheme_same_rows(enum zps_plan_scheme scheme) {
  return !(zps_plan_scheme_flags(scheme) & (ZPS_SCHEME_LOSSY | ZPS_SCHEME_BLOCKS));
}

/* And in rank order: the values of the result do not show which of these schemes ran. */
static inline bool zps_plan_scheme_alike(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_exact_order(scheme) && zps_plan_scheme_same_rows(scheme);
}

/* Its result tells rows that some rank had from others. */
static inline bool zps_plan_scheme_shows_union(enum zps_plan_scheme scheme) {
  return !(zps_plan_scheme_flags(scheme) & (ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_ZEROS | ZPS_SCHEME_LOSSY));
}

/* Finds the rows of a gradient on its way, so that it can tell how many there are. */
static inline bool zps_plan_scheme_finds_rows(enum zps_plan_scheme scheme) {
  return !(zps_plan_scheme_flags(scheme) & (ZPS_SCHEME_ALL_VALUES | ZPS_SCHEME_BLOCKS));
}

#endif
