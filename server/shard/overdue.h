/*
 * Ranks that owe a word: a rank that works says by its deadline that it has read the sums that it was told, or that it
 * gives them up. One that does not is stuck, or its link is, and what it may be reading would be kept for ever. It is
 * given up, with its link, so that no read of its can end well with the bytes of a later round.
 */
#ifndef ZPS_SERVER_SHARD_OVERDUE_H
#define ZPS_SERVER_SHARD_OVERDUE_H

#include <stdint.h>

struct zps_shard_round;

/* Of a round whose sums are published: gives up the ranks that have owed a word for too long (zps_member_fail()). When
 * to look again; ZPS_NEVER: nobody owes one. */
uint64_t zps_overdue_look(struct zps_shard_round *round, uint64_t now_ns);

#endif
