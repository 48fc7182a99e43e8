#include "proto/wire.h"

#include <string.h>

#include "common/base/text.h"
#include "proto/zenps.pb-c.h"

/* Byte offsets of the header, PROTOCOL.md "Header". */
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
  AT_BODY_LEN = 30,
  AT_PAYLOAD_LEN = 32,
};

/* Sizes of bodies: a tag byte and a value of 4, 8 or (bool) 1 bytes per field; a slice adds its tag and length byte. */
enum {
  ROUND_BYTES = 5 + 9 + 9 + 5,
  SLICE_BYTES = 2 + 5 + 5 + 2 + 5 + 9 + 9 + 9,
  DONE_BYTES = 5 + 9,
  ABORT_BYTES = 5 + 9 + 5,
};
_Static_assert(ZPS_WIRE_HEADER_BYTES + ROUND_BYTES + SLICE_BYTES * ZPS_WIRE_SLICES_MAX + ZPS_WIRE_INLINE_MAX <=
                   ZPS_WIRE_FRAME_MAX,
               "the largest frame fits");

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

static size_t abort_body_bytes(unsigned n_ranks, size_t text_len) {
  return ABORT_BYTES + (n_ranks ? delimited_bytes(4u * n_ranks) : 0) + delimited_bytes(text_len);
}

/* Whether this is the number of one of err.h's errors. */
static bool is_error(zps_err_t code) {
  return code != ZPS_OK && strcmp(zps_err_name(code), "ERR_?") != 0;
}

size_t zps_wire_round_bytes(unsigned n_slices, size_t inline_bytes) {
  return ZPS_WIRE_HEADER_BYTES + ROUND_BYTES + (size_t)SLICE_BYTES * n_slices + inline_bytes;
}

size_t zps_wire_abort_bytes(unsigned n_ranks, size_t text_len) {
  return ZPS_WIRE_HEADER_BYTES + abort_body_bytes(n_ranks, text_len);
}

const char *zps_frame_type_name(uint8_t type) {
  switch (type) {
    case ZPS_FRAME_PUSH:
      return "PUSH";
    case ZPS_FRAME_RESULT:
      return "RESULT";
    case ZPS_FRAME_DONE:
      return "DONE";
    case ZPS_FRAME_ABORT:
      return "ABORT";
    case ZPS_FRAME_CREDIT:
      return "CREDIT";
    default:
      return "?";
  }
}

void zps_wire_stamp(void *buf, uint32_t seq, uint16_t credits) {
  put((uint8_t *)buf + AT_SEQ, seq, 4);
  put((uint8_t *)buf + AT_CREDITS, credits, 2);
}

/* ---- Encoding ---- */

struct sizes {
  size_t body, payload;
};

static void put_header(const struct zps_frame_header *header, const struct sizes *sizes, uint8_t *out) {
  put(out + AT_MAGIC, ZPS_WIRE_MAGIC, 4);
  put(out + AT_VERSION, ZPS_WIRE_VERSION, 2);
  out[AT_TYPE] = header->type;
  out[AT_FLAGS] = 0;
  put(out + AT_JOB, header->job, 8);
  put(out + AT_EPOCH, header->epoch, 4);
  put(out + AT_SRC, header->src, 4);
  zps_wire_stamp(out, header->seq, header->credits);
  put(out + AT_BODY_LEN, sizes->body, 2);
  put(out + AT_PAYLOAD_LEN, sizes->payload, 4);
}

