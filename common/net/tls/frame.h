/*
 * The frames of the encrypted fabric (proto/PROTOCOL.md, "The encrypted fabric"). Pure.
 *
 * A frame is a head of 8 bytes and a body. Numbers are little-endian.
 */
#ifndef ZPS_NET_TLS_FRAME_H
#define ZPS_NET_TLS_FRAME_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/net/net.h"

#define TLSNET_VERSION 3u
#define TLSNET_NAME_BYTES 16u
#define TLSNET_CONNECTIONS_MAX ZPS_NET_CONNECTIONS_MAX /* of a link */
#define TLSNET_HEAD_BYTES 8u
#define TLSNET_HELLO_BYTES 40u /* bodies */
#define TLSNET_READ_BYTES 20u
#define TLSNET_OFFER_BYTES 28u
#define TLSNET_AHEAD_MAX (1u << 20) /* bytes of an offer, and those of a link that nobody has asked for yet */

enum tlsnet_frame_type {
  TLSNET_HELLO = 1, /* first frame of the end that dialled */
  TLSNET_MESSAGE,
  TLSNET_READ,    /* asks for bytes of registered memory */
  TLSNET_DATA,    /* some of the bytes that the oldest unanswered READ asked for */
  TLSNET_REFUSED, /* there is no such memory: the answer to the oldest unanswered READ */
  TLSNET_OFFER,   /* the other end is to read this memory: some of it follows in AHEAD frames */
  TLSNET_AHEAD,   /* some bytes of the oldest incomplete OFFER; none: no more of it come */
  TLSNET_DECLINE, /* this end reads nothing from offers over this connection, from now on */
};

struct tlsnet_head {
  uint8_t type;
  uint32_t len; /* of the body */
};

/* A connection replaces an earlier one of the same ends with its slot and number. */
struct tlsnet_hello {
  uint32_t slot;   /* of a link between the two ends */
  uint32_t number; /* of the connection among those of its link: 0 the first one, which carries the messages */
  uint8_t name[TLSNET_NAME_BYTES], to[TLSNET_NAME_BYTES]; /* of the two endpoints, from their addresses */
};

struct tlsnet_ask {
  uint64_t key, at; /* the memory, and the first byte in it */
  uint32_t len;
};

/* Memory that is announced by a later message. It replaces earlier offers of any of these bytes. */
struct tlsnet_offer {
  uint64_t key, at, len; /* len 0: it replaces all earlier offers */
  uint32_t ahead;        /* of these bytes, the first ones follow */
};

void zps_tlsnet_head_write(enum tlsnet_frame_type type, size_t len, uint8_t *bytes);
/* ZPS_ERR_PROTOCOL: no frame begins so. `max_msg`: bytes of the largest message. */
zps_err_t zps_tlsnet_head_read(const uint8_t *bytes, size_t max_msg, struct tlsnet_head *head_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
void zps_tlsnet_hello_write(const struct tlsnet_hello *hello, uint8_t *bytes);
/* ZPS_ERR_VERSION; ZPS_ERR_PROTOCOL: no link has a connection of this number. */
zps_err_t zps_tlsnet_hello_read(const uint8_t *bytes, struct tlsnet_hello *hello_p,
                                struct zps_error *error) ZPS_MUSTCHECK;
void zps_tlsnet_ask_write(const struct tlsnet_ask *ask, uint8_t *bytes);
struct tlsnet_ask zps_tlsnet_ask_read(const uint8_t *bytes);
void zps_tlsnet_offer_write(const struct tlsnet_offer *offer, uint8_t *bytes);
/* ZPS_ERR_PROTOCOL: there is no such offer. */
zps_err_t zps_tlsnet_offer_read(const uint8_t *bytes, struct tlsnet_offer *offer_p,
                                struct zps_error *error) ZPS_MUSTCHECK;

#endif
