/*
 * JSON values, as the control plane uses them. The only file behind this header is json.c, which alone sees jansson.
 *
 * Builders return NULL when memory is short, and accept NULL children, so that a chain of calls is checked once at its
 * end. In `error`, getters name the member, the value found and the right form.
 */
#ifndef ZPS_CONTROL_JSON_H
#define ZPS_CONTROL_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

typedef struct zps_json zps_json;

zps_json *zps_json_object(void);
zps_json *zps_json_array(void);
zps_json *zps_json_ref(const zps_json *value); /* only its reference count changes */
void zps_json_unref(zps_json *value);          /* NULL is allowed */
/* A copy that shares nothing: for another thread, while this one keeps the original. */
zps_json *zps_json_copy(const zps_json *value);

/* Single values, for zps_json_set() and zps_json_append(). */
zps_json *zps_json_str(const char *value); /* NULL: null */
zps_json *zps_json_u64(uint64_t value);
zps_json *zps_json_hex(uint64_t value);                 /* "0x" and 16 digits: for values above 2^53 */
zps_json *zps_json_bytes(const void *data, size_t len); /* As lower-case hex. */
zps_json *zps_json_real(double value);
zps_json *zps_json_bool(bool value);

/* Setters return the object they were given (NULL in, or no memory: NULL out and the object released). Children passed
 * to zps_json_set() and zps_json_append() are consumed. u64 values above 2^53 travel as hex strings ("0x..."): _hex. */
zps_json *zps_json_set(zps_json *object, const char *key, zps_json *value);
zps_json *zps_json_set_str(zps_json *object, const char *key, const char *value);
zps_json *zps_json_set_int(zps_json *object, const char *key, int64_t value);
zps_json *zps_json_set_u64(zps_json *object, const char *key, uint64_t value);
zps_json *zps_json_set_hex(zps_json *object, const char *key, uint64_t value);
zps_json *zps_json_set_real(zps_json *object, const char *key, double value);
zps_json *zps_json_set_bool(zps_json *object, const char *key, bool value);
/* Sets all members of `from`, and shares their values. Does nothing where `from` is NULL, or no object. */
zps_json *zps_json_set_all(zps_json *object, const zps_json *from);
zps_json *zps_json_append(zps_json *array, zps_json *value);
zps_json *zps_json_append_u64(zps_json *array, uint64_t value);
zps_json *zps_json_append_str(zps_json *array, const char *value);

/* Borrowed child, or NULL when absent. */
const zps_json *zps_json_get(const zps_json *object, const char *key);
bool zps_json_is_array(const zps_json *value);
bool zps_json_is_object(const zps_json *value);
size_t zps_json_array_len(const zps_json *array); /* 0 for NULL */
const zps_json *zps_json_at(const zps_json *array, size_t index);
zps_err_t zps_json_at_u64(const zps_json *array, size_t index, uint64_t max, uint64_t *value_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* A value that has been found already, or NULL where it is missing. `key` is its name in errors. */
zps_err_t zps_json_read_str(const zps_json *value, const char *key, const char **value_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_read_u64(const zps_json *value, const char *key, uint64_t min, uint64_t max, uint64_t *value_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_read_hex(const zps_json *value, const char *key, uint64_t *value_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_read_bytes(const zps_json *value, const char *key, void *data, size_t cap, size_t *len_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_read_real(const zps_json *value, const char *key, double *value_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_check_array(const zps_json *value, const char *key, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_check_object(const zps_json *value, const char *key, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_get_str(const zps_json *object, const char *key, const char **value_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_get_u64(const zps_json *object, const char *key, uint64_t min, uint64_t max, uint64_t *value_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_get_hex(const zps_json *object, const char *key, uint64_t *value_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_get_array(const zps_json *object, const char *key, const zps_json **value_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* Defaults for members that may be absent (or of another type). */
uint64_t zps_json_opt_u64(const zps_json *object, const char *key, uint64_t def);
double zps_json_opt_real(const zps_json *object, const char *key, double def);
bool zps_json_opt_bool(const zps_json *object, const char *key, bool def);
const char *zps_json_opt_str(const zps_json *object, const char *key, const char *def);

/* One line without newline, or indented; malloc'd, NULL when memory is short. */
char *zps_json_dump(const zps_json *value);
char *zps_json_dump_pretty(const zps_json *value);
/* Bytes that the value takes in a line, at the most. Each value counts as 16 at least, so that a line of
 * ZPS_RPC_LINE_MAX has no more than ZPS_JSON_VALUES_MAX. 0 for NULL. */
size_t zps_json_most_bytes(const zps_json *value);
/* The limits of a text, checked before anything is built of it. */
#define ZPS_JSON_DEPTH_MAX 16u
#define ZPS_JSON_VALUES_MAX (1u << 18) /* some 250 bytes of memory each, at the worst */
/* Counts brackets and commas outside of strings: a text that is no JSON may pass, and fails when it is parsed. */
zps_err_t zps_json_check_bounds(const char *text, size_t len, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_json_parse(const char *text, size_t len, zps_json **value_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Visits the members of an object in insertion order. */
void zps_json_each(const zps_json *object, void (*visit)(void *ctx, const char *key, const zps_json *value), void *ctx);
/* Any value as text for a table cell: strings as they are, numbers, true/false, others as JSON; into `buf`. */
const char *zps_json_text(const zps_json *value, char *buf, size_t size);

#endif
