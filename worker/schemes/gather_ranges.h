/*
 * The second half of the schemes that split: position i has the sum of even range i, and all of them are to have all.
 * [SparCML sections 5.3.2 and 5.3.3]
 *
 * Straight, each sends its range to every other: n - 1 messages each way, which may all be under way at once.
 *
 * By recursive doubling, two positions exchange all that they have in each of log2 n stages. Where n is no power of two
 * (p: the one below it), positions 2j and 2j + 1, for the first n - p numbers j, take part as one: the odd one first
 * gives its range to the even one, and gets the result from there at the end, in two halves. The streams are joined on
 * their way, which takes a copy; the values are the same to the bit.
 */
#ifndef ZPS_WORKER_SCHEMES_GATHER_RANGES_H
#define ZPS_WORKER_SCHEMES_GATHER_RANGES_H

#include "worker/schemes/common.h"

/* Whether ranges go round by doubling: the same on all ranks, since it hangs on the plan alone. Automatically where
 * that takes fewer messages, and the result cannot have more bytes than ZPS_PLAN_DOUBLING_BYTES: all rows, or k of
 * each rank with their numbers. Levels of a dense half (`bits`) go straight: joined, they would be rounded again. */
bool zps_peer_gathers_by_doubling(const struct zps_peer_plan *plan);

/* `mine`: our range, in `form`: ZPS_FORM_ALL where it has all of its rows. Appends the RESULTs. */
void zps_peer_gather_ranges(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t mine,
                            enum zps_form form);
/* Gathers the even ranges of `all`, straight. Uses `tag`. */
void zps_peer_gather_direct(const struct zps_peer_plan *plan, struct zps_program *program, uint32_t mine,
                            struct zps_range all, uint32_t tag);

#endif
