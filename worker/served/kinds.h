/*
 * Schemes over servers. All run by the machine of machine.c; they differ in which server owns a row and in which rows
 * are sent. The schemes besides balanced are those of other systems: servers own even ranges of rows, so that each
 * carries as much as its range happens to hold.
 *
 *     balanced    hashed rows, those that are not zero
 *     sparse-ps   ranges, those that are not zero
 *     dense-ps    ranges, all rows
 *     omnireduce  ranges of blocks of 256 values, those blocks that are not all zero
 *
 * Sums are in rank order under all of them. Ranges are even in rows and as uneven in bytes as gradients are.
 * OmniReduce's aggregators are our servers, which wait for a whole range rather than for the next block that any worker
 * has; a block is always 256 values, of any rows.
 */
#ifndef ZPS_WORKER_SERVED_KINDS_H
#define ZPS_WORKER_SERVED_KINDS_H

#include <stdbool.h>

#include "common/codec/codec_choice.h"

struct zps_served_kind {
  const char *name;
  bool ranges;   /* the coordinator lays rows out in even ranges */
  bool all_rows; /* zeros are sent, too */
  bool blocks;   /* a row is a block of values */
};

/* NULL: there is no scheme over servers of that name. */
const struct zps_served_kind *zps_served_kind_find(const char *name);
/* The codec policy that a scheme gets for the one that was asked for: no index where all rows are sent; for `paper`,
 * where servers own ranges, COO both ways. */
enum zps_codec_policy zps_served_kind_codec(const struct zps_served_kind *served, enum zps_codec_policy asked);

#endif
