/*
 * Messages of the control plane as tables: one row a member, with its key, its place in the struct and its bounds.
 *
 * fields.c writes a struct as a JSON object and reads it back by the table. Members are written in the table's order.
 * An error names the message, the member, the value found and the right form: "job.open: member 'members[3].host' is
 * missing, want a string". A rule between members, such as "server is below servers", is a function beside the table.
 *
 * Writers return NULL when memory is short. A reader that refuses a message leaves nothing to free.
 */
#ifndef ZPS_PROTO_FIELDS_H
#define ZPS_PROTO_FIELDS_H

#include "common/control/json.h"

/* The types of the member in C, and of the value in JSON. */
enum zps_field_type {
  ZPS_FIELD_NUMBER, /* uint32_t, uint64_t or unsigned: an integer from min to max. max 0: all that fit. */
  ZPS_FIELD_HEX,    /* uint64_t: "0x" and hex digits. */
  ZPS_FIELD_FLAG,   /* bool: true. Any other value, and none, is false. */
  ZPS_FIELD_REAL,   /* double: a measure. A value that is not finite and positive is 0. */
  ZPS_FIELD_WORD,   /* unsigned or an enum: the name that word() gives a number from min to max. */
  ZPS_FIELD_CODE,   /* zps_err_t: its name. An unknown name is ZPS_ERR_INTERNAL. */
  ZPS_FIELD_TEXT,   /* char[]: min printable bytes or more. */
  ZPS_FIELD_NAME,   /* const char *: min to max printable bytes, borrowed from the JSON. */
  ZPS_FIELD_STRING, /* const char *: any text, borrowed from the JSON. */
  ZPS_FIELD_BYTES,  /* uint8_t[]: hex digits; the length is the size_t at n_at. */
  ZPS_FIELD_SECRET, /* uint8_t[]: hex digits for all of its bytes. */
  ZPS_FIELD_OBJECT, /* A struct: an object with the table `part`. */
  ZPS_FIELD_PART, /* A struct: its members stand among the others. An optional one is there when its first member is. */
  ZPS_FIELD_OTHER /* What put() writes and take() reads. */
};

struct zps_fields;

struct zps_field {
  const char *key;
  enum zps_field_type type;
  size_t at, size; /* In the struct. Of a list: the size of one element. */
  enum {
    ZPS_FIELD_ONE,
    ZPS_FIELD_ROW, /* An array inside the struct, of numbers, words, objects or the like. */
    ZPS_FIELD_LIST /* An array that the reader allocates and zps_fields_fini() frees. */
  } many;
  /* The struct has a pointer to the object, which the caller of the reader has set. A list has pointers to its objects,
   * which the reader allocates. */
  bool by_pointer;
  size_t n_at;     /* Of lists: the offset of the uint32_t that counts the elements. */
  const char *per; /* Another member has the count, which the list must match: one element for each of these. */
  uint32_t n_min, n_max;
  uint64_t min, max;
  bool optional;    /* Readers take a message without it. Writers leave it out when it is absent, below min or empty. */
  bool always;      /* Writers write it in any case. */
  uint64_t absent;  /* The number of a member that is left out. */
  const char *text; /* The text of a member that is left out or empty. NULL: "", or a pointer of NULL. */
  const struct zps_fields *part;
  const char *(*word)(unsigned number); /* "?": the number has no name. */
  zps_json *(*put)(const void *at);
  zps_err_t (*take)(const zps_json *value, const char *key, void *at, struct zps_error *error);
  const char *form; /* Of OTHER: the type in PROTOCOL.md. */
};
#define ZPS_FIELD_AT(type, member) .at = offsetof(type, member), .size = sizeof((type *)0)->member
#define ZPS_FIELD_BYTES_AT(type, member, n_member) ZPS_FIELD_AT(type, member), .n_at = offsetof(type, n_member)
#define ZPS_FIELD_LIST_AT(type, member, n_member)                                             \
  .many = ZPS_FIELD_LIST, .at = offsetof(type, member), .size = sizeof((type *)0)->member[0], \
  .n_at = offsetof(type, n_member)
#define ZPS_FIELD_ROW_AT(type, member, n_member)                                             \
  .many = ZPS_FIELD_ROW, .at = offsetof(type, member), .size = sizeof((type *)0)->member[0], \
  .n_at = offsetof(type, n_member), .n_max = sizeof((type *)0)->member / sizeof((type *)0)->member[0]

struct zps_fields {
  const char *name; /* For errors. NULL: a part of messages that have names. */
  size_t size;      /* of the struct */
  const struct zps_field *fields;
  size_t n_fields;
  /* Checks rules between members, and completes the struct. NULL: there are none. */
  zps_err_t (*check)(void *read, struct zps_error *error);
};
#define ZPS_FIELDS_OF(type, table) .size = sizeof(type), .fields = (table), .n_fields = sizeof(table) / sizeof(table)[0]

zps_json *zps_fields_write(const struct zps_fields *message, const void *from);
/* Adds the members to an object, which may be NULL: no memory. */
zps_json *zps_fields_add(zps_json *object, const struct zps_fields *message, const void *from);
/* The struct is zeroed first. */
zps_err_t zps_fields_read(const struct zps_fields *message, const zps_json *object, void *to,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* The struct is not zeroed: the caller has set its pointers and the members that the table lacks. */
zps_err_t zps_fields_complete(const struct zps_fields *message, const zps_json *object, void *to,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* Frees the lists that a reader has allocated. */
void zps_fields_fini(const struct zps_fields *message, void *read);

/* Declares the table zps_control_NAME of a struct, its writer and its reader. */
#define ZPS_MESSAGE_WRITER(name, type)                                   \
  extern const struct zps_fields zps_control_##name;                     \
  static inline zps_json *zps_control_##name##_write(const type *from) { \
    return zps_fields_write(&zps_control_##name, from);                  \
  }
#define ZPS_MESSAGE_READER(name, type)                                                              \
  extern const struct zps_fields zps_control_##name;                                                \
  ZPS_MUSTCHECK static inline zps_err_t zps_control_##name##_read(const zps_json *object, type *to, \
                                                                  struct zps_error *error) {        \
    return zps_fields_read(&zps_control_##name, object, to, error);                                 \
  }
#define ZPS_MESSAGE(name, type)  \
  ZPS_MESSAGE_WRITER(name, type) \
  ZPS_MESSAGE_READER(name, type)

#endif
