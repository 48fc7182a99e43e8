/* Each message of the control plane read and written again, by its name: the golden lines, the refusals and the fuzzer
 * all use it. A line is {"message": NAME, "body": OBJECT}. */
#ifndef ZPS_TESTS_CONTROL_AGAIN_H
#define ZPS_TESTS_CONTROL_AGAIN_H

#include "proto/fields.h"

/* Reads `body` as message `name`. *written_p is the message written again, for the caller to release; NULL without
 * memory. ZPS_ERR_UNKNOWN: there is no such message. */
zps_err_t control_again(const char *name, const zps_json *body, zps_json **written_p,
                        struct zps_error *error) ZPS_MUSTCHECK;

/* All messages in the order of PROTOCOL.md. */
struct control_message {
  const char *name;
  const struct zps_fields *fields;
  /* Reads and writes a message with more than its table. NULL: the table does. */
  zps_err_t (*again)(const zps_json *body, zps_json **written_p, struct zps_error *error);
};
extern const struct control_message control_messages[];
extern const unsigned n_control_messages;
/* NULL: there is none with this name. */
const struct control_message *control_message(const char *name);

#endif
