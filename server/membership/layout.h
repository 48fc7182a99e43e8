/*
 * How a tensor is laid out over the servers of its job: number of partitions and their owners.
 *
 * Partitions per server, the same number on each, where there is one for each:
 *
 * - four by default, so that a lost server's share can spread over the others;
 * - fewer for small tensors, as long as a partition travels inside a frame: each costs every rank a slice;
 * - fewer for few rows, so that a partition has ZPS_LAYOUT_ROWS_MIN or more; but one for each server where rows are wide
 *   and each then has ZPS_LAYOUT_VALUES_MIN values;
 * - up to sixteen for large tensors, as long as a partition has ZPS_LAYOUT_VALUES_MIN values: a partition's sum is read
 *   when all of it is there, and links are idle meanwhile;
 * - even more for huge tensors, since a partition addresses its rows with 32 bits;
 * - never more partitions than rows, even when more are asked for.
 *
 * Owners go round-robin, each tensor starting at another server, so that tensors of one partition spread as well.
 *
 * A small tensor gets few servers: each takes in ZPS_LAYOUT_SERVER_BYTES for it when all ranks push all of it, in
 * partitions that travel inside frames. For a few KiB, each further server costs every rank two messages, and they take
 * longer than the bytes. Not where a number of partitions is asked for.
 *
 * Servers are places here, also free ones. The maximum counts the places that the job began with. So room for others
 * costs nothing while they are not there: up to four times as many places have their four partitions each.
 *
 * Other systems' schemes for servers (sparse-ps, dense-ps, omnireduce) give each server one run of consecutive rows, as
 * even as whole blocks allow. There is one block for each partition, and each server gets consecutive ones. Large
 * tensors get up to four times as many blocks, of ZPS_LAYOUT_VALUES_MIN values or more, so that links are not idle.
 * Each place has half as many at least.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_LAYOUT_H
#define ZPS_SERVER_MEMBERSHIP_LAYOUT_H

#include "common/codec/dtype.h"
#include "common/codec/partition.h"

#define ZPS_LAYOUT_PARTS_PER_SERVER 4u
#define ZPS_LAYOUT_PARTS_PER_SERVER_MAX 16u
#define ZPS_LAYOUT_PARTS_MAX 1024u /* beyond four per server: every worker keeps track of all */
#define ZPS_LAYOUT_ROWS_MIN 256u
#define ZPS_LAYOUT_VALUES_MIN 16384u
#define ZPS_LAYOUT_SERVER_BYTES (32u << 10)
#define ZPS_LAYOUT_RANGES_PER_SERVER 32u /* at most; at least half as many, where there are rows */
#define ZPS_LAYOUT_RANGES_PER_SERVER_MAX 128u

struct zps_layout {
  uint32_t n_parts;
  uint32_t n_owners; /* servers that own some, if there are partitions enough */
};

/* `asked` 0: the default number of partitions. n_servers: the job's places, of which n_first had servers at first.
 * rows, width, world and both of these are at least 1. */
struct zps_layout zps_layout_of(uint64_t rows, uint32_t width, enum zps_dtype dtype, uint32_t world, uint32_t n_first,
                                uint32_t n_servers, uint32_t asked);
/* `n_owners` servers, from one on that depends on the tensor's number. */
void zps_layout_owners(const struct zps_layout *layout, uint32_t tensor, uint32_t n_servers, uint32_t *owners);

/* Is it one of the schemes with even ranges? */
bool zps_layout_is_even(const char *scheme);
void zps_layout_even(uint64_t rows, uint32_t width, uint32_t n_first, uint32_t n_servers, uint32_t *n_parts_p,
                     uint32_t *block_bits_p);
/* Of a partition made of these numbers. The first range goes to another server for each tensor. */
void zps_layout_even_owners(const struct zps_partition *part, uint32_t tensor, uint32_t n_servers, uint32_t *owners);

#endif
