#include "proto/fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/text.h"

static uint64_t number_at(const struct zps_field *field, const char *at) {
  uint32_t narrow;
  uint64_t wide;
  memcpy(&narrow, at, sizeof narrow);
  if (field->size == sizeof narrow) return narrow;
  memcpy(&wide, at, sizeof wide);
  return wide;
}

static void set_number(const struct zps_field *field, char *at, uint64_t wide) {
  const uint32_t narrow = (uint32_t)wide;
  if (field->size == sizeof wide)
    memcpy(at, &wide, sizeof wide);
  else
    memcpy(at, &narrow, sizeof narrow);
}

static void *pointer_at(const char *at) {
  void *pointer;
  memcpy(&pointer, at, sizeof pointer);
  return pointer;
}

static void set_pointer(char *at, const void *pointer) {
  memcpy(at, &pointer, sizeof pointer);
}

static uint32_t count_of(const struct zps_field *field, const char *from) {
  uint32_t n;
  memcpy(&n, from + field->n_at, sizeof n);
  return n;
}

/* The struct, or the first element of a list. */
static char *place_of(const struct zps_field *field, char *from) {
  char *const at = from + field->at;
  return field->many == ZPS_FIELD_LIST || field->by_pointer ? pointer_at(at) : at;
}

static char *element_at(const struct zps_field *field, char *at, uint32_t i) {
  char *const element = at + i * field->size;
  return field->many && field->by_pointer ? pointer_at(element) : element;
}

/* ------------------------------------------------------------ writing */

static const char *text_at(const struct zps_field *field, const char *at) {
  const char *const text = field->type == ZPS_FIELD_TEXT ? at : pointer_at(at);
  return text && text[0] ? text : field->text;
}

static bool is_absent(const struct zps_field *field, const char *at) {
  switch (field->type) {
    case ZPS_FIELD_PART:
      return is_absent(&field->part->fields[0], at + field->part->fields[0].at);
    case ZPS_FIELD_NUMBER:
    case ZPS_FIELD_HEX:
    case ZPS_FIELD_WORD:
      return number_at(field, at) == field->absent || number_at(field, at) < field->min;
    case ZPS_FIELD_TEXT:
    case ZPS_FIELD_NAME:
    case ZPS_FIELD_STRING:
      return text_at(field, at) == field->text;
    default:
      return at[0] == 0 && memcmp(at, at + 1, field->size - 1) == 0; /* All zeros. */
  }
}

static bool is_left_out(const struct zps_field *field, const char *from, const char *at) {
  if (!field->optional || field->always) return false;
  if (!field->many) return is_absent(field, at);
  uint32_t n = count_of(field, from);
  while (n > 0 && field->per && is_absent(field, at + (n - 1) * field->size)) n--;
  return n == 0;
}

static zps_json *value_of(const struct zps_field *field, const char *from, const char *at) {
  size_t len = field->size;
  switch (field->type) {
    case ZPS_FIELD_NUMBER:
      return zps_json_u64(number_at(field, at));
    case ZPS_FIELD_HEX:
      return zps_json_hex(number_at(field, at));
    case ZPS_FIELD_FLAG:
      return zps_json_bool(*(const bool *)at);
    case ZPS_FIELD_REAL:
      return zps_json_real(*(const double *)(const void *)at);
    case ZPS_FIELD_WORD:
      return zps_json_str(field->word((unsigned)number_at(field, at)));
    case ZPS_FIELD_CODE:
      return zps_json_str(zps_err_name(*(const zps_err_t *)(const void *)at));
    case ZPS_FIELD_TEXT:
    case ZPS_FIELD_NAME:
    case ZPS_FIELD_STRING:
      return zps_json_str(text_at(field, at) ? text_at(field, at) : "");
    case ZPS_FIELD_BYTES:
      memcpy(&len, from + field->n_at, sizeof len);
      return zps_json_bytes(at, len);
    case ZPS_FIELD_SECRET:
      return zps_json_bytes(at, len);
    case ZPS_FIELD_OBJECT:
      return zps_fields_write(field->part, at);
    default:
      return field->put(at);
  }
}

