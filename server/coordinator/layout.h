/*
 * How a tensor is laid out over the servers of its job: number of partitions and their owners.
 *
 * By default four partitions per server, so that a lost server's share can spread over the others; fewer for small
 * tensors, so that a partition has ZPS_LAYOUT_ROWS_MIN rows or more; more for huge ones, since a partition addresses
 * its rows with 32 bits. Never more partitions than rows, also when more are asked for. Owners go round-robin, each
 * tensor starting at another server, so that tensors of one partition spread as well.
 */
#ifndef ZPS_SERVER_COORDINATOR_LAYOUT_H
#define ZPS_SERVER_COORDINATOR_LAYOUT_H

#include <stdint.h>

#define ZPS_LAYOUT_PARTS_PER_SERVER 4u
#define ZPS_LAYOUT_ROWS_MIN 256u

/* `asked` 0: the default. rows and n_servers are at least 1. */
uint32_t zps_layout_parts(uint64_t rows, uint32_t n_servers, uint32_t asked);
void zps_layout_owners(uint32_t tensor, uint32_t n_servers, uint32_t n_parts, uint32_t *owners);

#endif
