/* Poly1305 of device memory: OpenSSL's, bit for bit, for pieces of all lengths, many of them at once. */
#include <stdio.h>

#ifndef ZPS_HAVE_EMU
int main(void) {
  puts("1..0 # SKIP no C++17 compiler: kernels are not emulated");
  return 0;
}
#else
#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "tests/unit/gpu/gpu_compare.h"

enum { KEY = ZPS_DEVICE_KEY_BYTES, TAG = ZPS_DEVICE_TAG_BYTES, TILE = 64 << 10, MIB = 1 << 20 };

struct pieces {
  uint32_t n;
  const size_t *lens;
  unsigned char **bytes;
};

static struct pieces pieces_new(const size_t *lens, uint32_t n) {
  struct pieces pieces = {.n = n, .lens = lens, .bytes = calloc(n, sizeof(void *))};
  assert_non_null(pieces.bytes);
  for (uint32_t i = 0; i < n; i++) {
    pieces.bytes[i] = calloc(1, lens[i] + 8);
    assert_non_null(pieces.bytes[i]);
  }
  return pieces;
}

static void pieces_free(struct pieces *pieces) {
  for (uint32_t i = 0; i < pieces->n; i++) free(pieces->bytes[i]);
  free(pieces->bytes);
}

static void fill(struct zps_rng *rng, unsigned char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++) bytes[i] = (unsigned char)zps_rng_u64(rng);
}

static void openssl_tag(const unsigned char *key, const void *bytes, size_t len, unsigned char *tag) {
  size_t n = 0;
  EVP_MAC *const mac = EVP_MAC_fetch(NULL, "POLY1305", NULL);
  EVP_MAC_CTX *const ctx = EVP_MAC_CTX_new(mac);
  assert_true(EVP_MAC_init(ctx, key, KEY, NULL) && EVP_MAC_update(ctx, bytes, len) && EVP_MAC_final(ctx, tag, &n, TAG));
  assert_int_equal(n, TAG);
  EVP_MAC_CTX_free(ctx);
  EVP_MAC_free(mac);
}

/* What follows a piece in its last 8 bytes is not zero. */
static void *there(struct gpu_rig *rig, const unsigned char *bytes, size_t len) {
  unsigned char *const padded = malloc(len + 8);
  assert_non_null(padded);
  memset(padded, 0xee, len + 8);
  memcpy(padded, bytes, len);
  void *const at = gpu_upload(rig, padded, (len + 7) & ~(size_t)7);
  free(padded);
  return at;
}

static void check(struct gpu_rig *rig, const unsigned char *key, const struct pieces *pieces) {
  void *pinned;
  gpu_ok(rig->device->ops->allocate(rig->device, ZPS_MEMORY_PINNED, pieces->n * sizeof(struct zps_device_tag), &pinned,
                                    &gpu_error));
  struct zps_device_tag *const tags = pinned;
  for (uint32_t i = 0; i < pieces->n; i++)
    tags[i] = (struct zps_device_tag){.at_on_device = there(rig, pieces->bytes[i], pieces->lens[i]),
                                      .len_bytes = pieces->lens[i]};
  gpu_ok(rig->device->ops->poly1305(rig->device, key, tags, pieces->n, rig->stream, &gpu_error));
  gpu_wait(rig);
  for (uint32_t i = 0; i < pieces->n; i++) {
    unsigned char wanted[TAG];
    openssl_tag(key, pieces->bytes[i], pieces->lens[i], wanted);
    if (memcmp(tags[i].tag, wanted, TAG) != 0)
      fail_msg("%s: the tag of %zu bytes, piece %u of %u, is another one", rig->device->ops->kind, pieces->lens[i], i,
               pieces->n);
    gpu_free(rig, (void *)tags[i].at_on_device);
  }
  rig->device->ops->release(rig->device, ZPS_MEMORY_PINNED, pinned);
}

static void check_random(uint64_t seed, const size_t *lens, uint32_t n) {
  unsigned char key[KEY];
  struct zps_rng rng = {.state = seed};
  struct pieces pieces = pieces_new(lens, n);
  zps_emu_seed(seed);
  fill(&rng, key, sizeof key);
  for (uint32_t i = 0; i < n; i++) fill(&rng, pieces.bytes[i], lens[i]);
  check(&emu, key, &pieces);
  check(&cpu, key, &pieces);
  pieces_free(&pieces);
}

