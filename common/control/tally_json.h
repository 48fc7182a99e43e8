/* Tallies (common/base/tally.h) as members of JSON objects: in `job.stats` and in the tables of `stats`. */
#ifndef ZPS_CONTROL_TALLY_JSON_H
#define ZPS_CONTROL_TALLY_JSON_H

#include "common/base/tally.h"
#include "common/control/json.h"

/* Sets a member of `object` for each counter, the step as a number, and the scheme. */
zps_json *zps_tally_write(zps_json *object, const struct zps_tally *tally);
/* What zps_tally_write() has written. Counters that are left out are zero; one that is no count is ZPS_ERR_PROTOCOL. */
zps_err_t zps_tally_read(const zps_json *object, struct zps_tally *tally, struct zps_error *error) ZPS_MUSTCHECK;

#endif
