#include "proto/wire.h"

#include <string.h>

#include "common/base/text.h"
#include "proto/wire_impl.h"
#include "proto/zenps.pb-c.h"

/* Byte offsets of a long header, PROTOCOL.md "Header". */
enum {
  AT_MAGIC = 0,
  AT_VERSION = 4,
  AT_TYPE = 6,
  AT_FLAGS = 7,
  AT_JOB = 8,
  AT_EPOCH = 16,
  AT_SRC = 20,
  AT_SEQ = 24,
  AT_CREDITS = 28,
  AT_TAG = 30,
};

/* A short header's first byte has the top bit, which the magic has not, then version and type. */
enum {
  SHORT = 128,
  SHORT_VERSION_SHIFT = 4,
  SHORT_VERSION = 7,
  SHORT_TYPE = 15,
  SHORT_AT_SEQ = 1,
  SHORT_AT_CREDITS = 2,
  SHORT_AT_TAG = 3,
};
_Static_assert(ZPS_WIRE_VERSION <= SHORT_VERSION, "the version fits a short header");

/* Sizes of an abort's fields: a tag byte and a value of 4 or 8 bytes each. */
enum { ABORT_BYTES = 5 + 9 + 5 };

static void put(uint8_t *at, uint64_t value, unsigned n_bytes) {
  for (unsigned i = 0; i < n_bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, unsigned n_bytes) {
  uint64_t value = 0;
  for (unsigned i = 0; i < n_bytes; i++) value |= (uint64_t)at[i] << (8 * i);
  return value;
}

static size_t delimited_bytes(size_t len) {
  return 1 + (len < 128 ? 1 : 2) + len;
} /* tag, varint length, bytes */

static size_t abort_bytes(unsigned n_ranks, size_t text_len) {
  return ABORT_BYTES + (n_ranks ? delimited_bytes(4u * n_ranks) : 0) + delimited_bytes(text_len);
}

/* Whether this is the number of one of err.h's errors. */
static bool is_error(zps_err_t code) {
  return code != ZPS_OK && strcmp(zps_err_name(code), "ERR_?") != 0;
}

const char *zps_frame_type_name(uint8_t type) {
  static const char *const names[UINT8_MAX + 1] = {
      [ZPS_FRAME_PUSH] = "PUSH",     [ZPS_FRAME_RESULT] = "RESULT", [ZPS_FRAME_DONE] = "DONE",
      [ZPS_FRAME_ABORT] = "ABORT",   [ZPS_FRAME_CREDIT] = "CREDIT", [ZPS_FRAME_PEER] = "PEER",
      [ZPS_FRAME_GIVE] = "GIVE",     [ZPS_FRAME_PULL] = "PULL",     [ZPS_FRAME_TAKEN] = "TAKEN",
      [ZPS_FRAME_SEEK] = "SEEK",     [ZPS_FRAME_FOUND] = "FOUND",   [ZPS_FRAME_MISSED] = "MISSED",
      [ZPS_FRAME_RESUME] = "RESUME", [ZPS_FRAME_CLOSED] = "CLOSED"};
  return names[type] ? names[type] : "?";
}

void zps_wire_stamp(void *buf, uint32_t seq, uint16_t credits) {
  uint8_t *out = buf;
  const bool is_short = out[0] & SHORT;
  put(out + (is_short ? SHORT_AT_SEQ : AT_SEQ), seq, is_short ? 1 : 4);
  put(out + (is_short ? SHORT_AT_CREDITS : AT_CREDITS), credits, is_short ? 1 : 2);
}

/* ---- Encoding ---- */

static size_t header_bytes(const struct zps_frame_header *header) {
  return header->is_short ? SHORT_AT_TAG + zps_varint_bytes(header->tag) : ZPS_WIRE_LONG_BYTES;
}

static uint8_t *put_header(const struct zps_frame_header *header, uint8_t *out) {
  if (header->is_short) {
    out[0] = (uint8_t)(SHORT | ZPS_WIRE_VERSION << SHORT_VERSION_SHIFT | header->type);
    zps_wire_stamp(out, header->seq, header->credits);
    return zps_varint_put(out + SHORT_AT_TAG, header->tag);
  }
  put(out + AT_MAGIC, ZPS_WIRE_MAGIC, 4);
  put(out + AT_VERSION, ZPS_WIRE_VERSION, 2);
  out[AT_TYPE] = header->type;
  out[AT_FLAGS] = 0;
  put(out + AT_JOB, header->job, 8);
  put(out + AT_EPOCH, header->epoch, 4);
  put(out + AT_SRC, header->src, 4);
  put(out + AT_TAG, header->tag, 4);
  zps_wire_stamp(out, header->seq, header->credits);
  return out + ZPS_WIRE_LONG_BYTES;
}

/* The frame's body is `u.round` (wire_round.c). */
static bool has_round(const struct zps_frame *frame) {
  const uint32_t types = 1u << ZPS_FRAME_PUSH | 1u << ZPS_FRAME_RESULT | 1u << ZPS_FRAME_PEER | 1u << ZPS_FRAME_GIVE |
                         1u << ZPS_FRAME_PULL | 1u << ZPS_FRAME_SEEK | 1u << ZPS_FRAME_FOUND;
  return frame->header.type < 32 && types >> frame->header.type & 1;
}

/* SIZE_MAX: it may not be encoded. */
static size_t body_bytes(const struct zps_frame *frame) {
  if (has_round(frame)) return zps_wire_round_bytes(&frame->u.round, frame->header.type);
  switch (frame->header.type) {
    case ZPS_FRAME_DONE:
    case ZPS_FRAME_TAKEN:
      return zps_varint_bytes(frame->u.done.tensor) + zps_varint_bytes(frame->u.done.step);
    case ZPS_FRAME_ABORT:
    case ZPS_FRAME_MISSED: {
      const struct zps_frame_abort *abort = &frame->u.abort;
      const size_t text_len = strnlen(abort->text, sizeof abort->text);
      const bool fits = abort->n_ranks <= ZPS_WIRE_RANKS_MAX && text_len <= ZPS_WIRE_TEXT_MAX;
      const bool is_missed = frame->header.type == ZPS_FRAME_MISSED;
      if (!fits || !is_error(abort->code) || (abort->seek && !is_missed)) return SIZE_MAX;
      return abort_bytes(abort->n_ranks, text_len) + (is_missed ? zps_varint_bytes(abort->seek) : 0);
    }
    case ZPS_FRAME_CLOSED: {
      const struct zps_frame_closed *const closed = &frame->u.closed;
      const uint32_t n = closed->n_bytes;
      if (n > ZPS_WIRE_LATE_BYTES || (n > 0 && closed->late[n - 1] == 0)) return SIZE_MAX;
      return zps_varint_bytes(closed->tensor) + zps_varint_bytes(closed->step) + zps_varint_bytes(n) + n;
    }
    case ZPS_FRAME_CREDIT:
      return 0;
    case ZPS_FRAME_RESUME:
      if (frame->header.is_short) return SIZE_MAX;
      return zps_varint_bytes(frame->u.resume.expects) + zps_varint_bytes(frame->u.resume.answers) + 1 +
             zps_varint_bytes(frame->u.resume.early);
    default:
      return SIZE_MAX;
  }
}

static void put_abort(const struct zps_frame_abort *abort, uint8_t *at) {
  const size_t text_len = strlen(abort->text);
  char text[ZPS_WIRE_TEXT_MAX];
  uint32_t ranks[ZPS_WIRE_RANKS_MAX];
  memcpy(text, abort->text, text_len);
  memcpy(ranks, abort->ranks, abort->n_ranks * sizeof ranks[0]);
  zps_text_sanitize(text, text_len);
  Zenps__Abort body = ZENPS__ABORT__INIT;
  body.tensor = abort->tensor;
  body.step = abort->step;
  body.code = (int32_t)abort->code;
  body.n_ranks = abort->n_ranks;
  body.ranks = ranks;
  body.text.data = (uint8_t *)text;
  body.text.len = text_len;
  zenps__abort__pack(&body, at);
}

static void put_body(const struct zps_frame *frame, uint8_t *at) {
  if (has_round(frame)) zps_wire_round_put(&frame->u.round, frame->header.type, at);
  switch (frame->header.type) {
    case ZPS_FRAME_DONE:
    case ZPS_FRAME_TAKEN:
      zps_varint_put(zps_varint_put(at, frame->u.done.tensor), frame->u.done.step);
      break;
    case ZPS_FRAME_CLOSED:
      at = zps_varint_put(zps_varint_put(at, frame->u.closed.tensor), frame->u.closed.step);
      at = zps_varint_put(at, frame->u.closed.n_bytes);
      memcpy(at, frame->u.closed.late, frame->u.closed.n_bytes);
      break;
    case ZPS_FRAME_MISSED:
      at = zps_varint_put(at, frame->u.abort.seek);
      put_abort(&frame->u.abort, at);
      break;
    case ZPS_FRAME_ABORT:
      put_abort(&frame->u.abort, at);
      break;
    case ZPS_FRAME_RESUME:
      at = zps_varint_put(zps_varint_put(at, frame->u.resume.expects), frame->u.resume.answers);
      *at++ = frame->u.resume.asks;
      zps_varint_put(at, frame->u.resume.early);
      break;
    default:
      break;
  }
}

zps_err_t zps_wire_encode(const struct zps_frame *frame, void *buf, size_t cap, size_t *len_p) {
  const size_t header = header_bytes(&frame->header), body = body_bytes(frame);
  if (body == SIZE_MAX || header > cap || body > cap - header) return ZPS_ERR_INVALID;
  if (frame->header.is_short && frame->header.credits > UINT8_MAX) return ZPS_ERR_INVALID;
  put_body(frame, put_header(&frame->header, buf));
  *len_p = header + body;
  return ZPS_OK;
}

/* ---- Decoding ---- */

static zps_err_t get_done(struct zps_wire_reader *reader, struct zps_frame_done *done, struct zps_error *error) {
  uint64_t tensor;
  zps_err_t code = zps_wire_number(reader, "tensor", UINT32_MAX, &tensor, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "step", UINT64_MAX, &done->step, error);
  if (code == ZPS_OK) done->tensor = (uint32_t)tensor;
  return code;
}

/* Room for the objects that protobuf-c unpacks of the largest abort. Memory that runs out is a body that no peer of
 * ours wrote, and makes the unpacking fail. */
struct arena {
  size_t used;
  _Alignas(16) uint8_t bytes[8 << 10];
};

static void *arena_alloc(void *ctx, size_t size) {
  struct arena *arena = ctx;
  if (size > sizeof arena->bytes - arena->used) return NULL;
  void *at = arena->bytes + arena->used;
  const size_t left = sizeof arena->bytes - arena->used, rounded = (size + 15) & ~(size_t)15;
  arena->used += rounded < left ? rounded : left;
  return at;
}

static void arena_free(void *ctx, void *at) {
  (void)ctx;
  (void)at;
}

static zps_err_t bad_abort(const struct zps_wire_reader *reader, struct zps_error *error, size_t len,
                           const char *want) {
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, body of %zu bytes: %s", reader->type, len, want);
}

static zps_err_t get_abort(struct zps_wire_reader *reader, struct zps_frame_abort *abort, struct zps_error *error) {
  const size_t len = (size_t)(reader->end - reader->at);
  struct arena arena;
  arena.used = 0;
  ProtobufCAllocator allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = &arena};
  if (len > abort_bytes(ZPS_WIRE_RANKS_MAX, ZPS_WIRE_TEXT_MAX))
    return bad_abort(reader, error, len, "longer than 256 ranks and 400 bytes of text");
  const Zenps__Abort *body = zenps__abort__unpack(&allocator, len, reader->at);
  if (!body) return bad_abort(reader, error, len, "not the fields of ABORT");
  if (body->n_ranks > ZPS_WIRE_RANKS_MAX || body->text.len > ZPS_WIRE_TEXT_MAX)
    return bad_abort(reader, error, len, "more than 256 ranks or 400 bytes of text");
  if (len != abort_bytes((unsigned)body->n_ranks, body->text.len))
    return bad_abort(reader, error, len, "unknown, repeated or overlong fields");
  if (!is_error((zps_err_t)body->code))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: code %d is no error", reader->type, (int)body->code);
  const size_t printable = zps_text_printable((const char *)body->text.data, body->text.len);
  if (printable != body->text.len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: byte %zu of the text is not printable UTF-8", reader->type,
                    printable);
  abort->seek = 0;
  abort->tensor = body->tensor;
  abort->step = body->step;
  abort->code = (zps_err_t)body->code;
  abort->n_ranks = (uint32_t)body->n_ranks;
  if (body->n_ranks) memcpy(abort->ranks, body->ranks, body->n_ranks * sizeof abort->ranks[0]);
  if (body->text.len) memcpy(abort->text, body->text.data, body->text.len);
  abort->text[body->text.len] = '\0';
  reader->at = reader->end;
  return ZPS_OK;
}

