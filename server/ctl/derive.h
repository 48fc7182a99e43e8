/* Rates, densities and means out of two samples of the counters that `stats` returns (or of one, since a tensor was
 * opened). */
#ifndef ZPS_SERVER_CTL_DERIVE_H
#define ZPS_SERVER_CTL_DERIVE_H

#include "common/control/json.h"

/* Adds rates, densities and means to the rows of `now`, a result of `stats`. `before` is the return value for an
 * earlier result, `seconds` older, or NULL. Returns a new value; NULL: no memory. Ranks report every few seconds. A
 * tensor or rank without a new report keeps its last rates for 30 s.
 *
 * `tensors` get the evenness over servers (Zen, definition 8), if the tensor has any:
 *   imbalance_push   A step sends a server this share of a rank's rows, over an even share. The greatest, mean of
 * rounds. imbalance_pull   Rows of the sums at the fullest server, over an even share. `shards` get, for one tensor at
 * one server: rounds_per_s, bytes_in_per_s, bytes_out_per_s density, union_density   Pushed rows, and rows of the sum,
 * over the possible ones. imbalance_pull           The heaviest partition of the sum over the mean partition, over all
 * servers. imbalance_step           As imbalance_push of tensors, for this server alone. collect_ms, reduce_ms,
 * publish_ms   Means over rounds. `lags` get lag_ms, the mean time from the first rank's push to this rank's.
 * `ranks` get late_percent and late, by the rule of late.h: "late", "no", or "-" where no server knows; and
 * link_bytes_per_s. */
zps_json *zps_ctl_derive(const zps_json *now, const zps_json *before, double seconds);

/* Bytes a second that a rank's link brings: those that it received over the time that it took to read sums. Of a row of
 * `ranks`, since an earlier one or, with NULL or without a new report, since the job began. 0: not known. */
double zps_ctl_link_rate(const zps_json *row, const zps_json *before);

#endif
