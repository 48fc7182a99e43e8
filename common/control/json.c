#include "common/control/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

/* A zps_json is jansson's json_t under another name. */
static json_t *in(zps_json *value) {
  return (json_t *)value;
}
static const json_t *in_const(const zps_json *value) {
  return (const json_t *)value;
}
static zps_json *out(json_t *value) {
  return (zps_json *)value;
}
static const zps_json *out_const(const json_t *value) {
  return (const zps_json *)value;
}

zps_json *zps_json_object(void) {
  return out(json_object());
}
zps_json *zps_json_array(void) {
  return out(json_array());
}
zps_json *zps_json_ref(const zps_json *value) {
  return out(json_incref((json_t *)(uintptr_t)value));
}
void zps_json_unref(zps_json *value) {
  json_decref(in(value));
}
zps_json *zps_json_copy(const zps_json *value) {
  return out(json_deep_copy(in_const(value)));
}

/* ---- Building ---- */

static zps_json *set(zps_json *object, const char *key, json_t *value) {
  if (object && value && json_object_set_new(in(object), key, value) == 0) return object;
  if (!object) json_decref(value);
  zps_json_unref(object);
  return NULL;
}

/* jansson refuses strings that are not UTF-8; texts of the system and names given by users may be such. */
static json_t *new_string(const char *value) {
  if (!value) return json_null();
  json_t *string = json_string(value);
  if (string) return string;
  char *copy = strdup(value);
  if (!copy) return NULL;
  zps_text_sanitize(copy, strlen(copy));
  string = json_string(copy);
  free(copy);
  return string;
}

zps_json *zps_json_str(const char *value) {
  return out(new_string(value));
}

zps_json *zps_json_u64(uint64_t value) {
  return out(json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value));
}

zps_json *zps_json_hex(uint64_t value) {
  char text[19];
  snprintf(text, sizeof text, "0x%016llx", (unsigned long long)value);
  return out(json_string(text));
}

zps_json *zps_json_bytes(const void *data, size_t len) {
  static const char digits[] = "0123456789abcdef";
  const unsigned char *bytes = data;
  char *text = malloc(2 * len + 1);
  if (!text) return NULL;
  for (size_t i = 0; i < len; i++) {
    text[2 * i] = digits[bytes[i] >> 4];
    text[2 * i + 1] = digits[bytes[i] & 15];
  }
  text[2 * len] = '\0';
  json_t *value = json_string(text);
  free(text);
  return out(value);
}

zps_json *zps_json_real(double value) {
  return out(isfinite(value) ? json_real(value) : json_null()); /* JSON has no NaN */
}

zps_json *zps_json_bool(bool value) {
  return out(json_boolean(value));
}

zps_json *zps_json_set(zps_json *object, const char *key, zps_json *value) {
  return set(object, key, in(value));
}

zps_json *zps_json_set_str(zps_json *object, const char *key, const char *value) {
  return zps_json_set(object, key, zps_json_str(value));
}

zps_json *zps_json_set_int(zps_json *object, const char *key, int64_t value) {
  return set(object, key, json_integer(value));
}

zps_json *zps_json_set_u64(zps_json *object, const char *key, uint64_t value) {
  return zps_json_set(object, key, zps_json_u64(value));
}

zps_json *zps_json_set_hex(zps_json *object, const char *key, uint64_t value) {
  return zps_json_set(object, key, zps_json_hex(value));
}

zps_json *zps_json_set_real(zps_json *object, const char *key, double value) {
  return zps_json_set(object, key, zps_json_real(value));
}

zps_json *zps_json_set_bool(zps_json *object, const char *key, bool value) {
  return zps_json_set(object, key, zps_json_bool(value));
}

zps_json *zps_json_set_all(zps_json *object, const zps_json *from) {
  if (!object || !json_is_object(in_const(from))) return object;
  if (json_object_update(in(object), (json_t *)(uintptr_t)from) == 0) return object;
  zps_json_unref(object);
  return NULL;
}

zps_json *zps_json_append(zps_json *array, zps_json *value) {
  if (array && value && json_array_append_new(in(array), in(value)) == 0) return array;
  if (!array) zps_json_unref(value);
  zps_json_unref(array);
  return NULL;
}

zps_json *zps_json_append_u64(zps_json *array, uint64_t value) {
  return zps_json_append(array, zps_json_u64(value));
}

zps_json *zps_json_append_str(zps_json *array, const char *value) {
  return zps_json_append(array, zps_json_str(value));
}

/* ---- Reading ---- */

const zps_json *zps_json_get(const zps_json *object, const char *key) {
  return out_const(json_object_get(in_const(object), key));
}

bool zps_json_is_array(const zps_json *value) {
  return json_is_array(in_const(value));
}
bool zps_json_is_object(const zps_json *value) {
  return json_is_object(in_const(value));
}
size_t zps_json_array_len(const zps_json *array) {
  return json_array_size(in_const(array));
}

const zps_json *zps_json_at(const zps_json *array, size_t index) {
  return out_const(json_array_get(in_const(array), index));
}

