#include "common/net/tls/frame.h"

#include <endian.h>
#include <string.h>

static void put32(uint8_t *bytes, uint32_t value) {
  value = htole32(value);
  memcpy(bytes, &value, sizeof value);
}

static uint32_t get32(const uint8_t *bytes) {
  uint32_t value;
  memcpy(&value, bytes, sizeof value);
  return le32toh(value);
}

static void put64(uint8_t *bytes, uint64_t value) {
  value = htole64(value);
  memcpy(bytes, &value, sizeof value);
}

static uint64_t get64(const uint8_t *bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return le64toh(value);
}

void zps_tlsnet_head_write(enum tlsnet_frame_type type, size_t len, uint8_t *bytes) {
  put32(bytes, type);
  put32(bytes + 4, (uint32_t)len);
}

zps_err_t zps_tlsnet_head_read(const uint8_t *bytes, size_t max_msg, struct tlsnet_head *head_p,
                               struct zps_error *error) {
  const uint32_t type = get32(bytes), len = get32(bytes + 4);
  uint32_t least = 0, most = 0;
  switch (type) {
    case TLSNET_HELLO:
      least = most = TLSNET_HELLO_BYTES;
      break;
    case TLSNET_MESSAGE:
      most = (uint32_t)max_msg;
      break;
    case TLSNET_READ:
      least = most = TLSNET_READ_BYTES;
      break;
    case TLSNET_DATA:
      least = 1, most = UINT32_MAX; /* the READ says how many */
      break;
    case TLSNET_REFUSED:
    case TLSNET_DECLINE:
      break;
    case TLSNET_OFFER:
      least = most = TLSNET_OFFER_BYTES;
      break;
    case TLSNET_AHEAD:
      most = TLSNET_AHEAD_MAX;
      break;
    default:
      return zps_fail(error, ZPS_ERR_PROTOCOL, "sends a frame of type %u: types are 1 to %u", type, TLSNET_DECLINE);
  }
  if (len < least || len > most)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "sends a frame of type %u with %u bytes: it must have %u to %u", type, len,
                    least, most);
  *head_p = (struct tlsnet_head){.type = (uint8_t)type, .len = len};
  return ZPS_OK;
}

void zps_tlsnet_hello_write(const struct tlsnet_hello *hello, uint8_t *bytes) {
  put32(bytes, TLSNET_VERSION | hello->number << 16);
  put32(bytes + 4, hello->slot);
  memcpy(bytes + 8, hello->name, TLSNET_NAME_BYTES);
  memcpy(bytes + 8 + TLSNET_NAME_BYTES, hello->to, TLSNET_NAME_BYTES);
}

zps_err_t zps_tlsnet_hello_read(const uint8_t *bytes, struct tlsnet_hello *hello_p, struct zps_error *error) {
  const uint32_t version = get32(bytes) & 0xffff, number = get32(bytes) >> 16;
  if (version != TLSNET_VERSION)
    return zps_fail(error, ZPS_ERR_VERSION, "speaks version %u of the encrypted fabric, and this end version %u",
                    version, TLSNET_VERSION);
  if (number >= TLSNET_CONNECTIONS_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "has a connection of number %u: numbers are 0 to %u", number,
                    TLSNET_CONNECTIONS_MAX - 1);
  hello_p->slot = get32(bytes + 4);
  hello_p->number = number;
  memcpy(hello_p->name, bytes + 8, TLSNET_NAME_BYTES);
  memcpy(hello_p->to, bytes + 8 + TLSNET_NAME_BYTES, TLSNET_NAME_BYTES);
  return ZPS_OK;
}

void zps_tlsnet_ask_write(const struct tlsnet_ask *ask, uint8_t *bytes) {
  put64(bytes, ask->key);
  put64(bytes + 8, ask->at);
  put32(bytes + 16, ask->len);
}

struct tlsnet_ask zps_tlsnet_ask_read(const uint8_t *bytes) {
  return (struct tlsnet_ask){.key = get64(bytes), .at = get64(bytes + 8), .len = get32(bytes + 16)};
}

void zps_tlsnet_offer_write(const struct tlsnet_offer *offer, uint8_t *bytes) {
  put64(bytes, offer->key);
  put64(bytes + 8, offer->at);
  put64(bytes + 16, offer->len);
  put32(bytes + 24, offer->ahead);
}

zps_err_t zps_tlsnet_offer_read(const uint8_t *bytes, struct tlsnet_offer *offer_p, struct zps_error *error) {
  const struct tlsnet_offer offer = {
      .key = get64(bytes), .at = get64(bytes + 8), .len = get64(bytes + 16), .ahead = get32(bytes + 24)};
  const uint64_t most = offer.len < TLSNET_AHEAD_MAX ? offer.len : TLSNET_AHEAD_MAX;
  if (offer.ahead > most)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "offers %u bytes ahead of a payload of %llu: it may be %llu at most",
                    offer.ahead, (unsigned long long)offer.len, (unsigned long long)most);
  if (offer.len > UINT64_MAX - offer.at)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "offers %llu bytes at %llu: no memory is so large",
                    (unsigned long long)offer.len, (unsigned long long)offer.at);
  *offer_p = offer;
  return ZPS_OK;
}
