/* PUSH, RESULT, PEER, GIVE, PULL, SEEK and FOUND: heads of slices as varints, then the inline payload. */
#include <string.h>

#include "proto/wire_impl.h"

/* A slice's first byte. */
enum {
  HEAD_CODEC = 7,
  HEAD_REMOTE = 8,
  HEAD_MORE = 16,    /* more_of() follows the partition, or tag */
  HEAD_LAST = 32,    /* of the frame */
  HEAD_WIDE = 64,    /* PUSH, GIVE */
  HEAD_ABSENT = 128, /* of the last slice. PUSH, GIVE: the rank is absent; RESULT, FOUND: `n_absent` follows */
  HEAD_KNOWN = HEAD_CODEC | HEAD_REMOTE | HEAD_MORE | HEAD_LAST,
};
_Static_assert(ZPS_WIRE_CODECS == HEAD_CODEC + 1, "codecs fill their bits");

static bool is_sum(uint8_t type) {
  return type == ZPS_FRAME_RESULT || type == ZPS_FRAME_FOUND;
}

/* Frames in whose last slice absent ranks show. */
static bool tells_absent(uint8_t type) {
  return type == ZPS_FRAME_PUSH || type == ZPS_FRAME_GIVE || is_sum(type);
}

enum {
  U32_BYTES_MAX = 5,
  SLICE_BYTES_MAX = 1 + 3 * U32_BYTES_MAX + 4 * ZPS_VARINT_BYTES_MAX, /* without keys on further rails */
};
_Static_assert(ZPS_WIRE_LONG_BYTES + 6 * U32_BYTES_MAX + 2 * ZPS_VARINT_BYTES_MAX +
                       SLICE_BYTES_MAX * ZPS_WIRE_SLICES_MAX + ZPS_WIRE_INLINE_MAX <=
                   ZPS_WIRE_FRAME_MAX,
               "the largest frame fits");

/* ---- Encoding ---- */

/* The number that follows the partition when it is not 0. Inline: n_more, or PEER: `values`. Remote: the keys beside
 * the first one, times ZPS_WIRE_VALUES, and `values`. */
static uint32_t more_of(const struct zps_slice *slice) {
  return slice->is_inline ? slice->n_more + slice->values : slice->more.n * ZPS_WIRE_VALUES + slice->values;
}

static size_t keys_bytes(const struct zps_slice *slice) {
  size_t bytes = zps_varint_bytes(slice->key);
  for (unsigned k = 0; k < slice->more.n; k++) bytes += zps_varint_bytes(slice->more.key[k]);
  return bytes;
}

static size_t slice_bytes(const struct zps_slice *slice, bool is_last) {
  size_t bytes = 1 + zps_varint_bytes(slice->partition) + zps_varint_bytes(slice->nnz);
  if (more_of(slice)) bytes += zps_varint_bytes(more_of(slice));
  if (!slice->is_inline)
    return bytes + zps_varint_bytes(slice->len_bytes) + zps_varint_bytes(slice->addr) + keys_bytes(slice) +
           zps_varint_bytes(slice->sum);
  return bytes + slice->len_bytes + (is_last ? 0 : zps_varint_bytes(slice->len_bytes));
}

/* Frames of ranks to servers. */
static bool has_deadline(uint8_t type) {
  return type == ZPS_FRAME_PUSH || type == ZPS_FRAME_GIVE || type == ZPS_FRAME_PULL || type == ZPS_FRAME_SEEK;
}

/* Frames whose slices name rows. */
static bool asks(uint8_t type) {
  return type == ZPS_FRAME_PULL || type == ZPS_FRAME_SEEK;
}

static bool has_age(uint8_t type) {
  return type == ZPS_FRAME_SEEK || type == ZPS_FRAME_FOUND;
}

/* Frames with a rank's own sums. */
static bool may_be_wide(uint8_t type) {
  return type == ZPS_FRAME_PUSH || type == ZPS_FRAME_GIVE;
}

static bool may_be_encoded(const struct zps_slice *slice, uint8_t type) {
  const bool is_peer = type == ZPS_FRAME_PEER;
  if (slice->is_wide && !may_be_wide(type)) return false;
  if (slice->codec >= ZPS_WIRE_CODECS || slice->values >= ZPS_WIRE_VALUES) return false;
  if (asks(type) && (!slice->is_inline || slice->n_more > 0 || slice->codec != ZPS_WIRE_CODEC_RUNS)) return false;
  if (is_peer ? slice->n_more > 0 : slice->values > 0) return false;
  if (slice->is_inline) return slice->len_bytes <= ZPS_WIRE_INLINE_MAX;
  return slice->len_bytes > 0 && slice->n_more == 0 && slice->more.n < ZPS_NET_RAILS_MAX;
}

