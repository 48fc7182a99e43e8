#include "worker/tools/lines.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/source.h"
#include "worker/tools/unpack.h"

enum { INPUT_BYTES = 1 << 16 };

struct zps_tools_lines {
  FILE *file;
  char *path;
  struct zps_source source;
  struct zps_tools_unpack *unpack;
  uint64_t number;
  char *buf; /* [start, end) is text not yet handed out */
  size_t cap, start, end;
  uint64_t at, stop; /* in the file: where the next line begins; none is handed out that begins at `stop` or behind */
  bool eof;
};

zps_err_t zps_tools_lines_open(const char *path, struct zps_tools_lines **lines_p, struct zps_error *error) {
  struct zps_tools_lines *lines = calloc(1, sizeof *lines);
  if (!lines) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory opening %s", path);
  zps_err_t code = ZPS_ERR_NOMEM;
  lines->path = strdup(path);
  lines->cap = INPUT_BYTES;
  lines->stop = UINT64_MAX;
  lines->buf = malloc(lines->cap);
  if (!lines->path || !lines->buf) {
    zps_fail(error, code, "out of memory opening %s", path);
    goto err_close;
  }
  lines->file = fopen(path, "rb");
  if (!lines->file) {
    code = zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot open %s", path);
    goto err_close;
  }
  code = zps_source_init(&lines->source, fileno(lines->file), lines->path, zps_tools_unpack_wanted(path), error);
  if (code == ZPS_OK) code = zps_tools_unpack_create(lines->file, lines->path, &lines->unpack, error);
  if (code != ZPS_OK) goto err_close;
  *lines_p = lines;
  return ZPS_OK;

err_close:
  zps_tools_lines_close(lines);
  return code;
}

void zps_tools_lines_close(struct zps_tools_lines *lines) {
  if (!lines) return;
  zps_tools_unpack_destroy(lines->unpack);
  if (lines->file) fclose(lines->file);
  free(lines->buf);
  free(lines->path);
  free(lines);
}

static const char mark[3] = "\xef\xbb\xbf"; /* U+FEFF in UTF-8 */

/* Reads more text behind `end`, making room first. */
static zps_err_t fill(struct zps_tools_lines *lines, struct zps_error *error) {
  if (lines->start > 0) {
    memmove(lines->buf, lines->buf + lines->start, lines->end - lines->start);
    lines->end -= lines->start;
    lines->start = 0;
  }
  if (lines->end + 1 >= lines->cap && lines->cap >= ZPS_SOURCE_LINE_MAX)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%s, line %llu: goes on after %zu bytes: must be text in lines, each shorter", lines->path,
                    (unsigned long long)lines->number + 1, lines->end);
  if (lines->end + 1 >= lines->cap) {
    char *grown = realloc(lines->buf, lines->cap * 2);
    if (!grown)
      return zps_fail(error, ZPS_ERR_NOMEM, "out of memory: line %llu of %s has over %zu bytes",
                      (unsigned long long)lines->number + 1, lines->path, lines->cap);
    lines->buf = grown;
    lines->cap *= 2;
  }
  const size_t room = lines->cap - lines->end - 1; /* one byte stays for the NUL of a last line without newline */
  size_t got = 0;
  const zps_err_t code = zps_tools_unpack_read(lines->unpack, lines->buf + lines->end, room, &got, &lines->eof, error);
  const bool is_first = lines->source.n_bytes == 0 && lines->at == 0;
  lines->end += got;
  /* A UTF-8 mark at the file's begin is no text. */
  if (code == ZPS_OK && is_first && got >= sizeof mark && memcmp(lines->buf, mark, sizeof mark) == 0) {
    lines->start = sizeof mark;
    lines->at = sizeof mark;
  }
  return code == ZPS_OK ? zps_source_add(&lines->source, got, error) : code;
}

/* The next line, whatever its bytes are. */
static zps_err_t next(struct zps_tools_lines *lines, char **line_p, size_t *len_p, struct zps_error *error) {
  size_t scanned = 0;
  if (lines->at >= lines->stop) return ZPS_ERR_CLOSED;
  for (;;) {
    char *line = lines->buf + lines->start;
    char *newline = memchr(line + scanned, '\n', lines->end - lines->start - scanned);
    size_t len = newline ? (size_t)(newline - line) : lines->end - lines->start;
    if (newline || (lines->eof && len > 0)) {
      lines->start += len + (newline ? 1 : 0);
      lines->at += len + (newline ? 1 : 0);
      line[len] = '\0';
      if (len > 0 && line[len - 1] == '\r') line[--len] = '\0';
      lines->number++;
      *line_p = line;
      *len_p = len;
      return ZPS_OK;
    }
    if (lines->eof) return ZPS_ERR_CLOSED;
    scanned = len;
    const zps_err_t code = fill(lines, error);
    if (code != ZPS_OK) return code;
  }
}

zps_err_t zps_tools_lines_next(struct zps_tools_lines *lines, char **line_p, size_t *len_p, struct zps_error *error) {
  const zps_err_t code = next(lines, line_p, len_p, error);
  const char *const nul = code == ZPS_OK ? memchr(*line_p, '\0', *len_p) : NULL;
  if (!nul) return code;
  return zps_fail(error, ZPS_ERR_INVALID, "%s, line %llu, column %zu: a NUL byte; must be text (UTF-8) without any",
                  lines->path, (unsigned long long)lines->number, (size_t)(nul - *line_p) + 1);
}

zps_err_t zps_tools_lines_count(struct zps_tools_lines *lines, uint64_t *n_p, struct zps_error *error) {
  char *line;
  size_t len;
  zps_err_t code;
  for (*n_p = 0; (code = next(lines, &line, &len, error)) == ZPS_OK; ++*n_p) continue;
  return code == ZPS_ERR_CLOSED ? ZPS_OK : code;
}

zps_err_t zps_tools_lines_part(struct zps_tools_lines *lines, uint64_t part, uint64_t n_parts,
                               struct zps_error *error) {
  struct stat file;
  if (zps_tools_unpack_wanted(lines->path) || fstat(fileno(lines->file), &file) != 0 || !S_ISREG(file.st_mode))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s is compressed or no plain file: it cannot be read in parts",
                    lines->path);
  const uint64_t size = (uint64_t)file.st_size, begin = size / n_parts * part + size % n_parts * part / n_parts;
  const uint64_t past = part + 1;
  lines->stop = size / n_parts * past + size % n_parts * past / n_parts;
  if (begin == 0) return ZPS_OK;
  /* From one byte before: a line that begins at `begin` follows a newline there, which ends a line of the last part. */
  if (fseeko(lines->file, (off_t)begin - 1, SEEK_SET) != 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot seek in %s", lines->path);
  lines->at = begin - 1;
  char *line;
  size_t len;
  const zps_err_t code = next(lines, &line, &len, error);
  lines->number = 0;
  return code == ZPS_ERR_CLOSED ? ZPS_OK : code;
}

void zps_tools_lines_number_from(struct zps_tools_lines *lines, uint64_t before) {
  lines->number = before;
}

uint64_t zps_tools_lines_number(const struct zps_tools_lines *lines) {
  return lines->number;
}
