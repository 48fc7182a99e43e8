/* Runs a fuzz target over a corpus of .hex files, of lines of .jsonl files and of whole .txt files, of every prefix of
 * these, and of many mutations of them, without a fuzzer: a TAP test. Under sanitizers it finds most of the faults that
 * a fuzzer would find first. Then over what a fuzzer has found worth keeping (tests/fuzz/found/TARGET.hex, an input a
 * line), with a few mutations of each. */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/hex.h"

#ifndef ZPS_FUZZ_MUTATIONS /* fewer, where one takes long */
#define ZPS_FUZZ_MUTATIONS 20000
#endif
enum { MUTATIONS = ZPS_FUZZ_MUTATIONS, LINE_MUTATIONS = 3000, FOUND_MUTATIONS = 50, MAX_BYTES = 16384 };

/* At the end of an exact allocation, where a sanitizer sees every byte read too far. */
static void run(const uint8_t *data, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (!copy) abort();
  memcpy(copy, data, size);
  LLVMFuzzerTestOneInput(copy, size);
  free(copy);
}

static void mutate(struct zps_rng *rng, const uint8_t *data, size_t size) {
  uint8_t bytes[MAX_BYTES + 64];
  static const uint8_t odd[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
  memcpy(bytes, data, size);
  for (uint64_t n = 1 + zps_rng_below(rng, 4); n > 0 && size > 0; n--) {
    const size_t at = zps_rng_below(rng, size);
    switch (zps_rng_below(rng, 5)) {
      case 0:
        bytes[at] ^= (uint8_t)(1u << zps_rng_below(rng, 8));
        break;
      case 1:
        bytes[at] = odd[zps_rng_below(rng, sizeof odd)];
        break;
      case 2:
        bytes[at] = (uint8_t)zps_rng_u64(rng);
        break;
      case 3:
        memmove(bytes + at, bytes + at + 1, size - at - 1);
        size--;
        break;
      default:
        if (size == MAX_BYTES) break;
        memmove(bytes + at + 1, bytes + at, size - at);
        size++;
    }
  }
  run(bytes, size);
}

static void replay(struct zps_rng *rng, const uint8_t *data, size_t size, unsigned mutations) {
  for (size_t len = 0; len <= size; len++) run(data, len);
  for (unsigned i = 0; i < mutations; i++) mutate(rng, data, size);
}

static size_t replay_lines(struct zps_rng *rng, const char *path) {
  static char line[MAX_BYTES];
  size_t n = 0;
  FILE *file = fopen(path, "r");
  for (; file && fgets(line, sizeof line, file); n++)
    replay(rng, (const uint8_t *)line, strcspn(line, "\n"), LINE_MUTATIONS);
  if (file) fclose(file);
  return n;
}

static size_t read_text(const char *path, uint8_t *bytes, size_t cap) {
  FILE *file = fopen(path, "r");
  const size_t size = file ? fread(bytes, 1, cap, file) : 0;
  if (file) fclose(file);
  return size < cap ? size : 0;
}

/* False: a line is not that of an input. */
static bool replay_found(struct zps_rng *rng, FILE *file) {
  static char line[2 * MAX_BYTES + 2];
  static uint8_t bytes[MAX_BYTES];
  while (fgets(line, sizeof line, file)) {
    size_t n = 0;
    char *at = line;
    for (int taken; sscanf(at, "%2hhx%n", &bytes[n], &taken) == 1; at += taken) n++;
    if (*at != '\n') return false;
    run(bytes, n);
    for (unsigned i = 0; i < FOUND_MUTATIONS; i++) mutate(rng, bytes, n);
  }
  return true;
}

int main(int argc, char **argv) {
  const char *top = getenv("ZPS_TOP_SRCDIR");
  char dir[1024], path[2048];
  static uint8_t bytes[MAX_BYTES];
  struct zps_rng rng = {.state = 1};
  unsigned n = 0;
  snprintf(dir, sizeof dir, "%s/" ZPS_FUZZ_CORPUS, top ? top : ".");
  DIR *corpus = opendir(dir);
  if (!corpus) {
    printf("1..1\nnot ok 1 - cannot open %s\n", dir);
    return 1;
  }
  for (const struct dirent *entry = readdir(corpus); entry; entry = readdir(corpus)) {
    const bool lines = strstr(entry->d_name, ".jsonl") != NULL, text = strstr(entry->d_name, ".txt") != NULL;
    if (!lines && !text && !strstr(entry->d_name, ".hex")) continue;
    snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
    const size_t size = lines  ? replay_lines(&rng, path)
                        : text ? read_text(path, bytes, sizeof bytes)
                               : zps_test_hex_read(path, bytes, sizeof bytes);
    if (!lines) replay(&rng, bytes, size, text ? LINE_MUTATIONS : MUTATIONS);
    printf("%s %u - %s\n", size ? "ok" : "not ok", ++n, entry->d_name);
  }
  closedir(corpus);
  const char *const target = argc > 0 ? strstr(argv[0], "replay_") : NULL;
  snprintf(path, sizeof path, "%s/tests/fuzz/found/%s.hex", top ? top : ".", target ? target + strlen("replay_") : "");
  FILE *found = fopen(path, "r");
  if (found) {
    printf("%s %u - what was found\n", replay_found(&rng, found) ? "ok" : "not ok", ++n);
    fclose(found);
  }
  printf("1..%u\n", n);
  return n ? 0 : 1;
}
