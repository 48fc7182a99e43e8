/* Rates, densities and means out of two samples of the counters that `stats` returns (or of one, since a tensor was
 * opened). */
#ifndef ZPS_SERVER_CTL_DERIVE_H
#define ZPS_SERVER_CTL_DERIVE_H

#include "common/control/json.h"

/* Adds to the rows of `now` (the result of `stats`) what follows from them; `before` (what this call returned for an
 * earlier result, `seconds` older) may be NULL. A new value, or NULL when memory is short. Ranks report every few
 * seconds: a tensor or rank without a new report keeps its last rates.
 *
 * Of a tensor: how even it is over its servers (Zen, definition 8), where it has any: imbalance_push: what the server
 * that is sent most gets of a rank's rows in a single step, of the heaviest rank, over its share by partitions, mean of
 * the rounds between the samples, of one round as of many; imbalance_pull: rows of their sums at the server that has
 * most, over its share.
 *
 * Of a tensor at a server: rounds_per_s; bytes_in_per_s, bytes_out_per_s; density: rows a rank pushed of those it could
 * have; union_density: rows in the sum; imbalance_pull: the sum's heaviest partition over the
 * mean one, over all servers (imbalance_push, of a rank's, comes from the server, of all rounds); imbalance_step: what
 * a server is sent of a rank's rows in a step over its even share, of the heaviest rank, mean of rounds; collect_ms,
 * reduce_ms, publish_ms: mean over rounds. Of a rank: lag_ms: mean time by which its push came after the first one. */
zps_json *zps_ctl_derive(const zps_json *now, const zps_json *before, double seconds);

#endif
