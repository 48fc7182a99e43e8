/*
 * Prints the members of the control plane's messages from their tables, for tests/check-protocol.sh: one line a member,
 * as MESSAGES|MEMBER|TYPE|VALUES|LEFT OUT. Messages with one table share its lines.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/text.h"
#include "proto/control_stats.h"
#include "proto/control_tensor.h"
#include "proto/control_view.h"
#include "tests/support/control_again.h"

enum { TEXT = 600 };

/* Parts of messages with a table of their own. */
static const struct control_message parts[] = {{"fabric", &zps_control_fabric, NULL},
                                               {"tensor", &zps_control_shape, NULL},
                                               {"scheme", &zps_control_scheme, NULL},
                                               {"tensors of job.stats", &zps_control_growth, NULL},
                                               {"view", &zps_control_view, NULL}};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static const char *part_name(const struct zps_fields *fields) {
  for (unsigned i = 0; i < N_PARTS; i++)
    if (parts[i].fields == fields) return parts[i].name;
  for (unsigned i = 0; i < n_control_messages; i++)
    if (control_messages[i].fields == fields) return control_messages[i].name;
  return NULL;
}

/* "2^32 - 1" */
static void add_number(char *text, uint64_t number) {
  unsigned bits = 0;
  while (bits < 63 && number >> bits > 1) bits++;
  if (number == UINT64_MAX)
    zps_text_add(text, TEXT, "2^64 - 1");
  else if (bits >= 15 && (number & (number + 1)) == 0)
    zps_text_add(text, TEXT, "2^%u - 1", bits + 1);
  else if (bits >= 17 && (number & (number - 1)) == 0)
    zps_text_add(text, TEXT, "2^%u", bits);
  else
    zps_text_add(text, TEXT, "%llu", (unsigned long long)number);
}

static void add_range(char *text, uint64_t min, uint64_t max) {
  add_number(text, min);
  if (min == max) return;
  zps_text_add(text, TEXT, " to ");
  add_number(text, max);
}

static uint64_t max_of(const struct zps_field *field) {
  return field->max ? field->max : field->size == sizeof(uint64_t) ? UINT64_MAX : UINT32_MAX;
}

static void add_type(char *text, const struct zps_field *field) {
  static const char *const types[] = {
      [ZPS_FIELD_NUMBER] = "number", [ZPS_FIELD_HEX] = "word",     [ZPS_FIELD_FLAG] = "flag",
      [ZPS_FIELD_REAL] = "real",     [ZPS_FIELD_WORD] = "name",    [ZPS_FIELD_CODE] = "error",
      [ZPS_FIELD_TEXT] = "text",     [ZPS_FIELD_NAME] = "text",    [ZPS_FIELD_STRING] = "text",
      [ZPS_FIELD_BYTES] = "bytes",   [ZPS_FIELD_SECRET] = "bytes", [ZPS_FIELD_OTHER] = NULL};
  const char *type = field->type == ZPS_FIELD_OTHER ? field->form : types[field->type];
  if (field->type == ZPS_FIELD_OBJECT) type = part_name(field->part) ? part_name(field->part) : "object";
  zps_text_add(text, TEXT, field->many ? "list of %s%s" : "%s", type,
               field->type == ZPS_FIELD_OBJECT || field->type == ZPS_FIELD_NUMBER || field->type == ZPS_FIELD_HEX ||
                       field->type == ZPS_FIELD_WORD
                   ? "s"
                   : "");
}

static void add_value(char *text, const struct zps_field *field) {
  const size_t len = strlen(text);
  switch (field->type) {
    case ZPS_FIELD_NUMBER:
      add_range(text, field->min, max_of(field));
      break;
    case ZPS_FIELD_WORD:
      for (uint64_t i = field->min; i <= field->max; i++) {
        const char *const word = field->word((unsigned)i);
        if (strcmp(word, "?") != 0) zps_text_add(text, TEXT, "%s%s", strlen(text) > len ? ", " : "", word);
      }
      break;
    case ZPS_FIELD_TEXT:
    case ZPS_FIELD_NAME:
      add_range(text, field->min, field->type == ZPS_FIELD_TEXT ? field->size - 1 : field->max);
      zps_text_add(text, TEXT, " bytes");
      break;
    case ZPS_FIELD_BYTES:
      zps_text_add(text, TEXT, "up to %zu", field->size);
      break;
    case ZPS_FIELD_SECRET:
      zps_text_add(text, TEXT, "%zu", field->size);
      break;
    default:
      break;
  }
}

