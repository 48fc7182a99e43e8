#include "common/control/message.h"

#include <stdio.h>
#include <string.h>

#include "common/base/text.h"

static void read_error(const zps_json *from, struct zps_error *error) {
  const char *name = zps_json_opt_str(zps_json_get(from, "data"), "name", NULL);
  const char *text = zps_json_opt_str(from, "message", "no message");
  error->code = name ? zps_err_from_name(name) : ZPS_ERR_PROTOCOL; /* without a name it is one of JSON-RPC's own */
  if (error->code == ZPS_OK) error->code = ZPS_ERR_INTERNAL;
  snprintf(error->text, sizeof error->text, "%s", text);
  zps_text_sanitize(error->text, strlen(error->text)); /* it will be logged and shown */
}

zps_err_t zps_message_read(const zps_json *root, struct zps_message *message, struct zps_error *error) {
  *message = (struct zps_message){0};
  if (!zps_json_is_object(root)) return zps_fail(error, ZPS_ERR_PROTOCOL, "message is no JSON object");
  const char *version = zps_json_opt_str(root, "jsonrpc", NULL);
  if (!version || strcmp(version, "2.0") != 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "message without \"jsonrpc\": \"2.0\"");
  message->id = zps_json_get(root, "id");
  if (zps_json_is_object(message->id) || zps_json_is_array(message->id))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'id' is an object or array, want a number or string");

  if (zps_json_get(root, "method")) {
    message->kind = message->id ? ZPS_MESSAGE_CALL : ZPS_MESSAGE_NOTIFICATION;
    message->params = zps_json_get(root, "params");
    if (message->params && !zps_json_is_object(message->params))
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'params' is no object: parameters are named");
    const zps_err_t code = zps_json_get_str(root, "method", &message->method, error);
    if (code == ZPS_OK && zps_text_printable(message->method, strlen(message->method)) != strlen(message->method))
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'method' is not printable");
    return code;
  }
  message->has_number = zps_json_get_u64(root, "id", 0, UINT64_MAX, &message->number, NULL) == ZPS_OK;
  message->result = zps_json_get(root, "result");
  const zps_json *failure = zps_json_get(root, "error");
  if (!message->result == !failure || (failure && !zps_json_is_object(failure)))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "message has neither a method, nor one of result and error");
  message->kind = failure ? ZPS_MESSAGE_ERROR : ZPS_MESSAGE_RESULT;
  if (failure) {
    read_error(failure, &message->error);
    message->leader = zps_json_opt_str(zps_json_get(failure, "data"), "leader", NULL);
  }
  return ZPS_OK;
}

static zps_json *new_message(void) {
  return zps_json_set_str(zps_json_object(), "jsonrpc", "2.0");
}

zps_json *zps_message_call(uint64_t number, const char *method, zps_json *params) {
  return zps_json_set_u64(zps_message_notification(method, params), "id", number);
}

zps_json *zps_message_notification(const char *method, zps_json *params) {
  return zps_json_set(zps_json_set_str(new_message(), "method", method), "params", params);
}

static zps_json *set_id(zps_json *message, const zps_json *id) {
  if (!id) return zps_json_set_str(message, "id", NULL);
  return zps_json_set(message, "id", zps_json_ref(id));
}

zps_json *zps_message_result(const zps_json *id, zps_json *result) {
  return zps_json_set(set_id(new_message(), id), "result", result);
}

static zps_json *error_of(const zps_json *id, int number, const char *text, zps_json *data) {
  zps_json *error = zps_json_set_str(zps_json_set_int(zps_json_object(), "code", number), "message", text);
  return zps_json_set(set_id(new_message(), id), "error", zps_json_set(error, "data", data));
}

static zps_json *data_of(zps_err_t code) {
  return zps_json_set_str(zps_json_object(), "name", zps_err_name(code));
}

zps_json *zps_message_error(const zps_json *id, int number, zps_err_t code, const char *text) {
  return error_of(id, number, text, data_of(code));
}

/* ERR_CONNECT, as where nobody listens: clients that do not know the member try again, too. */
zps_json *zps_message_moved(const zps_json *id, const char *text, const char *leader) {
  return error_of(id, ZPS_ERR_CONNECT, text, zps_json_set_str(data_of(ZPS_ERR_CONNECT), "leader", leader));
}