static uint64_t sum_nnz(const struct zps_frame_round *round) {
  uint64_t nnz = 0;
  for (uint32_t i = 0; i < round->n_slices; i++) nnz += round->slices[i].nnz;
  return nnz;
}

size_t zps_wire_round_bytes(const struct zps_frame_round *round, uint8_t type) {
  if (round->n_slices == 0 || round->n_slices > ZPS_WIRE_SLICES_MAX) return SIZE_MAX;
  size_t bytes = zps_varint_bytes(round->tensor) + zps_varint_bytes(round->step);
  if (has_deadline(type)) {
    const uint64_t nnz = sum_nnz(round);
    if (nnz > round->total_nnz) return SIZE_MAX;
    bytes += zps_varint_bytes(round->timeout_ms) + zps_varint_bytes(round->total_nnz - nnz);
  } else if (round->total_nnz || round->timeout_ms) {
    return SIZE_MAX;
  }
  if ((round->is_absent && (!tells_absent(type) || is_sum(type))) || (round->n_absent && !is_sum(type)))
    return SIZE_MAX;
  if (round->n_absent) bytes += zps_varint_bytes(round->n_absent);
  if (has_age(type))
    bytes += zps_varint_bytes(round->seek) + zps_varint_bytes(round->age);
  else if (round->seek || round->age)
    return SIZE_MAX;
  if (type == ZPS_FRAME_SEEK) {
    if (round->age > round->age_max || round->age_max > round->step) return SIZE_MAX;
    bytes += zps_varint_bytes(round->age_max - round->age);
  } else if (round->age_max || round->age > round->step) {
    return SIZE_MAX;
  }
  uint64_t payload = 0;
  for (uint32_t i = 0; i < round->n_slices; i++) {
    const struct zps_slice *slice = &round->slices[i];
    if (!may_be_encoded(slice, type)) return SIZE_MAX;
    payload += zps_slice_room(slice);
    bytes += slice_bytes(slice, i + 1 == round->n_slices);
  }
  return payload <= ZPS_WIRE_INLINE_MAX ? bytes : SIZE_MAX;
}

static uint8_t *put_slice(const struct zps_frame_round *round, uint32_t i, uint8_t *at) {
  const struct zps_slice *const slice = &round->slices[i];
  const bool is_last = i + 1 == round->n_slices, absent = is_last && (round->is_absent || round->n_absent);
  *at++ = (uint8_t)(slice->codec | (slice->is_inline ? 0 : HEAD_REMOTE) | (more_of(slice) ? HEAD_MORE : 0) |
                    (is_last ? HEAD_LAST : 0) | (slice->is_wide ? HEAD_WIDE : 0) | (absent ? HEAD_ABSENT : 0));
  if (absent && round->n_absent) at = zps_varint_put(at, round->n_absent);
  at = zps_varint_put(at, slice->partition);
  if (more_of(slice)) at = zps_varint_put(at, more_of(slice));
  at = zps_varint_put(at, slice->nnz);
  if (!slice->is_inline || !is_last) at = zps_varint_put(at, slice->len_bytes);
  if (slice->is_inline) return at;
  at = zps_varint_put(at, slice->addr);
  at = zps_varint_put(at, slice->key);
  for (unsigned k = 0; k < slice->more.n; k++) at = zps_varint_put(at, slice->more.key[k]);
  return zps_varint_put(at, slice->sum);
}

uint8_t *zps_wire_round_put(const struct zps_frame_round *round, uint8_t type, uint8_t *at) {
  at = zps_varint_put(at, round->tensor);
  at = zps_varint_put(at, round->step);
  if (has_deadline(type)) {
    at = zps_varint_put(at, round->timeout_ms);
    at = zps_varint_put(at, round->total_nnz - sum_nnz(round));
  }
  if (has_age(type)) at = zps_varint_put(zps_varint_put(at, round->seek), round->age);
  if (type == ZPS_FRAME_SEEK) at = zps_varint_put(at, round->age_max - round->age);
  for (uint32_t i = 0; i < round->n_slices; i++) at = put_slice(round, i, at);
  for (uint32_t i = 0; i < round->n_slices; i++) {
    const struct zps_slice *slice = &round->slices[i];
    if (!slice->is_inline || slice->len_bytes == 0) continue;
    memcpy(at, slice->data, slice->len_bytes);
    at += slice->len_bytes;
  }
  return at;
}