static const char *type_name(const json_t *value) {
  if (!value) return "missing";
  switch (json_typeof(value)) {
    case JSON_OBJECT:
      return "an object";
    case JSON_ARRAY:
      return "an array";
    case JSON_STRING:
      return "a string";
    case JSON_INTEGER:
      return "an integer";
    case JSON_REAL:
      return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
      return "a truth value";
    default:
      return "null";
  }
}

static zps_err_t wrong_type(const char *key, const zps_json *value, const char *want, struct zps_error *error) {
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is %s, want %s", key, type_name(in_const(value)), want);
}

zps_err_t zps_json_read_u64(const zps_json *value, const char *key, uint64_t min, uint64_t max, uint64_t *value_p,
                            struct zps_error *error) {
  if (!json_is_integer(in_const(value))) return wrong_type(key, value, "an integer", error);
  const json_int_t number = json_integer_value(in_const(value));
  if (number < 0 || (uint64_t)number < min || (uint64_t)number > max)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is %lld, want %llu to %llu", key, (long long)number,
                    (unsigned long long)min, (unsigned long long)max);
  *value_p = (uint64_t)number;
  return ZPS_OK;
}

zps_err_t zps_json_at_u64(const zps_json *array, size_t index, uint64_t max, uint64_t *value_p,
                          struct zps_error *error) {
  char key[32];
  snprintf(key, sizeof key, "[%zu]", index);
  return zps_json_read_u64(zps_json_at(array, index), key, 0, max, value_p, error);
}

zps_err_t zps_json_get_u64(const zps_json *object, const char *key, uint64_t min, uint64_t max, uint64_t *value_p,
                           struct zps_error *error) {
  return zps_json_read_u64(zps_json_get(object, key), key, min, max, value_p, error);
}

zps_err_t zps_json_read_str(const zps_json *value, const char *key, const char **value_p, struct zps_error *error) {
  if (!json_is_string(in_const(value))) return wrong_type(key, value, "a string", error);
  *value_p = json_string_value(in_const(value));
  return ZPS_OK;
}

zps_err_t zps_json_get_str(const zps_json *object, const char *key, const char **value_p, struct zps_error *error) {
  return zps_json_read_str(zps_json_get(object, key), key, value_p, error);
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

zps_err_t zps_json_read_hex(const zps_json *from, const char *key, uint64_t *value_p, struct zps_error *error) {
  const char *text = NULL;
  const zps_err_t code = zps_json_read_str(from, key, &text, error);
  if (code != ZPS_OK) return code;
  const size_t len = strlen(text);
  uint64_t value = 0;
  bool good = len > 2 && len <= 18 && text[0] == '0' && text[1] == 'x';
  for (size_t i = 2; good && i < len; i++) {
    good = hex_digit(text[i]) >= 0;
    value = value << 4 | (uint64_t)(hex_digit(text[i]) & 15);
  }
  if (!good)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' is \"%.40s\", want \"0x\" and 1 to 16 lower-case hex digits",
                    key, text);
  *value_p = value;
  return ZPS_OK;
}

zps_err_t zps_json_get_hex(const zps_json *object, const char *key, uint64_t *value_p, struct zps_error *error) {
  return zps_json_read_hex(zps_json_get(object, key), key, value_p, error);
}

zps_err_t zps_json_read_bytes(const zps_json *value, const char *key, void *data, size_t cap, size_t *len_p,
                              struct zps_error *error) {
  const char *text = NULL;
  const zps_err_t code = zps_json_read_str(value, key, &text, error);
  if (code != ZPS_OK) return code;
  const size_t len = strlen(text);
  if (len % 2 || len / 2 > cap)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %zu hex digits, want an even number up to %zu", key, len,
                    2 * cap);
  for (size_t i = 0; i < len; i++)
    if (hex_digit(text[i]) < 0)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has no lower-case hex digit at position %zu", key, i);
  for (size_t i = 0; i < len / 2; i++)
    ((unsigned char *)data)[i] = (unsigned char)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
  *len_p = len / 2;
  return ZPS_OK;
}

zps_err_t zps_json_read_real(const zps_json *value, const char *key, double *value_p, struct zps_error *error) {
  if (!json_is_number(in_const(value))) return wrong_type(key, value, "a number", error);
  *value_p = json_number_value(in_const(value));
  return ZPS_OK;
}

zps_err_t zps_json_check_array(const zps_json *value, const char *key, struct zps_error *error) {
  return zps_json_is_array(value) ? ZPS_OK : wrong_type(key, value, "an array", error);
}

zps_err_t zps_json_check_object(const zps_json *value, const char *key, struct zps_error *error) {
  return zps_json_is_object(value) ? ZPS_OK : wrong_type(key, value, "an object", error);
}

zps_err_t zps_json_get_array(const zps_json *object, const char *key, const zps_json **value_p,
                             struct zps_error *error) {
  *value_p = zps_json_get(object, key);
  return zps_json_check_array(*value_p, key, error);
}

uint64_t zps_json_opt_u64(const zps_json *object, const char *key, uint64_t def) {
  uint64_t value = def;
  return zps_json_get_u64(object, key, 0, UINT64_MAX, &value, NULL) == ZPS_OK ? value : def;
}

