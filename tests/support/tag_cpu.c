/* Poly1305 byte by byte, slowly: no limb, table or library in common with those that it is compared with. */
#include <string.h>

#include "tests/support/device_cpu.h"

enum { BYTES = 17, BLOCK = ZPS_DEVICE_TAG_BYTES }; /* of a number mod 2^130 - 5; of a block */

/* Leaves a number below 2^131 in bytes; 2^130 is 5. */
static void carry(uint32_t *x) {
  for (unsigned pass = 0; pass < 2; pass++) {
    uint32_t over = 0;
    for (unsigned i = 0; i < BYTES; i++) {
      over += x[i];
      x[i] = i < BYTES - 1 ? over & 255 : over & 3;
      over >>= i < BYTES - 1 ? 8 : 2;
    }
    x[0] += 5 * over;
  }
}

static void multiply(uint32_t *h, const unsigned char *r) {
  uint32_t product[BYTES];
  for (unsigned i = 0; i < BYTES; i++) {
    product[i] = 0;
    for (unsigned j = 0; j < BYTES; j++) /* 2^136 is 64 times 5 */
      product[i] += j <= i ? h[j] * r[i - j] : 320 * h[j] * r[i + BYTES - j];
  }
  memcpy(h, product, sizeof product);
  carry(h);
}

static void add_block(uint32_t *h, const unsigned char *block, size_t len) {
  for (size_t i = 0; i < len; i++) h[i] += block[i];
  h[len] += 1;
}

static void finish(uint32_t *h, const unsigned char *s, unsigned char *tag) {
  uint32_t less[BYTES]; /* 2^130 - 5 */
  for (unsigned i = 0; i < 3; i++) carry(h);
  memcpy(less, h, sizeof less);
  uint32_t over = 5;
  for (unsigned i = 0; i < BYTES; i++) {
    over += less[i];
    less[i] = over & 255;
    over >>= 8;
  }
  const bool is_less = less[BYTES - 1] < 4;
  over = 0;
  for (unsigned i = 0; i < BLOCK; i++) {
    over += (is_less ? h : less)[i] + s[i];
    tag[i] = (unsigned char)over;
    over >>= 8;
  }
}

static void make_tag(const unsigned char *key, struct zps_device_tag *tag) {
  unsigned char r[BYTES] = {0};
  uint32_t h[BYTES] = {0};
  memcpy(r, key, BLOCK);
  for (unsigned i = 3; i < BLOCK; i += 4) r[i] &= 15;
  for (unsigned i = 4; i < BLOCK; i += 4) r[i] &= 252;
  for (uint64_t at = 0; at < tag->len_bytes; at += BLOCK) {
    const uint64_t left = tag->len_bytes - at;
    add_block(h, (const unsigned char *)tag->at_on_device + at, left < BLOCK ? (size_t)left : BLOCK);
    multiply(h, r);
  }
  finish(h, key + BLOCK, tag->tag);
}

zps_err_t zps_cpu_poly1305(struct zps_device *device, const unsigned char *key, struct zps_device_tag *tags, uint32_t n,
                           zps_stream_t stream, struct zps_error *error) {
  (void)device;
  (void)stream;
  (void)error;
  for (uint32_t i = 0; i < n; i++) make_tag(key, &tags[i]);
  return ZPS_OK;
}
