#include "server/state/journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 16u
#define HEAD_MAX (DIGITS + 1 + 20 + 1)

/* CRC-64 of ECMA-182, as of xz: four bits at a time. */
static uint64_t checksum(const char *data, size_t len) {
  static const uint64_t table[16] = {
      0x0000000000000000u, 0x7d9ba13851336649u, 0xfb374270a266cc92u, 0x86ace348f355aadbu,
      0x64b62bcaebc387a1u, 0x192d8af2baf0e1e8u, 0x9f8169ba49a54b33u, 0xe21ac88218962d7au,
      0xc96c5795d7870f42u, 0xb4f7f6ad86b4690bu, 0x325b15e575e1c3d0u, 0x4fc0b4dd24d2a599u,
      0xadda7c5f3c4488e3u, 0xd041dd676d77eeaau, 0x56ed3e2f9e224471u, 0x2b769f17cf112238u};
  uint64_t sum = ~UINT64_C(0);
  for (size_t i = 0; i < len; i++) {
    sum ^= (unsigned char)data[i];
    sum = sum >> 4 ^ table[sum & 15];
    sum = sum >> 4 ^ table[sum & 15];
  }
  return ~sum;
}

/* ------------------------------------------------------------ writing */

static zps_err_t reserve(struct zps_journal_buffer *buffer, size_t more) {
  size_t cap = buffer->cap ? buffer->cap : 4096;
  while (cap - buffer->len < more) {
    if (cap > SIZE_MAX / 2) return ZPS_ERR_NOMEM;
    cap *= 2;
  }
  if (cap == buffer->cap) return ZPS_OK;
  char *const grown = realloc(buffer->data, cap);
  if (!grown) return ZPS_ERR_NOMEM;
  buffer->data = grown;
  buffer->cap = cap;
  return ZPS_OK;
}

zps_err_t zps_journal_add(struct zps_journal_buffer *buffer, const char *text, size_t len) {
  if (len > SIZE_MAX / 4 || reserve(buffer, HEAD_MAX + len + 2)) return ZPS_ERR_NOMEM;
  char *const at = buffer->data + buffer->len;
  const size_t head = (size_t)snprintf(at + DIGITS + 1, HEAD_MAX - DIGITS, "%zu ", len);
  char digits[DIGITS + 1];
  memcpy(at + DIGITS + 1 + head, text, len);
  snprintf(digits, sizeof digits, "%016" PRIx64, checksum(at + DIGITS + 1, head + len));
  memcpy(at, digits, DIGITS);
  at[DIGITS] = ' ';
  at[DIGITS + 1 + head + len] = '\n';
  buffer->len += DIGITS + 1 + head + len + 1;
  return ZPS_OK;
}

/* ------------------------------------------------------------ reading */

struct record {
  size_t text, len, end; /* end: of the line */
};

static int hex_of(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_record(const char *data, size_t len, size_t at, struct record *record) {
  uint64_t sum = 0;
  size_t n = 0, i = at + DIGITS;
  if (len - at < DIGITS + 4 || data[i] != ' ') return false;
  for (size_t d = 0; d < DIGITS; d++) {
    const int digit = hex_of(data[at + d]);
    if (digit < 0) return false;
    sum = sum << 4 | (uint64_t)digit;
  }
  const size_t summed = ++i;
  for (; i < len && data[i] >= '0' && data[i] <= '9'; i++) {
    if (n > len) return false;
    n = 10 * n + (size_t)(data[i] - '0');
  }
  if (i == summed || i >= len || data[i] != ' ') return false;
  i++;
  if (n >= len - i || data[i + n] != '\n') return false;
  if (checksum(data + summed, i + n - summed) != sum) return false;
  *record = (struct record){.text = i, .len = n, .end = i + n + 1};
  return true;
}

/* At every byte: the end of the damaged record's line may be what is damaged. */
static void look_behind(const char *data, size_t len, struct zps_journal_scan *scan) {
  struct record record;
  scan->next = len;
  for (size_t at = scan->whole + 1; at < len;) {
    if (!read_record(data, len, at, &record)) {
      at++;
      continue;
    }
    if (scan->n_after++ == 0) scan->next = at;
    at = record.end;
  }
}

zps_err_t zps_journal_scan(char *data, size_t len, zps_journal_take_fn *take, void *ctx,
                           struct zps_journal_scan *scan) {
  struct record record;
  *scan = (struct zps_journal_scan){.next = len};
  while (scan->whole < len && read_record(data, len, scan->whole, &record)) {
    const size_t end = record.text + record.len;
    const char was = data[end];
    data[end] = '\0';
    const zps_err_t err = take ? take(ctx, data + record.text, record.len) : ZPS_OK;
    data[end] = was;
    if (err) return err;
    scan->whole = record.end;
    scan->n_records++;
  }
  look_behind(data, len, scan);
  scan->damaged = scan->n_after > 0 || (scan->whole == 0 && len > 0);
  return ZPS_OK;
}
