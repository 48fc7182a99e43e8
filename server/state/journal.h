/*
 * The form of a journal: records, one a line, each a text (JSON, to those who use it) with its length and a CRC-64 of
 * both in front:
 *
 *   <16 hexadecimal digits> <length> <text>\n
 *
 * A process that dies while it writes leaves a torn tail: bytes behind the last whole record, with no whole one among
 * them. Nothing depends on it yet, since nobody is told what is not on disk; it is cut off. A damaged record with whole
 * ones behind it is no torn tail: what it said was told, and is lost. So is a first record, which is never written
 * alone.
 */
#ifndef ZPS_SERVER_STATE_JOURNAL_H
#define ZPS_SERVER_STATE_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Adds a record to a buffer, which is enlarged as needed. */
struct zps_journal_buffer {
  char *data;
  size_t len, cap;
};
zps_err_t zps_journal_add(struct zps_journal_buffer *buffer, const char *text, size_t len) ZPS_MUSTCHECK;

struct zps_journal_scan {
  uint64_t n_records;
  size_t whole;     /* bytes of the whole records at the beginning */
  bool damaged;     /* the rest is more than a torn tail */
  size_t next;      /* where the next whole record begins; the journal's length: there is none */
  uint64_t n_after; /* whole records from there on */
};
/* Takes a record; another code than ZPS_OK ends the scan. `text` ends in NUL for the length of the call. */
typedef zps_err_t zps_journal_take_fn(void *ctx, const char *text, size_t len);
/* Hands the whole records at the beginning to `take` (NULL: to nobody) and looks at what is behind them. `data`, which
 * has room for one more byte than `len`, is as before afterwards. */
zps_err_t zps_journal_scan(char *data, size_t len, zps_journal_take_fn *take, void *ctx,
                           struct zps_journal_scan *scan) ZPS_MUSTCHECK;

#endif
