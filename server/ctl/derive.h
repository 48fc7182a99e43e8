/* Rates, densities and means out of two samples of the counters that `stats` returns (or of one, since a tensor was
 * opened). */
#ifndef ZPS_SERVER_CTL_DERIVE_H
#define ZPS_SERVER_CTL_DERIVE_H

#include "common/control/json.h"

/* Adds rates, densities and means to the rows of `now`, a result of `stats`. `before` is the return value for an
 * earlier result, `seconds` older, or NULL. Returns a new value; NULL: no memory. Ranks report every few seconds. A
 * tensor or rank without a new report keeps its last rates for 30 s.
 *
 * Tensors get imbalance_push and imbalance_pull, where servers have them: their evenness over servers (Zen, definition
 * 8). The first is the greatest share of a rank's rows at one server over an even share, mean of rounds. The second is
 * the share of the sum's rows at the fullest server over an even share.
 *
 * Shards get rounds_per_s, bytes_in_per_s and bytes_out_per_s; density and union_density, which are pushed rows and
 * rows of the sum over the possible ones; imbalance_pull, the heaviest partition of the sum over the mean one of all
 * servers; imbalance_step, which is imbalance_push of this server alone; and collect_ms, reduce_ms and publish_ms,
 * means over rounds.
 *
 * Ranks get late_percent and late, by the rule of late.h: "late", "no", or "-" where no server knows. They also get
 * link_bytes_per_s. Lags get lag_ms, the mean time from the first rank's push to this rank's. */
zps_json *zps_ctl_derive(const zps_json *now, const zps_json *before, double seconds);

/* Bytes a second that a rank's link brings: those that it received over the time that it took to read sums. Of a row of
 * `ranks`, since an earlier one or, with NULL or without a new report, since the job began. 0: not known. */
double zps_ctl_link_rate(const zps_json *row, const zps_json *before);

#endif
