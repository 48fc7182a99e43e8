/*
 * The options of schemes: one table, and the text of a scheme, "oktopk:k=1000,tau=64".
 *
 * The table is the only list. The members of struct zps_scheme_options, the parameters of the text, the members of
 * the JSON object "scheme" in tensor.register (proto/control_scheme.c), errors and helps are made from it. A new option
 * is a row here, and the file of the scheme that reads it: it is a member of struct zps_peer_plan, too.
 */
#ifndef ZPS_PLAN_SCHEME_OPTIONS_H
#define ZPS_PLAN_SCHEME_OPTIONS_H

#include "common/codec/partition.h"
#include "common/codec/partitioner.h"
#include "common/plan/ablation.h"

#define ZPS_SCHEME_LEVELS_MAX 16u
#define ZPS_SCHEME_FACTOR_MAX 4096u /* ranks of a level: as many as a job has */
#define ZPS_SCHEME_CHUNKS_MAX 64u
#define ZPS_SCHEME_TEXT_MAX 511u

/* The way round of a split's second half, and what the ranks of a level do. */
enum zps_allgather { ZPS_ALLGATHER_AUTO, ZPS_ALLGATHER_DIRECT, ZPS_ALLGATHER_DOUBLING };
enum zps_level_algorithm { ZPS_LEVEL_AUTO, ZPS_LEVEL_RING, ZPS_LEVEL_DOUBLING };

/* Sets of schemes, as bits 1u << enum zps_plan_scheme. */
#define ZPS_SCHEMES_ONE(scheme) (1u << ZPS_PLAN_##scheme)
#define ZPS_SCHEMES_BIT_IF(number, have, all) (((have) & (all)) == (all) ? ZPS_SCHEMES_ONE(number) : 0u) |
#define ZPS_SCHEMES_LOSSY(number, name, flags, paper) ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_LOSSY)
#define ZPS_SCHEMES_LEVELS(number, name, flags, paper) ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_LEVELS)
#define ZPS_SCHEMES_STREAMS(number, name, flags, paper) ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_STREAMS)
#define ZPS_SCHEMES_GATHERS(number, name, flags, paper) ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_GATHERS)
#define ZPS_SCHEMES_ROUND(number, name, flags, paper) \
  ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_GATHERS | ZPS_SCHEME_ZEROS)
#define ZPS_SCHEMES_DENSE(number, name, flags, paper) \
  ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_ALL_VALUES) ZPS_SCHEMES_BIT_IF(number, flags, ZPS_SCHEME_ZEROS)
#define ZPS_SCHEMES_WITH(set) (ZPS_PLAN_SCHEME_LIST(ZPS_PLAN_NOTHING, ZPS_SCHEMES_##set) 0u)
#define ZPS_SCHEMES_DEALT (ZPS_SCHEMES_ONE(BALANCED) | ZPS_SCHEMES_ONE(HIERARCHICAL))

/*
 * One row an option, in the order of the JSON: kind, place, member, name in texts, least, most, absent, word, schemes,
 * help.
 *
 * kind    COUNT: uint32_t. NUMBER: uint64_t. BITS: a COUNT of 2, 4 or 8. SHARE: a double over 0, at most 1. FLAG: 0 or
 *         1. WORD: a number with the name word(number). PARTS: enum zps_without. LEVELS: numbers with a letter each.
 * place   WIRE: ranks agree on it; the member's name is the key of the JSON. HERE: it stays in this process, or travels
 *         as a member of the tensor.
 * least   The smallest number on the wire. 0 means the default of every option, and is not sent.
 * absent  This number means the default, too, and is not sent either. So ranks agree on both forms.
 * schemes The schemes that take it.
 * help    What it does, and the default.
 */