static zps_json *list_of(const struct zps_field *field, const char *from, const char *at) {
  zps_json *list = zps_json_array();
  for (uint32_t i = 0; i < count_of(field, from); i++)
    list = zps_json_append(list, value_of(field, from, element_at(field, (char *)(uintptr_t)at, i)));
  return list;
}

zps_json *zps_fields_add(zps_json *object, const struct zps_fields *message, const void *from) {
  for (size_t i = 0; i < message->n_fields; i++) {
    const struct zps_field *const field = &message->fields[i];
    const char *const at = place_of(field, (char *)(uintptr_t)from);
    if (is_left_out(field, from, at)) continue;
    if (field->type == ZPS_FIELD_PART)
      object = zps_fields_add(object, field->part, at);
    else
      object = zps_json_set(object, field->key, field->many ? list_of(field, from, at) : value_of(field, from, at));
  }
  return object;
}

zps_json *zps_fields_write(const struct zps_fields *message, const void *from) {
  return zps_fields_add(zps_json_object(), message, from);
}

/* ------------------------------------------------------------ reading */

/* The way to the member that is read, such as "members[3].host", and the error. */
struct reader {
  char path[160];
  struct zps_error why;
};

/* Returns the length of the path before, to go back to. */
static size_t go_down(struct reader *reader, const char *key) {
  const size_t len = strlen(reader->path);
  snprintf(reader->path + len, sizeof reader->path - len, "%s%s", len ? "." : "", key);
  return len;
}

static size_t go_to(struct reader *reader, uint32_t i) {
  const size_t len = strlen(reader->path);
  snprintf(reader->path + len, sizeof reader->path - len, "[%u]", i);
  return len;
}

static zps_err_t read_number(const struct zps_field *field, const zps_json *value, char *at, struct reader *reader) {
  const uint64_t most = field->size == sizeof most ? UINT64_MAX : UINT32_MAX;
  uint64_t number = 0;
  const zps_err_t err =
      field->type == ZPS_FIELD_HEX
          ? zps_json_read_hex(value, reader->path, &number, &reader->why)
          : zps_json_read_u64(value, reader->path, field->min, field->max ? field->max : most, &number, &reader->why);
  if (!err) set_number(field, at, number);
  return err;
}

/* "auto, paper or coo (left out: auto)" */
static void list_words(const struct zps_field *field, char *text, size_t size) {
  const char *last = NULL;
  text[0] = '\0';
  for (uint64_t i = field->min; i <= field->max; i++) {
    const char *const word = field->word((unsigned)i);
    if (strcmp(word, "?") == 0) continue;
    if (last) zps_text_add(text, size, "%s%s", text[0] ? ", " : "", last);
    last = word;
  }
  zps_text_add(text, size, "%s%s", text[0] ? " or " : "", last);
  if (field->optional && !field->many)
    zps_text_add(text, size, " (left out: %s)", field->word((unsigned)field->absent));
}

static zps_err_t read_word(const struct zps_field *field, const zps_json *value, char *at, struct reader *reader) {
  const char *word = NULL;
  char words[400];
  const zps_err_t err = zps_json_read_str(value, reader->path, &word, NULL);
  for (uint64_t i = field->min; !err && i <= field->max; i++) {
    if (strcmp(word, "?") == 0 || strcmp(word, field->word((unsigned)i)) != 0) continue;
    set_number(field, at, i);
    return ZPS_OK;
  }
  list_words(field, words, sizeof words);
  if (!value) return zps_fail(&reader->why, err, "member '%s' is missing, want %s", reader->path, words);
  if (err) return zps_fail(&reader->why, err, "member '%s' is no string, want %s", reader->path, words);
  return zps_fail(&reader->why, ZPS_ERR_UNSUPPORTED, "member '%s' is '%.40s', want %s", reader->path, word, words);
}