/* ---- Decoding ---- */

static zps_err_t get_u32(struct zps_wire_reader *reader, const char *field, uint32_t *value_p,
                         struct zps_error *error) {
  uint64_t value;
  const zps_err_t code = zps_wire_number(reader, field, UINT32_MAX, &value, error);
  if (code == ZPS_OK) *value_p = (uint32_t)value;
  return code;
}

static zps_err_t get_remote(struct zps_wire_reader *reader, struct zps_slice *slice, struct zps_error *error) {
  zps_err_t code = zps_wire_number(reader, "a slice's len", UINT64_MAX, &slice->len_bytes, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "a slice's addr", UINT64_MAX, &slice->addr, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "a slice's key", UINT64_MAX, &slice->key, error);
  for (unsigned k = 0; k < slice->more.n && code == ZPS_OK; k++)
    code = zps_wire_number(reader, "a slice's key of another rail", UINT64_MAX, &slice->more.key[k], error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "a slice's checksum", UINT64_MAX, &slice->sum, error);
  if (code != ZPS_OK || slice->len_bytes > 0) return code;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: a slice is empty and remote, want inline", reader->type);
}

/* Where the payload starts is not known yet: `data` stays NULL, and so does the last inline slice's length. */
static zps_err_t get_values(struct zps_wire_reader *reader, bool is_peer, struct zps_slice *slice,
                            struct zps_error *error) {
  const uint64_t most = slice->is_inline ? ZPS_WIRE_VALUES - 1 : ZPS_NET_RAILS_MAX * ZPS_WIRE_VALUES - 1;
  uint64_t values;
  const zps_err_t code = zps_wire_number(reader, "a slice's values", most, &values, error);
  if (code != ZPS_OK) return code;
  if (values == 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: a slice's values are said to be 0: left out when 0",
                    reader->type);
  if (!is_peer && values % ZPS_WIRE_VALUES)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: a remote slice has values of kind %u, want 0", reader->type,
                    (unsigned)(values % ZPS_WIRE_VALUES));
  slice->values = (uint8_t)(values % ZPS_WIRE_VALUES);
  slice->more.n = (uint8_t)(values / ZPS_WIRE_VALUES);
  return ZPS_OK;
}

/* That ranks are absent, which the first byte of the last slice has told. */
static zps_err_t get_absent(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_round *round,
                            struct zps_error *error) {
  round->is_absent = !is_sum(type);
  if (round->is_absent) return ZPS_OK;
  const zps_err_t code = get_u32(reader, "absent ranks", &round->n_absent, error);
  if (code != ZPS_OK || round->n_absent > 0) return code;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: absent ranks are said to be 0: left out when 0", reader->type);
}

static zps_err_t get_slice(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_round *round, bool *is_last_p,
                           struct zps_error *error) {
  struct zps_slice *const slice = &round->slices[round->n_slices];
  *slice = (struct zps_slice){0};
  if (reader->at == reader->end)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame of %zu bytes ends before its last slice", reader->type,
                    (size_t)(reader->end - reader->start));
  const uint8_t head = *reader->at++;
  const bool has_sums = may_be_wide(type);
  const bool may_tell = tells_absent(type) && head & HEAD_LAST;
  if (head & ~(HEAD_KNOWN | (has_sums ? HEAD_WIDE : 0) | (may_tell ? HEAD_ABSENT : 0)))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: a slice starts with 0x%02x, whose %s must be 0", reader->type,
                    head,
                    has_sums   ? "top bit"
                    : may_tell ? "bit 6"
                               : "top two bits");
  slice->is_wide = head & HEAD_WIDE;
  if (asks(type) && (head & ~HEAD_LAST) != ZPS_WIRE_CODEC_RUNS)
    return zps_fail(error, ZPS_ERR_PROTOCOL,
                    "%s frame: a slice starts with 0x%02x, want 0x%02x, or 0x%02x for the last", reader->type, head,
                    ZPS_WIRE_CODEC_RUNS, ZPS_WIRE_CODEC_RUNS | HEAD_LAST);
  slice->codec = head & HEAD_CODEC;
  slice->is_inline = !(head & HEAD_REMOTE);
  *is_last_p = head & HEAD_LAST;
  zps_err_t code = head & HEAD_ABSENT ? get_absent(reader, type, round, error) : ZPS_OK;
  if (code == ZPS_OK) code = get_u32(reader, "a slice's partition", &slice->partition, error);
  const bool several = head & HEAD_MORE && type != ZPS_FRAME_PEER && slice->is_inline;
  if (code == ZPS_OK && several) code = get_u32(reader, "a slice's n_more", &slice->n_more, error);
  if (code == ZPS_OK && head & HEAD_MORE && !several) code = get_values(reader, type == ZPS_FRAME_PEER, slice, error);
  if (code == ZPS_OK) code = get_u32(reader, "a slice's nnz", &slice->nnz, error);
  if (code != ZPS_OK) return code;
  if (several && slice->n_more == 0)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: an inline slice of partition %u and 0 more: want 1 or more",
                    reader->type, slice->partition);
  if (!slice->is_inline) return get_remote(reader, slice, error);
  return *is_last_p ? ZPS_OK
                    : zps_wire_number(reader, "an inline slice's len", ZPS_WIRE_INLINE_MAX, &slice->len_bytes, error);
}