static zps_err_t get_missed(struct zps_wire_reader *reader, struct zps_frame_abort *abort, struct zps_error *error) {
  uint64_t seek;
  zps_err_t code = zps_wire_number(reader, "seek", UINT32_MAX, &seek, error);
  if (code == ZPS_OK) code = get_abort(reader, abort, error);
  if (code == ZPS_OK) abort->seek = (uint32_t)seek;
  return code;
}

static zps_err_t get_closed(struct zps_wire_reader *reader, struct zps_frame_closed *closed, struct zps_error *error) {
  struct zps_frame_done head;
  uint64_t n;
  zps_err_t code = get_done(reader, &head, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "bytes of late ranks", ZPS_WIRE_LATE_BYTES, &n, error);
  if (code != ZPS_OK) return code;
  if (n > (size_t)(reader->end - reader->at))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: %llu bytes of late ranks, but %zu are left", reader->type,
                    (unsigned long long)n, (size_t)(reader->end - reader->at));
  if (n > 0 && reader->at[n - 1] == 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: the last byte of late ranks is 0: left out when 0",
                    reader->type);
  closed->tensor = head.tensor;
  closed->step = head.step;
  closed->n_bytes = (uint32_t)n;
  memcpy(closed->late, reader->at, n);
  reader->at += n;
  return ZPS_OK;
}