static zps_err_t read_text(const struct zps_field *field, const zps_json *value, char *at, struct reader *reader) {
  const size_t max = field->type == ZPS_FIELD_TEXT ? field->size - 1 : field->max;
  const char *text = NULL;
  const zps_err_t err = zps_json_read_str(value, reader->path, &text, &reader->why);
  if (err) return err;
  const size_t len = strlen(text);
  if (field->type != ZPS_FIELD_STRING && (len < field->min || len > max || zps_text_printable(text, len) != len))
    return zps_fail(&reader->why, ZPS_ERR_PROTOCOL, "member '%s' has %zu bytes, want %zu to %zu printable ones",
                    reader->path, len, (size_t)field->min, max);
  if (field->type == ZPS_FIELD_TEXT)
    memcpy(at, text, len + 1);
  else
    set_pointer(at, text);
  return ZPS_OK;
}

static zps_err_t read_bytes(const struct zps_field *field, const zps_json *value, char *to, char *at,
                            struct reader *reader) {
  size_t len = 0;
  const zps_err_t err = zps_json_read_bytes(value, reader->path, at, field->size, &len, &reader->why);
  if (!err && field->type == ZPS_FIELD_BYTES) memcpy(to + field->n_at, &len, sizeof len);
  if (err || field->type == ZPS_FIELD_BYTES || len == field->size) return err;
  return zps_fail(&reader->why, ZPS_ERR_PROTOCOL, "member '%s' has %zu bytes, want %zu", reader->path, len,
                  field->size);
}

static zps_err_t read_code(const zps_json *value, char *at, struct reader *reader) {
  const char *name = NULL;
  const zps_err_t err = zps_json_read_str(value, reader->path, &name, &reader->why);
  if (!err) *(zps_err_t *)(void *)at = zps_err_from_name(name);
  return err;
}

static zps_err_t read_members(const struct zps_fields *message, const zps_json *object, char *to,
                              struct reader *reader);

static zps_err_t read_value(const struct zps_field *field, const zps_json *value, char *to, char *at,
                            struct reader *reader) {
  zps_err_t err;
  switch (field->type) {
    case ZPS_FIELD_NUMBER:
    case ZPS_FIELD_HEX:
      return read_number(field, value, at, reader);
    case ZPS_FIELD_WORD:
      return read_word(field, value, at, reader);
    case ZPS_FIELD_CODE:
      return read_code(value, at, reader);
    case ZPS_FIELD_TEXT:
    case ZPS_FIELD_NAME:
    case ZPS_FIELD_STRING:
      return read_text(field, value, at, reader);
    case ZPS_FIELD_BYTES:
    case ZPS_FIELD_SECRET:
      return read_bytes(field, value, to, at, reader);
    case ZPS_FIELD_OBJECT:
      err = zps_json_check_object(value, reader->path, &reader->why);
      return err ? err : read_members(field->part, value, at, reader);
    default:
      return field->take(value, reader->path, at, &reader->why);
  }
}

static zps_err_t check_count(const struct zps_field *field, size_t n, uint32_t n_per, struct reader *reader) {
  if (field->per && n != n_per)
    return zps_fail(&reader->why, ZPS_ERR_PROTOCOL, "member '%s' has %zu elements, want one for each of %u %s",
                    reader->path, n, n_per, field->per);
  if (field->per || (n >= field->n_min && n <= field->n_max)) return ZPS_OK;
  return zps_fail(&reader->why, ZPS_ERR_PROTOCOL, "member '%s' has %zu elements, want %u to %u", reader->path, n,
                  field->n_min, field->n_max);
}

static zps_err_t allocate(size_t n, size_t size, char *at, struct reader *reader) {
  void *const elements = calloc(n, size);
  set_pointer(at, elements);
  if (elements) return ZPS_OK;
  return zps_fail(&reader->why, ZPS_ERR_NOMEM, "no memory for %zu elements of member '%s'", n, reader->path);
}