static void each_length(void **state) {
  (void)state;
  static const size_t lens[] = {0,        1,    7,           8,    9,        15,        16,          17,           31,
                                32,       33,   255,         4095, 4096,     4097,      4111,        TILE - 1,     TILE,
                                TILE + 1, 8191, TILE - 4096, 4080, 2 * TILE, TILE + 16, TILE + 4096, 3 * TILE - 17};
  for (unsigned i = 0; i < COUNT(lens); i++) check_random(i, &lens[i], 1);
}

static void many_at_once(void **state) {
  (void)state;
  enum { N = 300 };
  static size_t lens[N];
  struct zps_rng rng = {.state = 7};
  for (unsigned i = 0; i < N; i++) {
    static const size_t most[] = {1, 40, 5000, 3 * TILE};
    lens[i] = zps_rng_below(&rng, most[i % 16 == 3 ? 3 : zps_rng_below(&rng, 3)]);
  }
  lens[0] = lens[1] = lens[N - 2] = lens[N - 1] = 0; /* no tiles at either end */
  check_random(1, lens, N);
  check_random(2, lens, 1);
  check_random(3, lens + 1, 7);
  for (unsigned i = 0; i < N; i++) lens[i] = 0;
  check_random(4, lens, N);
  gpu_ok(emu.device->ops->poly1305(emu.device, (const unsigned char *)"", NULL, 0, emu.stream, &gpu_error));
}

/* More tiles than a block has threads. */
static void large_ones(void **state) {
  (void)state;
  static const size_t lens[] = {5 * MIB + 3, 17 * MIB + 4000};
  check_random(1, lens, COUNT(lens));
}

/* Limbs and carries at their limits: numbers that are 2^130 - 5, just below and just above it; keys of all bits. */
static void extremes(void **state) {
  (void)state;
  static const size_t lens[] = {16, 32, 48, 4096 + 15, TILE + 32, 2 * TILE};
  struct pieces pieces = pieces_new(lens, COUNT(lens));
  for (unsigned k = 0; k < 6; k++) {
    unsigned char key[KEY];
    memset(key, k % 2 ? 0xff : 0, sizeof key);
    if (k / 2 == 1) key[0] = 1; /* r of 1 and of 2: sums are those of the blocks */
    if (k / 2 == 2) key[0] = 2;
    if (k == 3) memset(key + 1, 0, 15);
    for (unsigned low = 0xf8; low <= 0x100; low++) {
      for (uint32_t i = 0; i < pieces.n; i++) {
        memset(pieces.bytes[i], 0xff, lens[i]);
        pieces.bytes[i][0] = (unsigned char)low;
      }
      check(&emu, key, &pieces);
    }
  }
  pieces_free(&pieces);
}

/* The known answer of RFC 8439, 2.5.2. */
static void known_answer(void **state) {
  (void)state;
  static const unsigned char key[KEY] = {0x85, 0xd6, 0xbe, 0x78, 0x57, 0x55, 0x6d, 0x33, 0x7f, 0x44, 0x52,
                                         0xfe, 0x42, 0xd5, 0x06, 0xa8, 0x01, 0x03, 0x80, 0x8a, 0xfb, 0x0d,
                                         0xb2, 0xfd, 0x4a, 0xbf, 0xf6, 0xaf, 0x41, 0x49, 0xf5, 0x1b};
  static const unsigned char wanted[TAG] = {0xa8, 0x06, 0x1d, 0xc1, 0x30, 0x51, 0x36, 0xc6,
                                            0xc2, 0x2b, 0x8b, 0xaf, 0x0c, 0x01, 0x27, 0xa9};
  static const char text[] = "Cryptographic Forum Research Group";
  unsigned char tag[TAG];
  const size_t len = sizeof text - 1;
  struct pieces pieces = pieces_new(&len, 1);
  memcpy(pieces.bytes[0], text, len);
  openssl_tag(key, text, len, tag);
  assert_memory_equal(tag, wanted, TAG);
  check(&emu, key, &pieces);
  check(&cpu, key, &pieces);
  pieces_free(&pieces);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(known_answer, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(each_length, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(many_at_once, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(large_ones, gpu_setup, gpu_teardown),
      cmocka_unit_test_setup_teardown(extremes, gpu_setup, gpu_teardown),
  };
  return cmocka_run_group_tests(tests, gpu_group_setup, gpu_group_teardown);
}
#endif