static zps_err_t encode_round(const struct zps_frame *frame, uint8_t *out, size_t cap, struct sizes *sizes_p) {
  const struct zps_frame_round *round = &frame->u.round;
  if (round->n_slices == 0 || round->n_slices > ZPS_WIRE_SLICES_MAX) return ZPS_ERR_INVALID;
  if (frame->header.type == ZPS_FRAME_RESULT && (round->total_nnz || round->timeout_ms)) return ZPS_ERR_INVALID;
  Zenps__Slice slices[ZPS_WIRE_SLICES_MAX];
  Zenps__Slice *pointers[ZPS_WIRE_SLICES_MAX];
  uint64_t payload = 0, nnz = 0;
  for (uint32_t i = 0; i < round->n_slices; i++) {
    const struct zps_slice *slice = &round->slices[i];
    if (slice->is_inline && slice->len_bytes > ZPS_WIRE_INLINE_MAX - payload) return ZPS_ERR_INVALID;
    if (!slice->is_inline && slice->len_bytes == 0) return ZPS_ERR_INVALID;
    zenps__slice__init(&slices[i]);
    slices[i].partition = slice->partition;
    slices[i].codec = slice->codec;
    slices[i].in_frame = slice->is_inline;
    slices[i].nnz = slice->nnz;
    slices[i].len = slice->len_bytes;
    slices[i].addr = slice->is_inline ? 0 : slice->addr;
    slices[i].key = slice->is_inline ? 0 : slice->key;
    pointers[i] = &slices[i];
    payload += slice->is_inline ? slice->len_bytes : 0;
    nnz += slice->nnz;
  }
  if (frame->header.type == ZPS_FRAME_PUSH && nnz > round->total_nnz) return ZPS_ERR_INVALID;
  if (zps_wire_round_bytes(round->n_slices, payload) > cap) return ZPS_ERR_INVALID;

  Zenps__Round body = ZENPS__ROUND__INIT;
  body.tensor = round->tensor;
  body.step = round->step;
  body.total_nnz = round->total_nnz;
  body.timeout_ms = round->timeout_ms;
  body.n_slices = round->n_slices;
  body.slices = pointers;
  sizes_p->body = zenps__round__pack(&body, out + ZPS_WIRE_HEADER_BYTES);
  sizes_p->payload = payload;
  uint8_t *to = out + ZPS_WIRE_HEADER_BYTES + sizes_p->body;
  for (uint32_t i = 0; i < round->n_slices; i++) {
    const struct zps_slice *slice = &round->slices[i];
    if (!slice->is_inline || slice->len_bytes == 0) continue;
    memcpy(to, slice->data, slice->len_bytes);
    to += slice->len_bytes;
  }
  return ZPS_OK;
}

static zps_err_t encode_done(const struct zps_frame *frame, uint8_t *out, size_t cap, struct sizes *sizes_p) {
  if (cap < ZPS_WIRE_HEADER_BYTES + DONE_BYTES) return ZPS_ERR_INVALID;
  Zenps__Done body = ZENPS__DONE__INIT;
  body.tensor = frame->u.done.tensor;
  body.step = frame->u.done.step;
  sizes_p->body = zenps__done__pack(&body, out + ZPS_WIRE_HEADER_BYTES);
  return ZPS_OK;
}

static zps_err_t encode_abort(const struct zps_frame *frame, uint8_t *out, size_t cap, struct sizes *sizes_p) {
  const struct zps_frame_abort *abort = &frame->u.abort;
  const size_t text_len = strnlen(abort->text, sizeof abort->text);
  if (abort->n_ranks > ZPS_WIRE_RANKS_MAX || text_len > ZPS_WIRE_TEXT_MAX) return ZPS_ERR_INVALID;
  if (!is_error(abort->code)) return ZPS_ERR_INVALID;
  if (zps_wire_abort_bytes(abort->n_ranks, text_len) > cap) return ZPS_ERR_INVALID;
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
  sizes_p->body = zenps__abort__pack(&body, out + ZPS_WIRE_HEADER_BYTES);
  return ZPS_OK;
}

zps_err_t zps_wire_encode(const struct zps_frame *frame, void *buf, size_t cap, size_t *len_p) {
  uint8_t *out = buf;
  struct sizes sizes = {0, 0};
  zps_err_t code = ZPS_OK;
  if (cap < ZPS_WIRE_HEADER_BYTES) return ZPS_ERR_INVALID;
  switch (frame->header.type) {
    case ZPS_FRAME_PUSH:
    case ZPS_FRAME_RESULT:
      code = encode_round(frame, out, cap, &sizes);
      break;
    case ZPS_FRAME_DONE:
      code = encode_done(frame, out, cap, &sizes);
      break;
    case ZPS_FRAME_ABORT:
      code = encode_abort(frame, out, cap, &sizes);
      break;
    case ZPS_FRAME_CREDIT:
      break;
    default:
      code = ZPS_ERR_INVALID;
  }
  if (code != ZPS_OK) return code;
  put_header(&frame->header, &sizes, out);
  *len_p = ZPS_WIRE_HEADER_BYTES + sizes.body + sizes.payload;
  return ZPS_OK;
}

/* ---- Decoding ---- */

/* Room for what protobuf-c unpacks of the largest body: 48 slices with their pointers, and its scan of 52 fields.
 * Memory that runs out is a body that no peer of ours wrote, and makes the unpacking fail. */
struct arena {
  size_t used;
  _Alignas(16) uint8_t bytes[24 << 10];
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

/* The parts of a frame whose lengths have been checked. */
struct parts {
  const char *type;
  const uint8_t *body, *payload;
  size_t body_len, payload_len;
};

static zps_err_t bad_body(const struct parts *parts, struct zps_error *error, const char *want) {
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, body of %zu bytes at offset %u: %s", parts->type, parts->body_len,
                  ZPS_WIRE_HEADER_BYTES, want);
}

