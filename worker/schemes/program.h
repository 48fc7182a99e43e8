/*
 * A rank-to-rank scheme as a program: what one rank does in one round, as instructions on streams.
 *
 * A stream is what SparCML calls one: the rows of a range of the tensor and their values, sparse or dense, whichever
 * codes smaller; or a short vector of doubles, for what ranks must agree on. Every stream is written by exactly one
 * instruction and read by any number, so an instruction can be carried out as soon as the streams that it reads are
 * there: the order in a program means nothing, except where it says so. Ranks meet in messages: each SEND has one RECV
 * with the same tag at its peer.
 *
 * Schemes (peer_scheme.h) are pure functions from rank, world and options to a program. Where a later step depends on
 * what an earlier one found (how many rows each rank ended up with), a CALL instruction asks the scheme for more
 * instructions. run.h says when which instruction is due, worker/compute what each does to the bytes, and worker/peer
 * carries them out.
 */
#ifndef ZPS_WORKER_SCHEMES_PROGRAM_H
#define ZPS_WORKER_SCHEMES_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

#define ZPS_STREAM_NONE UINT32_MAX

enum zps_stream_kind {
  ZPS_STREAM_ROWS,   /* rows lo..hi-1 of the tensor; index = row - lo */
  ZPS_STREAM_VECTOR, /* `hi` doubles (lo = 0), all of them sent */
};

struct zps_stream {
  enum zps_stream_kind kind;
  uint64_t lo, hi;    /* hi - lo < 2^32 */
  uint32_t writer;    /* instruction */
  uint32_t whole;     /* the JOIN of all rows that has these among its own, side by side: memory for it is memory for
                         this stream; ZPS_STREAM_NONE: there is none */
  uint32_t n_readers; /* instructions; when all are done the bytes may go */
};

/* The form that OWN and SUM give to the rows that they have. */
enum zps_form {
  ZPS_FORM_SPARSE, /* coded as the policy says */
  ZPS_FORM_ALL,    /* all of the range, zeros too */
  ZPS_FORM_BITS,   /* a bit for each row of the range: more bytes than other codes where few are set, less work. SUM:
                      all rows where most are in it */
};

enum zps_instr_type {
  ZPS_INSTR_OWN,       /* out = rows [lo, hi) of this rank's gradient, in `form` */
  ZPS_INSTR_VECTOR,    /* out = `vector`, program memory */
  ZPS_INSTR_SEND,      /* ins[0] goes to `peer` under `tag` */
  ZPS_INSTR_RECV,      /* out = what `peer` sends under `tag` */
  ZPS_INSTR_SUM,       /* out = ins added (or max, min) in the order given, each sum starting at its first addend's
                          row + 0.0 as everywhere; same range or same length each. A row is in the sum when it is in one
                          of them. In `form` */
  ZPS_INSTR_TOP,       /* out = the `k` greatest magnitudes of ins (together, as if one stream), lower rows first among
                          equals; all that are not zero when they are fewer. One stream in: one out of its range */
  ZPS_INSTR_NORMAL,    /* out = entries of ins[0] from the magnitude on beyond which `k` of its rows would lie if its
                          values were normal, of their mean and deviation; `corrected`: in steps of 1.02 where that are
                          not 3/4 k to 5/4 k rows. All where they are no more than k [Gaussiank] */
  ZPS_INSTR_THRESHOLD, /* out = entries of ins[0] whose magnitude is at least `value`. With `k` over 0: all where they
                          are no more than that, and the `k` greatest where `value` is 0 */
  ZPS_INSTR_KTH,       /* out = vector of 1: the k-th greatest magnitude of all ins together; 0 when they hold fewer */
  ZPS_INSTR_COUNTS,    /* out = vector: number of rows of each of ins */
  ZPS_INSTR_CUT,       /* out = rows [lo, hi) of ins[0], whose range contains them */
  ZPS_INSTR_TAKE,      /* out = entries number from..to-1 of ins[0], in its range */
  ZPS_INSTR_SPLITS,    /* out = vector: the n - 1 rows that cut the entries of ins[0] into n equal counts (`k` = n) */
  ZPS_INSTR_JOIN,   /* out = rows of ins, which ascend and have no row in common, over [lo, hi). With ZPS_FORM_ALL ins
                       have all rows of ranges that adjoin: no copy where they lie side by side */
  ZPS_INSTR_COMMON, /* out = entries of ins[0] whose rows ins[1], of the same range, has too */
  ZPS_INSTR_NARROW, /* out = ins[0], its values coded as `values` says and decoded again by its readers: its rows, or
                       with ZPS_FORM_ALL all of its range */
  ZPS_INSTR_SERVE,  /* out = the sum (or max, min), of all ranks that carry one out, of ins, which cover disjoint ranges
                       of  out's: each pushes to the job's servers, which add in the order of ranks */
  ZPS_INSTR_OFFER,  /* out = vector: where others of this host reach this rank's gradient on its device, or that they do
                       not. Stands first, and only one; OWNs follow a CALL */
  ZPS_INSTR_REACH,  /* out = vector of 1: whether all of ins, offers of which the first is our own, were reached */
  ZPS_INSTR_MERGE,  /* out = the sum of ins, offers that were reached, added on this rank's device in the order given */
  ZPS_INSTR_CONTRIBUTED, /* the rows of ins[0] are those of this rank's gradient that the result is made of; once a
                            program at most, by schemes that keep only some rows [Ok-Topk algorithm 1, line 14] */
  ZPS_INSTR_CALL,        /* the scheme goes on at `phase`, knowing the vectors in ins */
  ZPS_INSTR_RESULT,      /* ins, in disjoint ranges, are part of the result. Rows in none of a program's are zero */
};

