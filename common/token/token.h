/*
 * Tokens of jobs: what a rank shows to be let into one.
 *
 *   zps1.EXPIRES.MAC.JOB      MAC = HMAC-SHA256(key, "zps1.EXPIRES.JOB"), in 64 hexadecimal digits
 *
 * EXPIRES is seconds since 1970, 0 for never. JOB is a job's name, or the beginning of names with '*' behind it. Who
 * has a key can make tokens, and the coordinator, which has the keys, keeps no list of them.
 */
#ifndef ZPS_TOKEN_TOKEN_H
#define ZPS_TOKEN_TOKEN_H

#include <stdint.h>

#include "common/base/err.h"

#define ZPS_TOKEN_KEY_BYTES 32u
#define ZPS_TOKEN_KEYS_MAX 4u
#define ZPS_TOKEN_JOB_MAX 129u /* a name of 128 bytes and '*' */
#define ZPS_TOKEN_SIZE 256u    /* of a token's text, with NUL */

/* The first key makes tokens, each of them checks: so keys are changed without a moment in which good ones fail. */
struct zps_token_keys {
  unsigned n; /* 0: no token is asked for */
  uint8_t key[ZPS_TOKEN_KEYS_MAX][ZPS_TOKEN_KEY_BYTES];
};

/* A file of 1 to 4 lines of 64 hexadecimal digits; empty lines and those that begin with '#' are left out. Refused:
 * what zps_private_read() refuses, and other lines, with their number. On an error there are no keys. */
zps_err_t zps_token_keys_read(const char *path, struct zps_token_keys *keys, struct zps_error *error) ZPS_MUSTCHECK;
/* A new file with a new key. ZPS_ERR_BUSY: there is one. */
zps_err_t zps_token_key_create(const char *path, struct zps_error *error) ZPS_MUSTCHECK;

/* What a token says of itself; nobody has checked it yet. */
struct zps_token {
  uint64_t expires_s; /* 0: never */
  uint8_t mac[32];
  char job[ZPS_TOKEN_JOB_MAX + 1];
};
zps_err_t zps_token_parse(const char *text, struct zps_token *token, struct zps_error *error) ZPS_MUSTCHECK;

/* With the first of `keys`, of which there is one. ZPS_ERR_INVALID: no such name. */
zps_err_t zps_token_make(const struct zps_token_keys *keys, const char *job, uint64_t expires_s,
                         char text[ZPS_TOKEN_SIZE], struct zps_error *error) ZPS_MUSTCHECK;

/* Whether it lets into `job` at `now_s`; without keys anything does. ZPS_ERR_REFUSED, with the reason: there is none
 * (NULL, or empty), it is for other jobs, it has expired, no key has made it. Time does not depend on how much of the
 * MAC is right. The text is never in `error`. */
zps_err_t zps_token_check(const struct zps_token_keys *keys, const char *text, const char *job, uint64_t now_s,
                          struct zps_error *error) ZPS_MUSTCHECK;

#endif