#define ZPS_SCHEME_OPTION_LIST(X)                                                                                      \
  X(NUMBER, WIRE, k, "k", 1, ZPS_PARTITION_ROWS_MAX, 0, NULL, ZPS_SCHEMES_WITH(LOSSY),                                 \
    "rows to keep. A scheme that keeps only some rows needs this or density.")                                         \
  X(SHARE, HERE, density, "density", 0, 1, 0, NULL, ZPS_SCHEMES_WITH(LOSSY), "share of the rows to keep.")             \
  X(LEVELS, WIRE, levels, "levels", 1, 0, 0, NULL, ZPS_SCHEMES_WITH(LEVELS) | ZPS_SCHEMES_ONE(HIERARCHICAL),           \
    "factors of the number of ranks, innermost first, over ranks sorted by rack and host, such as 4x2. blueconnect "   \
    "takes r behind a factor for a ring, d for halving and doubling, such as 4rx2d. Default: by rack and host.")       \
  X(COUNT, WIRE, chunks, "chunks", 2, ZPS_SCHEME_CHUNKS_MAX, 0, NULL,                                                  \
    ZPS_SCHEMES_WITH(DENSE) | ZPS_SCHEMES_ONE(OKTOPK),                                                                 \
    "pieces of a block, or of a region of oktopk, so that sending and adding overlap. Default: of a megabyte.")        \
  X(BITS, WIRE, bits, "bits", 2, 8, 0, NULL, ZPS_SCHEMES_WITH(ROUND),                                                  \
    "QSGD bits of the dense half: 2, 4 or 8. Default: exact.")                                                         \
  X(COUNT, WIRE, boundary_period, "tau", 1, UINT32_MAX, 64, NULL, ZPS_SCHEMES_ONE(OKTOPK),                             \
    "rounds from one agreement on regions to the next. Default: 64.")                                                  \
  X(COUNT, WIRE, threshold_period, "tau_threshold", 1, UINT32_MAX, 32, NULL, ZPS_SCHEMES_ONE(OKTOPK),                  \
    "rounds from one exact threshold to the next. Default: 32.")                                                       \
  X(PARTS, WIRE, without, "without", 1, 0, 0, NULL, ZPS_SCHEMES_ONE(OKTOPK) | ZPS_SCHEMES_ONE(GAUSSIANK),              \
    "parts of the paper to leave out, such as rotation+steering:" ZPS_PLAN_PARTS_TEXT                                  \
    " (the last one of gaussiank, the others of oktopk).")                                                             \
  X(WORD, WIRE, allgather, "allgather", 0, ZPS_ALLGATHER_DOUBLING, 0, zps_allgather_name, ZPS_SCHEMES_WITH(GATHERS),   \
    "the way round of the second half: direct to every rank, or by doubling in log2 P stages, which does not go with " \
    "bits. Default: auto, doubling for results of at most 64 KiB between more than 3 ranks.")                          \
  X(SHARE, WIRE, delta, "delta", 0, 1, 0, NULL, ZPS_SCHEMES_WITH(STREAMS),                                             \
    "share of a stream's rows beyond which it becomes dense, for sums and means. Default: where entries take more "    \
    "than all rows with codec paper, else never.")                                                                     \
  X(FLAG, HERE, contributed, "contributed", 0, 1, 0, NULL, ZPS_SCHEMES_WITH(LOSSY),                                    \
    "1: zenps_request_contributed() tells which rows of the gradient are in the result, for a tenth more computing. "  \
    "Ranks need not agree.")                                                                                           \
  X(WORD, HERE, partitioner, "partitioner", ZPS_PARTITIONER_STRATIFIED, ZPS_PARTITIONER_HIERARCHICAL, 0,               \
    zps_partitioner_word, ZPS_SCHEMES_DEALT,                                                                           \
    "how rows are dealt to partitions: stratified; murmur, each row by its hash (h0 of the Zen paper); hierarchical, " \
    "the same by its Algorithm 1, on the CPU or on the GPU, where the gradient is. All give the same sums, bit for "   \
    "bit. The hashing ones take at most 2^29 rows and no block_bits. Default: stratified.")                            \
  X(COUNT, HERE, block_bits, "block_bits", 0, ZPS_PARTITION_BLOCK_BITS_MAX, 0, NULL, ZPS_SCHEMES_DEALT,                \
    "rows are dealt in blocks of 2^block_bits. Default: 0, as in the Zen paper.")                                      \
  X(COUNT, HERE, hash_k, "hash_k", 0, ZPS_HIER_K_MAX, 0, NULL, ZPS_SCHEMES_DEALT,                                      \
    "hash functions of Algorithm 1. Default: the paper's 3.")                                                          \
  X(NUMBER, HERE, hash_r1, "hash_r1", 0, ZPS_HIER_SLOTS_MAX, 0, NULL, ZPS_SCHEMES_DEALT,                               \
    "parallel slots of Algorithm 1 per partition. Too few cost time and lose nothing. Default: 2 per row found.")      \
  X(NUMBER, HERE, hash_r2, "hash_r2", 0, ZPS_HIER_SLOTS_MAX, 0, NULL, ZPS_SCHEMES_DEALT,                               \
    "serial slots of Algorithm 1 per partition, which grow when full. Default: a tenth of hash_r1.")

