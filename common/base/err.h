/*
 * Error codes and error texts, shared by every module.
 *
 * A function that can fail returns zps_err_t and, where a caller will want to know more than the code, takes a
 * `struct zps_error *` which may be NULL. The function that first *identifies* an error writes the text (what, where,
 * what would be right) with zps_fail() and logs it where logging is its job; functions further up pass it on untouched.
 * ZPS_ERR_AGAIN is back-pressure, not an error: it is never logged.
 *
 * The numbers are ABI: worker/include/zenps/zenps.h repeats them as ZENPS_ERR_*, and a unit test holds the two equal.
 */
#ifndef ZPS_BASE_ERR_H
#define ZPS_BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

/* name, value, text */
#define ZPS_ERR_MAP(X)                                      \
  X(OK, 0, "success")                                       \
  X(ERR_AGAIN, -1, "resource busy, try again")              \
  X(ERR_INVALID, -2, "invalid argument")                    \
  X(ERR_NOMEM, -3, "out of memory")                         \
  X(ERR_TIMEOUT, -4, "deadline passed")                     \
  X(ERR_CANCELED, -5, "canceled")                           \
  X(ERR_CLOSED, -6, "closed")                               \
  X(ERR_CONNECT, -7, "cannot connect")                      \
  X(ERR_REFUSED, -8, "refused")                             \
  X(ERR_VERSION, -9, "protocol version mismatch")           \
  X(ERR_PROTOCOL, -10, "malformed message from peer")       \
  X(ERR_SHAPE, -11, "tensor differs from its registration") \
  X(ERR_UNKNOWN, -12, "no such object")                     \
  X(ERR_RANK_TAKEN, -13, "rank already taken")              \
  X(ERR_MISSING, -14, "ranks missing at the deadline")      \
  X(ERR_PEER_LOST, -15, "a rank of the job was lost")       \
  X(ERR_SERVER_LOST, -16, "a server was lost")              \
  X(ERR_STALE, -17, "stale membership epoch")               \
  X(ERR_TRUNCATED, -18, "buffer too small")                 \
  X(ERR_UNSUPPORTED, -19, "not supported")                  \
  X(ERR_IO, -20, "input/output error")                      \
  X(ERR_FABRIC, -21, "fabric error")                        \
  X(ERR_FORKED, -22, "used in a child after fork")          \
  X(ERR_BUSY, -23, "already in use")                        \
  X(ERR_INTERNAL, -24, "internal error")                    \
  X(ERR_QUOTA, -25, "more than the job may have")           \
  X(ERR_TRAINER, -26, "the trainer failed")

typedef enum zps_err {
#define X(name, value, text) ZPS_##name = (value),
  ZPS_ERR_MAP(X)
#undef X
} zps_err_t;

#define ZPS_MUSTCHECK __attribute__((warn_unused_result))
#define ZPS_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* An error with a sentence for people: the event, its place, and the right form. */
struct zps_error {
  zps_err_t code;
  char text[500];
};

/* Static text of a code; never NULL, also for numbers that are no code. */
const char *zps_err_str(zps_err_t code);
/* Symbolic name without prefix, such as "ERR_TIMEOUT"; "ERR_?" for numbers that are no code. */
const char *zps_err_name(zps_err_t code);
/* The code with this symbolic name, or ZPS_ERR_INTERNAL: used for codes that arrive over the control plane. */
zps_err_t zps_err_from_name(const char *name);

/* Writes code and text into `error` (may be NULL) and returns `code`, so that `return zps_fail(...)` reads well.
 * Unprintable bytes of the text become '?'. */
zps_err_t zps_fail(struct zps_error *error, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
zps_err_t zps_vfail(struct zps_error *error, zps_err_t code, const char *fmt, va_list args) ZPS_PRINTF(3, 0);
/* Describes a failed system call as zps_fail() does, and appends ": strerror(err_number)". */
zps_err_t zps_fail_errno(struct zps_error *error, zps_err_t code, int err_number, const char *fmt, ...)
    ZPS_PRINTF(4, 5);

#endif
