/* How deep a JSON text is, and how many values it has, before anything is built of it. Pure. */
#ifndef ZPS_CONTROL_JSON_BOUNDS_H
#define ZPS_CONTROL_JSON_BOUNDS_H

#include <stddef.h>

#include "common/base/err.h"

#define ZPS_JSON_DEPTH_MAX 16u
#define ZPS_JSON_VALUES_MAX (1u << 18) /* some 250 bytes of memory each, at the worst */

/* Counts brackets and commas outside of strings: a text that is no JSON may pass, and fails when it is parsed. */
zps_err_t zps_json_check_bounds(const char *text, size_t len, struct zps_error *error) ZPS_MUSTCHECK;

#endif