static zps_err_t decode_slice(const struct parts *parts, const Zenps__Slice *body, uint32_t i, size_t *taken,
                              struct zps_slice *slice, struct zps_error *error) {
  if (body->codec > UINT8_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, slice %u: codec %u, want below 256", parts->type, i,
                    body->codec);
  if (body->in_frame) {
    if (body->len > parts->payload_len - *taken)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, slice %u: %llu inline bytes, but %zu are left of %zu",
                      parts->type, i, (unsigned long long)body->len, parts->payload_len - *taken, parts->payload_len);
    if (body->addr || body->key)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, slice %u: inline with an address or key, want 0", parts->type,
                      i);
  } else if (body->len == 0) {
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, slice %u: empty and remote, want inline", parts->type, i);
  }
  *slice = (struct zps_slice){
      .partition = body->partition,
      .codec = (uint8_t)body->codec,
      .is_inline = body->in_frame,
      .nnz = body->nnz,
      .len_bytes = body->len,
      .addr = body->addr,
      .key = body->key,
      .data = body->in_frame ? parts->payload + *taken : NULL,
  };
  if (body->in_frame) *taken += body->len;
  return ZPS_OK;
}

static zps_err_t decode_round(const struct parts *parts, ProtobufCAllocator *allocator, struct zps_frame *frame,
                              struct zps_error *error) {
  struct zps_frame_round *round = &frame->u.round;
  const size_t n_slices = parts->body_len > ROUND_BYTES ? (parts->body_len - ROUND_BYTES) / SLICE_BYTES : 0;
  if (n_slices == 0 || n_slices > ZPS_WIRE_SLICES_MAX || parts->body_len != ROUND_BYTES + n_slices * SLICE_BYTES)
    return bad_body(parts, error, "not the size of 1 to 48 slices");
  const Zenps__Round *body = zenps__round__unpack(allocator, parts->body_len, parts->body);
  if (!body || body->n_slices != n_slices) return bad_body(parts, error, "not a round's fields");
  const bool is_push = frame->header.type == ZPS_FRAME_PUSH;
  if (!is_push && (body->total_nnz || body->timeout_ms))
    return bad_body(parts, error, "total_nnz and timeout_ms belong to PUSH, want 0");

  size_t taken = 0;
  uint64_t nnz = 0;
  for (uint32_t i = 0; i < n_slices; i++) {
    const zps_err_t code = decode_slice(parts, body->slices[i], i, &taken, &round->slices[i], error);
    if (code != ZPS_OK) return code;
    nnz += round->slices[i].nnz;
  }
  if (taken != parts->payload_len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: inline slices take %zu bytes of a payload of %zu", parts->type,
                    taken, parts->payload_len);
  if (is_push && nnz > body->total_nnz)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "PUSH frame: slices hold %llu rows, more than total_nnz %llu",
                    (unsigned long long)nnz, (unsigned long long)body->total_nnz);
  round->tensor = body->tensor;
  round->step = body->step;
  round->total_nnz = body->total_nnz;
  round->timeout_ms = body->timeout_ms;
  round->n_slices = (uint32_t)n_slices;
  return ZPS_OK;
}

static zps_err_t decode_done(const struct parts *parts, ProtobufCAllocator *allocator, struct zps_frame *frame,
                             struct zps_error *error) {
  if (parts->body_len != DONE_BYTES) return bad_body(parts, error, "want 14 bytes");
  const Zenps__Done *body = zenps__done__unpack(allocator, parts->body_len, parts->body);
  if (!body) return bad_body(parts, error, "not the fields of DONE");
  frame->u.done.tensor = body->tensor;
  frame->u.done.step = body->step;
  return ZPS_OK;
}

