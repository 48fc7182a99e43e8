#include "worker/tools/lines.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/source.h"
#include "config.h"

#ifdef HAVE_LZMA
#include <lzma.h>
#endif

enum { INPUT_BYTES = 1 << 16 };

struct zps_tools_lines {
  FILE *file;
  char *path;
  struct zps_source source;
  uint64_t number;
  char *buf; /* [start, end) is text not yet handed out */
  size_t cap, start, end;
  uint64_t at, stop; /* in the file: where the next line begins; none is handed out that begins at `stop` or behind */
  bool eof;
#ifdef HAVE_LZMA
  bool xz;
  lzma_stream stream;
  uint8_t input[INPUT_BYTES];
#endif
};

static bool has_suffix(const char *text, const char *suffix) {
  const size_t n = strlen(text), k = strlen(suffix);
  return n >= k && strcmp(text + n - k, suffix) == 0;
}

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
  code = zps_source_init(&lines->source, fileno(lines->file), lines->path, has_suffix(path, ".xz"), error);
  if (code != ZPS_OK) goto err_close;
  if (has_suffix(path, ".xz")) {
#ifdef HAVE_LZMA
    lines->xz = true;
    if (lzma_stream_decoder(&lines->stream, UINT64_MAX, LZMA_CONCATENATED) != LZMA_OK) {
      code = zps_fail(error, ZPS_ERR_NOMEM, "cannot start the xz decoder for %s", path);
      goto err_close;
    }
#else
    code = zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s: this build has no liblzma; give an uncompressed file", path);
    goto err_close;
#endif
  }
  *lines_p = lines;
  return ZPS_OK;

err_close:
  zps_tools_lines_close(lines);
  return code;
}

void zps_tools_lines_close(struct zps_tools_lines *lines) {
  if (!lines) return;
#ifdef HAVE_LZMA
  if (lines->xz) lzma_end(&lines->stream);
#endif
  if (lines->file) fclose(lines->file);
  free(lines->buf);
  free(lines->path);
  free(lines);
}

static zps_err_t read_plain(struct zps_tools_lines *lines, uint8_t *out, size_t room, size_t *got_p,
                            struct zps_error *error) {
  *got_p = fread(out, 1, room, lines->file);
  if (*got_p < room) {
    if (ferror(lines->file)) return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot read %s", lines->path);
    lines->eof = true;
  }
  return ZPS_OK;
}

#ifdef HAVE_LZMA
static zps_err_t read_xz(struct zps_tools_lines *lines, uint8_t *out, size_t room, size_t *got_p,
                         struct zps_error *error) {
  lzma_stream *stream = &lines->stream;
  stream->next_out = out;
  stream->avail_out = room;
  while (stream->avail_out > 0 && !lines->eof) {
    if (stream->avail_in == 0 && !feof(lines->file)) {
      stream->next_in = lines->input;
      stream->avail_in = fread(lines->input, 1, sizeof lines->input, lines->file);
      if (ferror(lines->file)) return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot read %s", lines->path);
    }
    const lzma_ret ret = lzma_code(stream, feof(lines->file) ? LZMA_FINISH : LZMA_RUN);
    if (ret == LZMA_STREAM_END) {
      lines->eof = true;
    } else if (ret != LZMA_OK) {
      return zps_fail(error, ZPS_ERR_IO, "%s is not a whole xz file (decoder status %d)", lines->path, (int)ret);
    }
  }
  *got_p = room - stream->avail_out;
  return ZPS_OK;
}
#endif

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
  uint8_t *out = (uint8_t *)lines->buf + lines->end;
  const size_t room = lines->cap - lines->end - 1; /* one byte stays for the NUL of a last line without newline */
  size_t got = 0;
#ifdef HAVE_LZMA
  const zps_err_t code = lines->xz ? read_xz(lines, out, room, &got, error) : read_plain(lines, out, room, &got, error);
#else
  const zps_err_t code = read_plain(lines, out, room, &got, error);
#endif
  lines->end += got;
  return code == ZPS_OK ? zps_source_add(&lines->source, got, error) : code;
}

zps_err_t zps_tools_lines_next(struct zps_tools_lines *lines, char **line_p, size_t *len_p, struct zps_error *error) {
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

zps_err_t zps_tools_lines_part(struct zps_tools_lines *lines, uint64_t part, uint64_t n_parts,
                               struct zps_error *error) {
  struct stat file;
  if (has_suffix(lines->path, ".xz") || fstat(fileno(lines->file), &file) != 0 || !S_ISREG(file.st_mode))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s is compressed or no plain file: it cannot be read in parts",
                    lines->path);
  const uint64_t size = (uint64_t)file.st_size, begin = size / n_parts * part + size % n_parts * part / n_parts;
  const uint64_t next = part + 1;
  lines->stop = size / n_parts * next + size % n_parts * next / n_parts;
  if (begin == 0) return ZPS_OK;
  /* From one byte before: a line that begins at `begin` follows a newline there, which ends a line of the last part. */
  if (fseeko(lines->file, (off_t)begin - 1, SEEK_SET) != 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot seek in %s", lines->path);
  lines->at = begin - 1;
  char *line;
  size_t len;
  const zps_err_t code = zps_tools_lines_next(lines, &line, &len, error);
  lines->number = 0;
  return code == ZPS_ERR_CLOSED ? ZPS_OK : code;
}

uint64_t zps_tools_lines_number(const struct zps_tools_lines *lines) {
  return lines->number;
}
