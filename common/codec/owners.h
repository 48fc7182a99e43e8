/* Who sums which partition after servers were lost: a pure rule, which coordinator, servers and ranks apply alike. */
#ifndef ZPS_CODEC_OWNERS_H
#define ZPS_CODEC_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

#define ZPS_OWNERS_SERVERS_MAX 1024u /* of a job */

/* Partitions in ascending order: one whose owner lives keeps it, one whose owner is lost goes to the living server with
 * the fewest partitions so far. Ties go to the lowest position; where the place is one of those that the job began
 * without, which are the ones from `n_began` on, to the first position from (place mod n_began) on, and then from 0 on:
 * so tensors of one partition spread over the servers that there are, too. `owners` are those that the tensor was
 * opened with, and `lost` tells of all places, n_servers of them, whose server was lost so far, or that are free; one
 * at least lives: so the result does not depend on the order in which they went. With `is_whole` the partitions have
 * one owner, and stay together as one partition would. `reassigned` has n_parts places, and may be `owners`. */
void zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began, uint32_t n_servers,
                         const bool *lost, uint32_t *reassigned);

#endif
