#include "common/control/lines.h"

#include <stdlib.h>
#include <string.h>

enum { MIN_ROOM = 4096 };

void zps_lines_init(struct zps_lines *lines, size_t limit) {
  *lines = (struct zps_lines){.limit = limit};
}

void zps_lines_fini(struct zps_lines *lines) {
  free(lines->buf);
  *lines = (struct zps_lines){0};
}

char *zps_lines_room(struct zps_lines *lines, size_t *room_p) {
  const size_t kept = lines->end - lines->start;
  if (kept && lines->start) {
    memmove(lines->buf, lines->buf + lines->start, kept);
  }
  lines->scanned -= lines->start;
  lines->start = 0;
  lines->end = kept;
  if (lines->cap - kept < MIN_ROOM) {
    const size_t cap = lines->cap ? 2 * lines->cap : 4 * MIN_ROOM;
    char *buf = realloc(lines->buf, cap);
    if (!buf) return NULL;
    lines->buf = buf;
    lines->cap = cap;
  }
  *room_p = lines->cap - kept;
  return lines->buf + kept;
}

void zps_lines_settle(struct zps_lines *lines) {
  if (lines->start < lines->end) return;
  free(lines->buf);
  zps_lines_init(lines, lines->limit);
}

void zps_lines_added(struct zps_lines *lines, size_t n_bytes) {
  lines->end += n_bytes;
}

zps_err_t zps_lines_next(struct zps_lines *lines, const char **line_p, size_t *len_p) {
  if (lines->scanned == lines->end && lines->end - lines->start <= lines->limit) return ZPS_ERR_AGAIN;
  const char *from = lines->buf + lines->scanned;
  const char *newline = memchr(from, '\n', lines->end - lines->scanned);
  const size_t stop = newline ? (size_t)(newline - lines->buf) : lines->end;
  size_t len = stop - lines->start;
  if (len > lines->limit) return ZPS_ERR_PROTOCOL;
  if (!newline) {
    lines->scanned = lines->end;
    return ZPS_ERR_AGAIN;
  }
  *line_p = lines->buf + lines->start;
  lines->start = lines->scanned = stop + 1;
  *len_p = len && (*line_p)[len - 1] == '\r' ? len - 1 : len;
  return ZPS_OK;
}