static zps_err_t decode_abort(const struct parts *parts, ProtobufCAllocator *allocator, struct zps_frame *frame,
                              struct zps_error *error) {
  struct zps_frame_abort *abort = &frame->u.abort;
  if (parts->body_len > abort_body_bytes(ZPS_WIRE_RANKS_MAX, ZPS_WIRE_TEXT_MAX))
    return bad_body(parts, error, "longer than 256 ranks and 400 bytes of text");
  const Zenps__Abort *body = zenps__abort__unpack(allocator, parts->body_len, parts->body);
  if (!body) return bad_body(parts, error, "not the fields of ABORT");
  if (body->n_ranks > ZPS_WIRE_RANKS_MAX || body->text.len > ZPS_WIRE_TEXT_MAX)
    return bad_body(parts, error, "more than 256 ranks or 400 bytes of text");
  if (parts->body_len != abort_body_bytes((unsigned)body->n_ranks, body->text.len))
    return bad_body(parts, error, "unknown, repeated or overlong fields");
  if (!is_error((zps_err_t)body->code))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "ABORT frame: code %d is no error", (int)body->code);
  const size_t printable = zps_text_printable((const char *)body->text.data, body->text.len);
  if (printable != body->text.len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "ABORT frame: byte %zu of the text is not printable UTF-8", printable);
  abort->tensor = body->tensor;
  abort->step = body->step;
  abort->code = (zps_err_t)body->code;
  abort->n_ranks = (uint32_t)body->n_ranks;
  if (body->n_ranks) memcpy(abort->ranks, body->ranks, body->n_ranks * sizeof abort->ranks[0]);
  if (body->text.len) memcpy(abort->text, body->text.data, body->text.len);
  abort->text[body->text.len] = '\0';
  return ZPS_OK;
}

/* Everything that holds for all types; leaves `parts` pointing into the frame. */
static zps_err_t decode_header(const uint8_t *in, size_t len, struct zps_frame_header *header, struct parts *parts,
                               struct zps_error *error) {
  if (len < ZPS_WIRE_HEADER_BYTES)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of %zu bytes: shorter than a header, %u bytes", len,
                    ZPS_WIRE_HEADER_BYTES);
  if (get(in + AT_MAGIC, 4) != ZPS_WIRE_MAGIC)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame starts with 0x%08x, want 0x%08x: not a zenps peer",
                    (unsigned)get(in + AT_MAGIC, 4), ZPS_WIRE_MAGIC);
  if (get(in + AT_VERSION, 2) != ZPS_WIRE_VERSION)
    return zps_fail(error, ZPS_ERR_VERSION, "the peer's frame has protocol version %u, this side speaks version %u",
                    (unsigned)get(in + AT_VERSION, 2), ZPS_WIRE_VERSION);
  header->type = in[AT_TYPE];
  header->job = get(in + AT_JOB, 8);
  header->epoch = (uint32_t)get(in + AT_EPOCH, 4);
  header->src = (uint32_t)get(in + AT_SRC, 4);
  header->seq = (uint32_t)get(in + AT_SEQ, 4);
  header->credits = (uint16_t)get(in + AT_CREDITS, 2);
  if (header->type < ZPS_FRAME_PUSH || header->type > ZPS_FRAME_CREDIT)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "frame of unknown type %u, want 1 to 5", header->type);
  if (in[AT_FLAGS])
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: unknown flags 0x%02x, want 0",
                    zps_frame_type_name(header->type), in[AT_FLAGS]);

  parts->type = zps_frame_type_name(header->type);
  parts->body_len = get(in + AT_BODY_LEN, 2);
  parts->payload_len = get(in + AT_PAYLOAD_LEN, 4);
  const bool has_payload = header->type == ZPS_FRAME_PUSH || header->type == ZPS_FRAME_RESULT;
  if (parts->payload_len > (has_payload ? ZPS_WIRE_INLINE_MAX : 0))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: payload of %zu bytes, at most %u are allowed", parts->type,
                    parts->payload_len, has_payload ? ZPS_WIRE_INLINE_MAX : 0);
  if (ZPS_WIRE_HEADER_BYTES + parts->body_len + parts->payload_len != len)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of %zu bytes: its header says %u + %zu + %zu", parts->type, len,
                    ZPS_WIRE_HEADER_BYTES, parts->body_len, parts->payload_len);
  parts->body = in + ZPS_WIRE_HEADER_BYTES;
  parts->payload = parts->body + parts->body_len;
  return ZPS_OK;
}

zps_err_t zps_wire_decode(const void *buf, size_t len, struct zps_frame *frame, struct zps_error *error) {
  struct parts parts = {0};
  const zps_err_t code = decode_header(buf, len, &frame->header, &parts, error);
  if (code != ZPS_OK) return code;
  struct arena arena;
  arena.used = 0;
  ProtobufCAllocator allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = &arena};
  switch (frame->header.type) {
    case ZPS_FRAME_PUSH:
    case ZPS_FRAME_RESULT:
      return decode_round(&parts, &allocator, frame, error);
    case ZPS_FRAME_DONE:
      return decode_done(&parts, &allocator, frame, error);
    case ZPS_FRAME_ABORT:
      return decode_abort(&parts, &allocator, frame, error);
    default:
      return parts.body_len == 0 ? ZPS_OK : bad_body(&parts, error, "want none");
  }
}