static zps_err_t get_resume(struct zps_wire_reader *reader, const struct zps_frame_header *header,
                            struct zps_frame_resume *resume, struct zps_error *error) {
  uint64_t expects, answers, asks, early;
  if (header->is_short)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame with a short header: it must be long", reader->type);
  zps_err_t code = zps_wire_number(reader, "expects", UINT32_MAX, &expects, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "answers", UINT32_MAX, &answers, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "asks", 1, &asks, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "early", UINT32_MAX, &early, error);
  if (code == ZPS_OK)
    *resume = (struct zps_frame_resume){
        .expects = (uint32_t)expects, .answers = (uint32_t)answers, .asks = asks != 0, .early = (uint32_t)early};
  return code;
}

static zps_err_t get_type(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_header *header,
                          struct zps_error *error) {
  if (type < ZPS_FRAME_PUSH || type > ZPS_FRAME_CLOSED)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of unknown type %u, want 1 to %u", type, ZPS_FRAME_CLOSED);
  header->type = type;
  reader->type = zps_frame_type_name(type);
  return ZPS_OK;
}

static zps_err_t check_version(unsigned version, struct zps_error *error) {
  if (version == ZPS_WIRE_VERSION) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_VERSION, "the peer's frame has protocol version %u, this side speaks version %u",
                  version, ZPS_WIRE_VERSION);
}

