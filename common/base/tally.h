/*
 * The costs of a tensor's rounds, under any scheme: each rank counts its own, and reports their growth to the
 * coordinator (`job.stats`, proto/PROTOCOL.md), which adds them up. Pure.
 */
#ifndef ZPS_BASE_TALLY_H
#define ZPS_BASE_TALLY_H

#include <stdbool.h>
#include <stdint.h>

/* All counters are of rounds that ended well, except `failed`, the number of the others. Bytes went through the fabric;
 * shared_* bytes went from rank to rank of one host in memory; bound_bytes is the least that the payloads could have
 * taken. Rows are those that this rank pushed, and those of the sums. Times are of phases that overlap. `covered_ms` is
 * the time since the rank's first round of the tensor: rates divide by it. */
/* clang-format off */
#define ZPS_TALLY_COUNTERS(X) \
  X(rounds) X(failed) \
  X(bytes_out) X(bytes_in) X(shared_out) X(shared_in) X(bound_bytes) \
  X(push_rows) X(union_rows) \
  X(total_ns) X(encode_ns) X(push_ns) X(wait_ns) X(pull_ns) X(decode_ns) \
  X(covered_ms)
/* Good rounds by their time in ms, for a histogram: each counter has the rounds that took longer than the one before it
 * allows, and at most its own number. The last one has no limit. */
#define ZPS_TALLY_TIMES(X) \
  X(took_1ms, 1) X(took_2ms, 2) X(took_4ms, 4) X(took_8ms, 8) X(took_16ms, 16) X(took_32ms, 32) X(took_64ms, 64) \
  X(took_128ms, 128) X(took_256ms, 256) X(took_512ms, 512) X(took_1024ms, 1024) X(took_2048ms, 2048) \
  X(took_4096ms, 4096) X(took_8192ms, 8192) X(took_16384ms, 16384) X(took_32768ms, 32768) X(took_65536ms, 65536) \
  X(took_longer, UINT64_MAX)
/* clang-format on */

#define ZPS_TALLY_SCHEME_MAX 31u

struct zps_tally {
#define MEMBER(name, ...) uint64_t name;
  ZPS_TALLY_COUNTERS(MEMBER)
  ZPS_TALLY_TIMES(MEMBER)
#undef MEMBER
  uint64_t step;                         /* of the last round that ended well */
  char scheme[ZPS_TALLY_SCHEME_MAX + 1]; /* the last round's scheme; empty: there was none yet */
};

/* Counts the time of one good round among took_*. */
void zps_tally_time(struct zps_tally *tally, uint64_t ns);
/* Adds `more` to the counters; step and scheme are taken over where a round ended well. */
void zps_tally_add(struct zps_tally *tally, const struct zps_tally *more);
/* How the counters have grown from `before` to `now`. */
struct zps_tally zps_tally_growth(const struct zps_tally *now, const struct zps_tally *before);
bool zps_tally_same(const struct zps_tally *a, const struct zps_tally *b);

#endif