/* Neither is a step before the first one. */
static zps_err_t get_seek(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_round *round,
                          struct zps_error *error) {
  const uint64_t most = round->step < UINT32_MAX ? round->step : UINT32_MAX;
  uint64_t age = 0, older = 0;
  round->seek = round->age = round->age_max = 0;
  if (!has_age(type)) return ZPS_OK;
  zps_err_t code = get_u32(reader, "seek", &round->seek, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "age", most, &age, error);
  if (code == ZPS_OK && type == ZPS_FRAME_SEEK)
    code = zps_wire_number(reader, "steps older", most - age, &older, error);
  if (code != ZPS_OK) return code;
  round->age = (uint32_t)age;
  round->age_max = type == ZPS_FRAME_SEEK ? (uint32_t)(age + older) : 0;
  return ZPS_OK;
}

static zps_err_t find_payload(struct zps_wire_reader *reader, struct zps_frame_round *round, struct zps_error *error) {
  const size_t payload = (size_t)(reader->end - reader->at);
  size_t room = payload;
  for (uint32_t i = 0; i < round->n_slices; i++)
    if (!round->slices[i].is_inline) room += zps_slice_room(&round->slices[i]);
  if (room > ZPS_WIRE_INLINE_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: payload of %zu bytes, at most %u are allowed", reader->type,
                    room, ZPS_WIRE_INLINE_MAX);
  for (uint32_t i = 0; i < round->n_slices; i++) {
    struct zps_slice *slice = &round->slices[i];
    if (!slice->is_inline) continue;
    const size_t left = (size_t)(reader->end - reader->at);
    if (i + 1 == round->n_slices) slice->len_bytes = left;
    if (slice->len_bytes > left)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame, slice %u: %llu inline bytes, but %zu are left of %zu",
                      reader->type, i, (unsigned long long)slice->len_bytes, left, payload);
    slice->data = reader->at;
    reader->at += slice->len_bytes;
  }
  if (reader->at == reader->end) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: inline slices leave %zu bytes over of a payload of %zu",
                  reader->type, (size_t)(reader->end - reader->at), payload);
}

zps_err_t zps_wire_round_get(struct zps_wire_reader *reader, uint8_t type, struct zps_frame_round *round,
                             struct zps_error *error) {
  uint64_t elsewhere = 0;
  round->timeout_ms = round->n_absent = 0;
  round->is_absent = false;
  zps_err_t code = get_u32(reader, "tensor", &round->tensor, error);
  if (code == ZPS_OK) code = zps_wire_number(reader, "step", UINT64_MAX, &round->step, error);
  const bool to_server = has_deadline(type);
  if (code == ZPS_OK && to_server) code = get_u32(reader, "timeout_ms", &round->timeout_ms, error);
  if (code == ZPS_OK && to_server) code = zps_wire_number(reader, "nnz elsewhere", UINT64_MAX, &elsewhere, error);
  if (code == ZPS_OK) code = get_seek(reader, type, round, error);
  bool is_last = false;
  for (round->n_slices = 0; code == ZPS_OK && !is_last; round->n_slices++) {
    if (round->n_slices == ZPS_WIRE_SLICES_MAX)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: more than %u slices", reader->type, ZPS_WIRE_SLICES_MAX);
    code = get_slice(reader, type, round, &is_last, error);
  }
  if (code == ZPS_OK) code = find_payload(reader, round, error);
  if (code != ZPS_OK) return code;
  round->total_nnz = 0;
  if (to_server && __builtin_add_overflow(elsewhere, sum_nnz(round), &round->total_nnz))
    return zps_fail(error, ZPS_ERR_PROTOCOL, "%s frame: %llu rows elsewhere and those of its slices, want below 2^64",
                    reader->type, (unsigned long long)elsewhere);
  return ZPS_OK;
}