static zps_err_t get_short_header(struct zps_wire_reader *reader, struct zps_frame_header *header,
                                  struct zps_error *error) {
  const size_t len = (size_t)(reader->end - reader->at);
  const uint8_t *const in = reader->at;
  uint64_t tag;
  zps_err_t code = check_version(in[0] >> SHORT_VERSION_SHIFT & SHORT_VERSION, error);
  if (code != ZPS_OK) return code;
  if (len < ZPS_WIRE_SHORT_BYTES)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of %zu bytes: shorter than a short header, %u bytes", len,
                    ZPS_WIRE_SHORT_BYTES);
  code = get_type(reader, in[0] & SHORT_TYPE, header, error);
  if (code != ZPS_OK) return code;
  reader->at += SHORT_AT_TAG;
  code = zps_wire_number(reader, "tag", UINT32_MAX, &tag, error);
  if (code != ZPS_OK) return code;
  header->is_short = true;
  header->seq = in[SHORT_AT_SEQ];
  header->credits = in[SHORT_AT_CREDITS];
  header->tag = (uint32_t)tag;
  return ZPS_OK;
}

static zps_err_t get_long_header(struct zps_wire_reader *reader, struct zps_frame_header *header,
                                 struct zps_error *error) {
  const size_t len = (size_t)(reader->end - reader->at);
  const uint8_t *const in = reader->at;
  if (len < ZPS_WIRE_LONG_BYTES)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of %zu bytes: shorter than a header, %u bytes", len,
                    ZPS_WIRE_LONG_BYTES);
  if (get(in + AT_MAGIC, 4) != ZPS_WIRE_MAGIC)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame starts with 0x%08x, want 0x%08x: not a zenps peer",
                    (unsigned)get(in + AT_MAGIC, 4), ZPS_WIRE_MAGIC);
  zps_err_t code = check_version((unsigned)get(in + AT_VERSION, 2), error);
  if (code == ZPS_OK) code = get_type(reader, in[AT_TYPE], header, error);
  if (code != ZPS_OK) return code;
  if (in[AT_FLAGS])
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: unknown flags 0x%02x, want 0", reader->type, in[AT_FLAGS]);
  header->job = get(in + AT_JOB, 8);
  header->epoch = (uint32_t)get(in + AT_EPOCH, 4);
  header->src = (uint32_t)get(in + AT_SRC, 4);
  header->seq = (uint32_t)get(in + AT_SEQ, 4);
  header->credits = (uint16_t)get(in + AT_CREDITS, 2);
  header->tag = (uint32_t)get(in + AT_TAG, 4);
  reader->at += ZPS_WIRE_LONG_BYTES;
  return ZPS_OK;
}

