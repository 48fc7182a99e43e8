#include "worker/tools/lines.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "common/base/source.h"
#include "config.h"

#ifdef HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

enum { INPUT_BYTES = 1 << 16 };

struct zps_tools_lines {
  FILE *file;
  char *path;
  struct zps_source source;
  struct unpack *unpack;
  uint64_t number;
  char *buf; /* [start, end) is text not yet handed out */
  size_t cap, start, end;
  uint64_t at, stop; /* in the file: where the next line begins; none is handed out that begins at `stop` or behind */
  bool eof;
};

/* ------------------------------------------------------------ files that are decompressed, as far as the build can */

enum { GZIP_WINDOW = 16 + 15 /* a gzip header, and the largest window */ };

enum packing { PLAIN, XZ, GZ };

struct unpack {
  FILE *file;
  const char *path;
  enum packing packing;
#ifdef HAVE_LZMA
  lzma_stream xz;
#endif
#ifdef HAVE_ZLIB
  z_stream gz;
  bool gz_has_ended; /* its member, of which a file may have several */
#endif
  uint8_t input[INPUT_BYTES];
};

static enum packing packing_of(const char *path) {
  const char *const suffix = strrchr(path, '.');
  if (suffix && strcmp(suffix, ".xz") == 0) return XZ;
  return suffix && strcmp(suffix, ".gz") == 0 ? GZ : PLAIN;
}

/* Whether the name is that of a compressed file. */
static bool is_packed(const char *path) {
  return packing_of(path) != PLAIN;
}

static zps_err_t begin(struct unpack *unpack, struct zps_error *error) {
  switch (unpack->packing) {
    case PLAIN:
      return ZPS_OK;
    case XZ:
#ifdef HAVE_LZMA
      if (lzma_stream_decoder(&unpack->xz, UINT64_MAX, LZMA_CONCATENATED) == LZMA_OK) return ZPS_OK;
      return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for the xz decoder of %s", unpack->path);
#else
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s: this build has no liblzma; give an uncompressed file",
                      unpack->path);
#endif
    default:
#ifdef HAVE_ZLIB
      if (inflateInit2(&unpack->gz, GZIP_WINDOW) == Z_OK) return ZPS_OK;
      return zps_fail(error, ZPS_ERR_NOMEM, "out of memory for the gzip decoder of %s", unpack->path);
#else
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s: this build has no zlib; give an uncompressed file",
                      unpack->path);
#endif
  }
}

/* `file` and `path` stay the caller's and must outlive the object. ZPS_ERR_UNSUPPORTED: this build lacks the
 * decompressor. */
static zps_err_t unpack_create(FILE *file, const char *path, struct unpack **unpack_p, struct zps_error *error) {
  struct unpack *const unpack = calloc(1, sizeof *unpack);
  if (!unpack) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory opening %s", path);
  unpack->file = file;
  unpack->path = path;
  unpack->packing = packing_of(path);
  const zps_err_t err = begin(unpack, error);
  if (err)
    free(unpack); /* no decoder has begun */
  else
    *unpack_p = unpack;
  return err;
}

/* NULL is allowed */
static void unpack_destroy(struct unpack *unpack) {
  if (!unpack) return;
#ifdef HAVE_LZMA
  if (unpack->packing == XZ) lzma_end(&unpack->xz);
#endif
#ifdef HAVE_ZLIB
  if (unpack->packing == GZ) inflateEnd(&unpack->gz);
#endif
  free(unpack);
}

static zps_err_t read_file(struct unpack *unpack, void *out, size_t room, size_t *got_p, struct zps_error *error) {
  *got_p = fread(out, 1, room, unpack->file);
  if (!ferror(unpack->file)) return ZPS_OK;
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot read %s", unpack->path);
}

#ifdef HAVE_LZMA
static zps_err_t read_xz(struct unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
                         struct zps_error *error) {
  lzma_stream *const stream = &unpack->xz;
  stream->next_out = out;
  stream->avail_out = room;
  while (stream->avail_out > 0 && !*end_p) {
    if (stream->avail_in == 0 && !feof(unpack->file)) {
      const zps_err_t err = read_file(unpack, unpack->input, INPUT_BYTES, &stream->avail_in, error);
      if (err) return err;
      stream->next_in = unpack->input;
    }
    const lzma_ret ret = lzma_code(stream, feof(unpack->file) ? LZMA_FINISH : LZMA_RUN);
    *end_p = ret == LZMA_STREAM_END;
    if (ret != LZMA_OK && ret != LZMA_STREAM_END)
      return zps_fail(error, ZPS_ERR_IO, "%s is not a whole xz file (decoder status %d)", unpack->path, (int)ret);
  }
  *got_p = room - stream->avail_out;
  return ZPS_OK;
}
#endif

#ifdef HAVE_ZLIB
static zps_err_t read_gz(struct unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
                         struct zps_error *error) {
  z_stream *const stream = &unpack->gz;
  stream->next_out = out;
  stream->avail_out = (uInt)(room < INPUT_BYTES ? room : INPUT_BYTES);
  const size_t asked = stream->avail_out;
  while (stream->avail_out > 0) {
    if (stream->avail_in == 0) {
      size_t got = 0;
      const zps_err_t err = read_file(unpack, unpack->input, INPUT_BYTES, &got, error);
      if (err) return err;
      stream->next_in = unpack->input;
      stream->avail_in = (uInt)got;
      *end_p = got == 0;
      if (*end_p && !unpack->gz_has_ended)
        return zps_fail(error, ZPS_ERR_IO, "%s is not a whole gzip file: it ends too early", unpack->path);
      if (*end_p) break;
    }
    /* Another member follows the last one. */
    if (unpack->gz_has_ended && inflateReset(stream) != Z_OK) return ZPS_ERR_INTERNAL;
    unpack->gz_has_ended = false;
    const int status = inflate(stream, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END)
      return zps_fail(error, ZPS_ERR_IO, "%s is not a whole gzip file: %s", unpack->path,
                      stream->msg ? stream->msg : "its data are damaged");
    unpack->gz_has_ended = status == Z_STREAM_END;
  }
  *got_p = asked - stream->avail_out;
  return ZPS_OK;
}
#endif

/* Up to `room` bytes; *end_p becomes true with the last of them. ZPS_ERR_IO: the file cannot be read, or is damaged. */
static zps_err_t unpack_read(struct unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
                             struct zps_error *error) {
  *end_p = false;
  *got_p = 0;
  switch (unpack->packing) {
#ifdef HAVE_LZMA
    case XZ:
      return read_xz(unpack, out, room, got_p, end_p, error);
#endif
#ifdef HAVE_ZLIB
    case GZ:
      return read_gz(unpack, out, room, got_p, end_p, error);
#endif
    default: {
      const zps_err_t err = read_file(unpack, out, room, got_p, error);
      *end_p = *got_p < room;
      return err;
    }
  }
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
  code = zps_source_init(&lines->source, fileno(lines->file), lines->path, is_packed(path), error);
  if (code == ZPS_OK) code = unpack_create(lines->file, lines->path, &lines->unpack, error);
  if (code != ZPS_OK) goto err_close;
  *lines_p = lines;
  return ZPS_OK;

err_close:
  zps_tools_lines_close(lines);
  return code;
}

void zps_tools_lines_close(struct zps_tools_lines *lines) {
  if (!lines) return;
  unpack_destroy(lines->unpack);
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
  const zps_err_t code = unpack_read(lines->unpack, lines->buf + lines->end, room, &got, &lines->eof, error);
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
  if (is_packed(lines->path) || fstat(fileno(lines->file), &file) != 0 || !S_ISREG(file.st_mode))
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