double zps_json_opt_real(const zps_json *object, const char *key, double def) {
  const json_t *value = in_const(zps_json_get(object, key));
  return json_is_number(value) ? json_number_value(value) : def;
}

bool zps_json_opt_bool(const zps_json *object, const char *key, bool def) {
  const json_t *value = in_const(zps_json_get(object, key));
  return json_is_boolean(value) ? json_is_true(value) : def;
}

const char *zps_json_opt_str(const zps_json *object, const char *key, const char *def) {
  const char *value = def;
  return zps_json_get_str(object, key, &value, NULL) == ZPS_OK ? value : def;
}

/* ---- Text, and its sizes ---- */

#define VALUE_BYTES 16u /* a small one, with its key */
#define REAL_BYTES 25u

static size_t string_bytes(const char *text) {
  size_t n = 2;
  for (; *text; text++) n += *text == '"' || *text == '\\' ? 2 : (unsigned char)*text < ' ' ? 6 : 1;
  return n;
}

static size_t most_bytes(const json_t *value) {
  size_t n = 2; /* a comma, and a bracket's share */
  if (json_is_string(value)) {
    n += string_bytes(json_string_value(value));
  } else if (json_is_array(value)) {
    for (size_t i = 0; i < json_array_size(value); i++) n += most_bytes(json_array_get(value, i));
  } else if (json_is_object(value)) {
    json_t *const walked = (json_t *)(uintptr_t)value; /* jansson's iterators change nothing */
    const char *key;
    json_t *member;
    json_object_foreach(walked, key, member) {
      n += string_bytes(key) + 1 + most_bytes(member);
    }
  } else if (json_is_integer(value)) {
    n += json_integer_value(value) < 0;
    for (json_int_t left = json_integer_value(value); left != 0; left /= 10) n++;
  } else {
    n += REAL_BYTES;
  }
  return n < VALUE_BYTES ? VALUE_BYTES : n;
}

size_t zps_json_most_bytes(const zps_json *value) {
  return value ? most_bytes(in_const(value)) : 0;
}

char *zps_json_dump(const zps_json *value) {
  return json_dumps(in_const(value), JSON_COMPACT | JSON_ENCODE_ANY);
}
char *zps_json_dump_pretty(const zps_json *value) {
  return json_dumps(in_const(value), JSON_INDENT(2) | JSON_ENCODE_ANY);
}

/* The position after the string that begins at `at`. */
static size_t end_of_string(const char *text, size_t len, size_t at) {
  for (at++; at < len && text[at] != '"'; at++)
    if (text[at] == '\\') at++;
  return at;
}

zps_err_t zps_json_check_bounds(const char *text, size_t len, struct zps_error *error) {
  size_t depth = 0, n_values = 1;
  for (size_t at = 0; at < len; at++) {
    switch (text[at]) {
      case '"':
        at = end_of_string(text, len, at);
        break;
      case '[':
      case '{':
        n_values++;
        if (++depth <= ZPS_JSON_DEPTH_MAX) break;
        return zps_fail(error, ZPS_ERR_PROTOCOL,
                        "JSON at byte %zu of %zu: more than %u arrays and objects inside each other", at, len,
                        ZPS_JSON_DEPTH_MAX);
      case ']':
      case '}':
        if (depth > 0) depth--;
        break;
      case ',':
        n_values++;
        break;
      default:
        break;
    }
    if (n_values > ZPS_JSON_VALUES_MAX)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "JSON at byte %zu of %zu: more than %u values", at, len,
                      ZPS_JSON_VALUES_MAX);
  }
  return ZPS_OK;
}

zps_err_t zps_json_parse(const char *text, size_t len, zps_json **value_p, struct zps_error *error) {
  json_error_t why;
  const zps_err_t code = zps_json_check_bounds(text, len, error);
  if (code != ZPS_OK) return code;
  json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
  if (!value) {
    const bool no_memory = json_error_code(&why) == json_error_out_of_memory;
    return zps_fail(error, no_memory ? ZPS_ERR_NOMEM : ZPS_ERR_PROTOCOL, "not JSON at byte %d of %zu: %s", why.position,
                    len, why.text);
  }
  *value_p = out(value);
  return ZPS_OK;
}

void zps_json_each(const zps_json *object, void (*visit)(void *ctx, const char *key, const zps_json *value),
                   void *ctx) {
  json_t *walked = (json_t *)(uintptr_t)object; /* jansson's iterators take no const object, and change nothing */
  const char *key;
  json_t *value;
  json_object_foreach(walked, key, value) {
    visit(ctx, key, out_const(value));
  }
}

const char *zps_json_text(const zps_json *value, char *buf, size_t size) {
  const json_t *json = in_const(value);
  buf[0] = '\0';
  if (json_is_string(json)) {
    snprintf(buf, size, "%s", json_string_value(json));
  } else if (json_is_real(json)) {
    snprintf(buf, size, "%.6g", json_real_value(json));
  } else if (json) {
    char *text = zps_json_dump(value);
    if (text) snprintf(buf, size, "%s", text);
    free(text);
  }
  return buf;
}
