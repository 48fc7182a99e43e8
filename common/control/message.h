/* JSON-RPC 2.0 messages: built and taken apart, no socket in sight. */
#ifndef ZPS_CONTROL_MESSAGE_H
#define ZPS_CONTROL_MESSAGE_H

#include "common/control/json.h"

enum zps_message_kind { ZPS_MESSAGE_CALL, ZPS_MESSAGE_NOTIFICATION, ZPS_MESSAGE_RESULT, ZPS_MESSAGE_ERROR };

/* Everything is borrowed from the parsed object. */
struct zps_message {
  enum zps_message_kind kind;
  const char *method;     /* CALL, NOTIFICATION */
  const zps_json *params; /* CALL, NOTIFICATION: an object, or NULL */
  const zps_json *id;     /* CALL: the answer must repeat it */
  bool has_number;        /* RESULT, ERROR: false when the peer could not tell which call it is about */
  uint64_t number;        /* RESULT, ERROR: which of our calls */
  const zps_json *result; /* RESULT */
  struct zps_error error; /* ERROR: the peer's */
  const char *leader;     /* ERROR: whom to ask instead; "": the peer does not know. NULL: this is no such error */
};

/* JSON-RPC's own codes. */
#define ZPS_MESSAGE_BAD_JSON (-32700)
#define ZPS_MESSAGE_BAD_REQUEST (-32600)
#define ZPS_MESSAGE_NO_METHOD (-32601)
#define ZPS_MESSAGE_BAD_PARAMS (-32602)

/* The text of ZPS_ERR_PROTOCOL names the fault. */
zps_err_t zps_message_read(const zps_json *root, struct zps_message *message, struct zps_error *error) ZPS_MUSTCHECK;

/* Consume `params` and `result`, borrow `id`; NULL when memory is short or a child was NULL. */
zps_json *zps_message_call(uint64_t number, const char *method, zps_json *params);
zps_json *zps_message_notification(const char *method, zps_json *params);
zps_json *zps_message_result(const zps_json *id, zps_json *result);
/* `number` is a JSON-RPC code or an error's; `id` NULL: not known. */
zps_json *zps_message_error(const zps_json *id, int number, zps_err_t code, const char *text);
/* The answer to a hello, of one who does not lead. */
zps_json *zps_message_moved(const zps_json *id, const char *text, const char *leader);

#endif
