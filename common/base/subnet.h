/* Lists of networks: "10.0.0.0/8,fd00::/8", where an address without bits is itself alone. */
#ifndef ZPS_BASE_SUBNET_H
#define ZPS_BASE_SUBNET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* ZPS_ERR_INVALID: one of them is none, which the error names. */
zps_err_t zps_subnets_check(const char *list, struct zps_error *error) ZPS_MUSTCHECK;
/* Whether one of them has this address of 4 or 16 bytes; any other number of bytes is in none. */
bool zps_subnets_have(const char *list, const uint8_t *bytes, size_t n_bytes);
/* The bytes of the IP address in a struct sockaddr, and how many they are; 0 for other kinds of address. */
size_t zps_subnet_bytes(const void *sockaddr, const uint8_t **bytes_p);

#endif