struct zps_instr {
  enum zps_instr_type type;
  uint32_t out;            /* ZPS_STREAM_NONE where none is written */
  uint32_t first_in, n_in; /* in zps_program.ins */
  uint32_t peer;           /* SEND, RECV: rank */
  uint32_t tag;            /* SEND, RECV */
  uint32_t phase;          /* CALL */
  uint32_t values;         /* NARROW: number of the value codec (common/codec/values.h) */
  enum zps_form form;      /* OWN, SUM, JOIN, NARROW */
  bool corrected;          /* NORMAL */
  uint64_t k;              /* TOP, NORMAL, THRESHOLD, KTH, SPLITS */
  uint64_t from, to;       /* TAKE: entries; VECTOR, OFFER, REACH: first double in zps_program.doubles */
  double value;            /* THRESHOLD */
};

struct zps_program {
  zps_err_t code; /* the first failure to build; later calls do nothing */
  void *state;    /* of a stateful scheme (peer_scheme.h); NULL otherwise */
  uint64_t round; /* number of the round: 0, 1, ... as the tensor's rounds begin. With failures ranks may differ */
  bool holds;     /* a stream, held, stands for this rank's gradient */
  uint32_t held;
  struct zps_instr *instrs;
  struct zps_stream *streams;
  uint32_t *ins;
  double *doubles;
  uint32_t n_instrs, cap_instrs, n_streams, cap_streams, n_ins, cap_ins, n_doubles, cap_doubles;
};

void zps_program_fini(struct zps_program *program);
/* Empty again; keeps its memory. */
void zps_program_reset(struct zps_program *program);

/* Each appends an instruction, and returns the stream that it writes, if it does. What cannot be right (a stream that
 * is not there, ranges that differ) is a bug of the scheme's: ZPS_ERR_INTERNAL in `code`; no memory: ZPS_ERR_NOMEM. */
uint32_t zps_program_own(struct zps_program *program, uint64_t lo, uint64_t hi, enum zps_form form);
/* From here on zps_program_own() cuts `stream`, which covers the whole tensor: so a scheme carries on with what another
 * one has found. */
void zps_program_hold(struct zps_program *program, uint32_t stream);
uint32_t zps_program_vector(struct zps_program *program, const double *doubles, uint32_t n);
void zps_program_send(struct zps_program *program, uint32_t in, uint32_t peer, uint32_t tag);
uint32_t zps_program_recv(struct zps_program *program, uint32_t peer, uint32_t tag, uint64_t lo, uint64_t hi);
uint32_t zps_program_recv_vector(struct zps_program *program, uint32_t peer, uint32_t tag, uint32_t n);
uint32_t zps_program_sum(struct zps_program *program, const uint32_t *ins, uint32_t n_in, enum zps_form form);
uint32_t zps_program_top(struct zps_program *program, uint32_t in, uint64_t k);
uint32_t zps_program_normal(struct zps_program *program, uint32_t in, uint64_t k, bool corrected);
uint32_t zps_program_threshold(struct zps_program *program, uint32_t in, double value, uint64_t k);
uint32_t zps_program_kth(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t k);
uint32_t zps_program_counts(struct zps_program *program, const uint32_t *ins, uint32_t n_in);
uint32_t zps_program_cut(struct zps_program *program, uint32_t in, uint64_t lo, uint64_t hi);
uint32_t zps_program_take(struct zps_program *program, uint32_t in, uint64_t from, uint64_t to);
uint32_t zps_program_splits(struct zps_program *program, uint32_t in, uint32_t n);
uint32_t zps_program_join(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi);
uint32_t zps_program_common(struct zps_program *program, uint32_t in, uint32_t other);
/* `ins` have all of their rows, each from where the one before ends: they travel on as one. No stream is in two. */
uint32_t zps_program_join_all(struct zps_program *program, const uint32_t *ins, uint32_t n_in);
uint32_t zps_program_narrow(struct zps_program *program, uint32_t in, uint32_t values, enum zps_form form);
uint32_t zps_program_offer(struct zps_program *program, uint32_t n); /* doubles, of the offer */
uint32_t zps_program_reach(struct zps_program *program, const uint32_t *ins, uint32_t n_in);
uint32_t zps_program_merge(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi);
uint32_t zps_program_serve(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint64_t lo, uint64_t hi);
void zps_program_call(struct zps_program *program, const uint32_t *ins, uint32_t n_in, uint32_t phase);
void zps_program_result(struct zps_program *program, uint32_t in);
void zps_program_contributed(struct zps_program *program, uint32_t in);

static inline const uint32_t *zps_instr_ins(const struct zps_program *program, const struct zps_instr *instr) {
  return program->ins + instr->first_in;
}
const char *zps_instr_name(enum zps_instr_type type);

#endif