static zps_err_t get_body(struct zps_wire_reader *reader, struct zps_frame *frame, struct zps_error *error) {
  if (has_round(frame)) return zps_wire_round_get(reader, frame->header.type, &frame->u.round, error);
  switch (frame->header.type) {
    case ZPS_FRAME_DONE:
    case ZPS_FRAME_TAKEN:
      return get_done(reader, &frame->u.done, error);
    case ZPS_FRAME_MISSED:
      return get_missed(reader, &frame->u.abort, error);
    case ZPS_FRAME_ABORT:
      return get_abort(reader, &frame->u.abort, error);
    case ZPS_FRAME_CLOSED:
      return get_closed(reader, &frame->u.closed, error);
    case ZPS_FRAME_RESUME:
      return get_resume(reader, &frame->header, &frame->u.resume, error);
    default:
      return ZPS_OK;
  }
}

static zps_err_t get_header(struct zps_wire_reader *reader, struct zps_frame_header *header, struct zps_error *error) {
  *header = (struct zps_frame_header){0};
  return reader->at < reader->end && *reader->at & SHORT ? get_short_header(reader, header, error)
                                                         : get_long_header(reader, header, error);
}

zps_err_t zps_wire_header(const void *buf, size_t len, struct zps_frame_header *header, struct zps_error *error) {
  struct zps_wire_reader reader = {.start = buf, .at = buf, .end = (const uint8_t *)buf + len};
  return get_header(&reader, header, error);
}

zps_err_t zps_wire_decode(const void *buf, size_t len, struct zps_frame *frame, struct zps_error *error) {
  struct zps_wire_reader reader = {.start = buf, .at = buf, .end = (const uint8_t *)buf + len};
  frame->header = (struct zps_frame_header){0};
  frame->len_bytes = (uint32_t)len;
  if (len > ZPS_WIRE_FRAME_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of %zu bytes, at most %u are allowed", len, ZPS_WIRE_FRAME_MAX);
  zps_err_t code = get_header(&reader, &frame->header, error);
  if (code == ZPS_OK) code = get_body(&reader, frame, error);
  if (code != ZPS_OK || reader.at == reader.end) return code;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of %zu bytes: %zu are left over", reader.type, len,
                  (size_t)(reader.end - reader.at));
}