/* The members, for the struct and for structs that have them among their own. */
#define ZPS_OPTION_COUNT(member) uint32_t member;
#define ZPS_OPTION_NUMBER(member) uint64_t member;
#define ZPS_OPTION_BITS(member) uint32_t member;
#define ZPS_OPTION_SHARE(member) double member;
#define ZPS_OPTION_FLAG(member) uint32_t member;
#define ZPS_OPTION_WORD(member) uint32_t member;
#define ZPS_OPTION_PARTS(member) uint32_t member;
#define ZPS_OPTION_LEVELS(member) uint32_t n_##member, member[ZPS_SCHEME_LEVELS_MAX], algorithms[ZPS_SCHEME_LEVELS_MAX];
#define ZPS_SCHEME_OPTION_MEMBER(kind, place, member, name, least, most, absent, word, schemes, help) \
  ZPS_OPTION_##kind(member)
struct zps_scheme_options {
  ZPS_SCHEME_OPTION_LIST(ZPS_SCHEME_OPTION_MEMBER)
};
/* ZPS_DEFAULT_boundary_period and so on: the column "absent". */
#define ZPS_SCHEME_OPTION_DEFAULT(kind, place, member, name, least, most, absent, word, schemes, help) \
  ZPS_DEFAULT_##member = (absent),
enum { ZPS_SCHEME_OPTION_LIST(ZPS_SCHEME_OPTION_DEFAULT) };
/* The same members in another struct, which can hand them on as `options`. */
#define ZPS_SCHEME_OPTIONS_HERE                        \
  union {                                              \
    struct zps_scheme_options options;                 \
    struct {                                           \
      ZPS_SCHEME_OPTION_LIST(ZPS_SCHEME_OPTION_MEMBER) \
    };                                                 \
  }

/* "?": the number has no name. */
const char *zps_allgather_name(unsigned allgather);
const char *zps_level_algorithm_name(unsigned algorithm);
const char *zps_partitioner_word(unsigned partitioner);

/* A scheme's text, taken apart. */
struct zps_scheme_text {
  char scheme[ZPS_SCHEME_TEXT_MAX + 1]; /* without its options: "oktopk", "hierarchical:ring", "auto:balanced,ring" */
  struct zps_scheme_options options;    /* Unchanged. 0 is the default. */
};

/* "NAME", "NAME:OPTION=VALUE,...", and before the options the schemes between hosts, or to choose from: "auto:any",
 * "hierarchical:ring,chunks=4". A text that begins with ':' adds options to those of `otherwise`. Refuses an option
 * that there is not, that none of the schemes takes, that is there twice, and a value out of range. Names of schemes
 * are not checked. */
zps_err_t zps_scheme_text_parse(const char *text, const char *otherwise, struct zps_scheme_text *scheme,
                                struct zps_error *error) ZPS_MUSTCHECK;
/* Adds the options that are not the default to the text of a scheme, as zps_scheme_text_parse() reads them. The text
 * has room for ZPS_SCHEME_TEXT_MAX + 1 characters. Returns it. */
char *zps_scheme_options_add(const struct zps_scheme_options *options, char *text);
/* Leaves the options that one of the schemes takes. */
void zps_scheme_options_keep(struct zps_scheme_options *options, unsigned schemes);
/* Leaves what ranks agree on, in one form: without numbers that mean the default. */
void zps_scheme_options_share(struct zps_scheme_options *options);
/* Whether ranks agree: looks at the options with the place WIRE. */
bool zps_scheme_options_same(const struct zps_scheme_options *a, const struct zps_scheme_options *b);

/* Paragraphs for a program's --help. */
#define ZPS_SCHEME_OPTION_HELP(kind, place, member, name, least, most, absent, word, schemes, help) \
  "\n  " name ": " help
#define ZPS_SCHEME_OPTIONS_TEXT ZPS_SCHEME_OPTION_LIST(ZPS_SCHEME_OPTION_HELP)

#endif
