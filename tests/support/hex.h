/* Reads files of hex bytes, such as proto/golden: '#' starts a comment, white space does not matter. */
#ifndef ZPS_TESTS_HEX_H
#define ZPS_TESTS_HEX_H

#include <ctype.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The number of bytes read; 0 when the file is missing, malformed or too long. */
static inline size_t zps_test_hex_read(const char *path, uint8_t *bytes, size_t cap) {
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  size_t n_digits = 0;
  int c;
  while ((c = getc(file)) != EOF) {
    if (c == '#')
      while (c != '\n' && c != EOF) c = getc(file);
    if (c == EOF || isspace(c)) continue;
    if (!isxdigit(c) || n_digits / 2 == cap) {
      n_digits = 0;
      break;
    }
    const uint8_t digit = (uint8_t)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
    bytes[n_digits / 2] = n_digits % 2 ? (uint8_t)(bytes[n_digits / 2] << 4 | digit) : digit;
    n_digits++;
  }
  fclose(file);
  return n_digits % 2 ? 0 : n_digits / 2;
}

#endif
