/* The golden lines of control messages. */
#ifndef ZPS_TESTS_PROTO_CONTROL_RIG_H
#define ZPS_TESTS_PROTO_CONTROL_RIG_H

#include "common/control/json.h"

#define CONTROL_LINE_MAX 4096u

/* Calls `each` with every line of proto/golden/control/NAME.jsonl: its text, the message's name and its body. Returns
 * how many there are. */
unsigned control_golden(const char *name, void (*each)(const char *line, const char *message, const zps_json *body));

#endif
