#include "worker/tools/unpack.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"

#ifdef HAVE_LZMA
#include <lzma.h>
#endif
#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

enum { INPUT_BYTES = 1 << 16, GZIP_WINDOW = 16 + 15 /* a gzip header, and the largest window */ };

enum packing { PLAIN, XZ, GZ };

struct zps_tools_unpack {
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

bool zps_tools_unpack_wanted(const char *path) {
  return packing_of(path) != PLAIN;
}

static zps_err_t begin(struct zps_tools_unpack *unpack, struct zps_error *error) {
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

zps_err_t zps_tools_unpack_create(FILE *file, const char *path, struct zps_tools_unpack **unpack_p,
                                  struct zps_error *error) {
  struct zps_tools_unpack *const unpack = calloc(1, sizeof *unpack);
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

void zps_tools_unpack_destroy(struct zps_tools_unpack *unpack) {
  if (!unpack) return;
#ifdef HAVE_LZMA
  if (unpack->packing == XZ) lzma_end(&unpack->xz);
#endif
#ifdef HAVE_ZLIB
  if (unpack->packing == GZ) inflateEnd(&unpack->gz);
#endif
  free(unpack);
}

static zps_err_t read_file(struct zps_tools_unpack *unpack, void *out, size_t room, size_t *got_p,
                           struct zps_error *error) {
  *got_p = fread(out, 1, room, unpack->file);
  if (!ferror(unpack->file)) return ZPS_OK;
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot read %s", unpack->path);
}

#ifdef HAVE_LZMA
static zps_err_t read_xz(struct zps_tools_unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
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
static zps_err_t read_gz(struct zps_tools_unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
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

zps_err_t zps_tools_unpack_read(struct zps_tools_unpack *unpack, void *out, size_t room, size_t *got_p, bool *end_p,
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