static void add_values(char *text, const struct zps_field *field) {
  if (field->many && field->per)
    zps_text_add(text, TEXT, "one for each of %s", field->per);
  else if (field->many)
    add_range(text, field->n_min, field->n_max);
  const size_t len = strlen(text);
  if (len > 0) zps_text_add(text, TEXT, ": ");
  add_value(text, field);
  if (len > 0 && strlen(text) == len + 2) text[len] = '\0';
}

/* The value that a member has where it is left out; "yes": it has none. */
static void add_left_out(char *text, const struct zps_field *field) {
  const bool is_valid = field->absent >= field->min && field->absent <= max_of(field);
  if (field->type == ZPS_FIELD_FLAG)
    zps_text_add(text, TEXT, "false");
  else if (field->type == ZPS_FIELD_REAL)
    zps_text_add(text, TEXT, "0");
  else if (!field->optional)
    zps_text_add(text, TEXT, "no");
  else if (field->many)
    zps_text_add(text, TEXT, "yes");
  else if ((field->type == ZPS_FIELD_NUMBER || field->type == ZPS_FIELD_HEX) && is_valid)
    add_number(text, field->absent);
  else if (field->type == ZPS_FIELD_WORD)
    zps_text_add(text, TEXT, "%s", field->word((unsigned)field->absent));
  else
    zps_text_add(text, TEXT, "%s", field->text && field->text[0] ? field->text : "yes");
}

static void print_fields(const char *names, const char *path, const struct zps_fields *fields, bool is_optional);

/* An optional part is there when its first member is. */
static void print_field(const char *names, const char *path, const struct zps_field *field, const char *first) {
  char type[TEXT] = "", values[TEXT] = "", left_out[TEXT] = "", inside[TEXT];
  if (field->type == ZPS_FIELD_PART && part_name(field->part)) {
    printf("%s|all of %s||%s|\n", names, part_name(field->part), field->optional ? "yes" : "no");
    return;
  }
  if (field->type == ZPS_FIELD_PART) {
    print_fields(names, path, field->part, field->optional);
    return;
  }
  add_type(type, field);
  add_values(values, field);
  if (!first)
    add_left_out(left_out, field);
  else
    zps_text_add(left_out, TEXT, first == field->key ? "yes" : "without %s", first);
  printf("%s|%s%s|%s|%s|%s\n", names, path, field->key, type, values, left_out);
  if (field->type != ZPS_FIELD_OBJECT || part_name(field->part)) return;
  snprintf(inside, sizeof inside, "%s%s%s.", path, field->key, field->many ? "[]" : "");
  print_fields(names, inside, field->part, false);
}

static void print_fields(const char *names, const char *path, const struct zps_fields *fields, bool is_optional) {
  for (size_t i = 0; i < fields->n_fields; i++)
    print_field(names, path, &fields->fields[i], is_optional ? fields->fields[0].key : NULL);
}

int main(void) {
  for (unsigned i = 0; i < n_control_messages; i++) {
    char names[TEXT] = "";
    bool is_printed = false;
    for (unsigned j = 0; j < n_control_messages; j++) {
      if (control_messages[j].fields != control_messages[i].fields) continue;
      is_printed = is_printed || j < i;
      zps_text_add(names, sizeof names, "%s%s", names[0] ? ", " : "", control_messages[j].name);
    }
    if (!is_printed) print_fields(names, "", control_messages[i].fields, false);
  }
  for (unsigned i = 0; i < N_PARTS; i++) print_fields(parts[i].name, "", parts[i].fields, false);
  return 0;
}
