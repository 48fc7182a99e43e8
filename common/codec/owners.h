/* Who sums which partition after servers were lost: a pure rule, which coordinator, servers and ranks apply alike. */
#ifndef ZPS_CODEC_OWNERS_H
#define ZPS_CODEC_OWNERS_H

#include <stdbool.h>
#include <stdint.h>

#define ZPS_OWNERS_SERVERS_MAX 1024u /* of a job */

/* Gives the partitions of lost servers to living ones, in ascending order of partitions. A living owner keeps its own.
 * The others go to the living server with the fewest partitions so far. Of several such servers the lowest place wins.
 * An owner at a place from n_began on is an exception: its ties go to the first such place from (place mod n_began) on,
 * then from 0 on. So tensors of one partition spread over all servers.
 *
 * owners: of each partition when the tensor was opened, n_parts of them. The result does not depend on the order of
 * losses. lost: of each place, n_servers of them: its server was lost, or it is free. At least one lives.
 * is_whole: all partitions have one owner, and stay together. reassigned: n_parts places; may be `owners`. */
void zps_owners_reassign(const uint32_t *owners, uint32_t n_parts, bool is_whole, uint32_t n_began, uint32_t n_servers,
                         const bool *lost, uint32_t *reassigned);

#endif
