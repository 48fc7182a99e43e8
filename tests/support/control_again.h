/* Each message of the control plane read and written again, by its name: the golden lines, the refusals and the fuzzer
 * all use it. A line is {"message": NAME, "body": OBJECT}. */
#ifndef ZPS_TESTS_CONTROL_AGAIN_H
#define ZPS_TESTS_CONTROL_AGAIN_H

#include "common/control/json.h"

/* Reads `body` as message `name`. *written_p is the message written again, for the caller to release; NULL without
 * memory. ZPS_ERR_UNKNOWN: there is no such message. */
zps_err_t control_again(const char *name, const zps_json *body, zps_json **written_p,
                        struct zps_error *error) ZPS_MUSTCHECK;

#endif