static zps_err_t read_list(const struct zps_field *field, const zps_json *list, char *to, struct reader *reader) {
  const size_t n = zps_json_array_len(list);
  const uint32_t count = (uint32_t)n;
  zps_err_t err = zps_json_check_array(list, reader->path, &reader->why);
  if (!err) err = check_count(field, n, count_of(field, to), reader);
  if (err || n == 0) return err;
  if (field->many == ZPS_FIELD_LIST) err = allocate(n, field->size, to + field->at, reader);
  if (err) return err;
  memcpy(to + field->n_at, &count, sizeof count);
  char *const at = place_of(field, to);
  for (uint32_t i = 0; !err && i < count; i++) {
    const size_t len = go_to(reader, i);
    if (field->by_pointer) err = allocate(1, field->part->size, at + i * field->size, reader);
    if (!err) err = read_value(field, zps_json_at(list, i), to, element_at(field, at, i), reader);
    reader->path[len] = '\0';
  }
  return err;
}

static void set_absent(const struct zps_field *field, char *at) {
  switch (field->type) {
    case ZPS_FIELD_NUMBER:
    case ZPS_FIELD_HEX:
    case ZPS_FIELD_WORD:
      set_number(field, at, field->absent);
      break;
    case ZPS_FIELD_TEXT:
      strcpy(at, field->text ? field->text : "");
      break;
    case ZPS_FIELD_NAME:
    case ZPS_FIELD_STRING:
      set_pointer(at, field->text);
      break;
    default:
      break;
  }
}

static zps_err_t read_field(const struct zps_field *field, const zps_json *object, char *to, struct reader *reader) {
  char *const at = place_of(field, to);
  if (field->type == ZPS_FIELD_PART && field->optional && !zps_json_get(object, field->part->fields[0].key))
    return ZPS_OK;
  if (field->type == ZPS_FIELD_PART) return read_members(field->part, object, at, reader);
  const zps_json *const value = zps_json_get(object, field->key);
  const size_t len = go_down(reader, field->key);
  zps_err_t err = ZPS_OK;
  if (field->type == ZPS_FIELD_FLAG) {
    *(bool *)at = zps_json_opt_bool(object, field->key, false);
  } else if (field->type == ZPS_FIELD_REAL) {
    const double real = zps_json_opt_real(object, field->key, 0);
    *(double *)(void *)at = isfinite(real) && real > 0 ? real : 0;
  } else if (!value && field->optional) {
    if (!field->many) set_absent(field, at);
  } else {
    err = field->many ? read_list(field, value, to, reader) : read_value(field, value, to, at, reader);
  }
  reader->path[len] = '\0';
  return err;
}

static zps_err_t read_members(const struct zps_fields *message, const zps_json *object, char *to,
                              struct reader *reader) {
  zps_err_t err = ZPS_OK;
  for (size_t i = 0; i < message->n_fields && !err; i++) err = read_field(&message->fields[i], object, to, reader);
  if (err || !message->check) return err;
  struct zps_error why;
  err = message->check(to, &why);
  return err ? zps_fail(&reader->why, err, "%s%s%.300s", reader->path, reader->path[0] ? ": " : "", why.text) : ZPS_OK;
}

zps_err_t zps_fields_complete(const struct zps_fields *message, const zps_json *object, void *to,
                              struct zps_error *error) {
  struct reader reader = {.path = ""};
  const zps_err_t err = read_members(message, object, to, &reader);
  if (!err) return ZPS_OK;
  zps_fields_fini(message, to);
  return zps_fail(error, err, "%s%s%.440s", message->name ? message->name : "", message->name ? ": " : "",
                  reader.why.text);
}

zps_err_t zps_fields_read(const struct zps_fields *message, const zps_json *object, void *to, struct zps_error *error) {
  memset(to, 0, message->size);
  return zps_fields_complete(message, object, to, error);
}

void zps_fields_fini(const struct zps_fields *message, void *read) {
  for (size_t i = 0; i < message->n_fields; i++) {
    const struct zps_field *const field = &message->fields[i];
    char *const at = place_of(field, read);
    const uint32_t n = field->many ? count_of(field, read) : 1;
    for (uint32_t k = 0; field->part && at && k < n; k++) {
      char *const element = element_at(field, at, k);
      if (element) zps_fields_fini(field->part, element);
      if (field->many && field->by_pointer) free(element);
    }
    if (field->many == ZPS_FIELD_LIST) {
      free(at);
      set_pointer((char *)read + field->at, NULL);
      if (!field->per) memset((char *)read + field->n_at, 0, sizeof n);
    }
  }
}
