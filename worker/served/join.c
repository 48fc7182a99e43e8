/* Small partitions that follow each other at a server, as one slice. */
#include "common/codec/join.h"
#include "worker/served/served.h"

static void be_alone(struct zps_served_part *part) {
  part->joined_to = part;
  part->join_next = NULL;
  part->n_more = 0;
  part->slice_bytes = part->push_bytes;
  part->slice_nnz = part->nnz;
  part->slice_codec = part->push_codec;
}

static bool try_join(const struct zps_round_tensor *tensor, struct zps_served_part *first, uint64_t *m,
                     struct zps_served_part *part) {
  if (first->slice_bytes + part->push_bytes > ZPS_WIRE_INLINE_MAX || part->is_wide != first->is_wide ||
      !zps_join_fits(*m + part->m, (uint64_t)first->slice_nnz + part->nnz, tensor->width, zps_dtype_sum(tensor->dtype),
                     zps_served_part_value_codec(part)))
    return false;
  *m += part->m;
  part->joined_to = first;
  first->n_more++;
  first->slice_bytes += part->push_bytes;
  first->slice_nnz += part->nnz;
  return true;
}

void zps_served_join(struct zps_served_round *round, uint32_t first, uint32_t end) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  const bool any_order = zps_round_tensor_push_set(tensor) == ZPS_CODEC_ANY_ORDER; /* joined slices are in order */
  for (uint32_t s = 0; s < round->base.plane->n_servers; s++) round->servers[s].join_first = NULL;
  for (uint32_t p = first; p < end; p++) {
    struct zps_served_part *part = &round->parts[p];
    struct zps_served_server *server = &round->servers[round->base.owners[p]];
    be_alone(part);
    const bool is_small = zps_served_part_is_inline(part) && !any_order;
    if (is_small && server->join_first && try_join(tensor, server->join_first, &server->join_m, part)) {
      server->join_last->join_next = part;
    } else {
      server->join_first = is_small ? part : NULL;
      server->join_m = part->m;
    }
    server->join_last = part;
  }
}

/* Writes each partition by itself, at the place of its bytes in the room for all. */
static void write_apart(struct zps_served_part *first) {
  const struct zps_encoder *encoder = zps_served_of(first->task.round)->encoder;
  unsigned char *at = first->push_data;
  for (struct zps_served_part *part = first, *next; part; part = next) {
    next = part->join_next;
    be_alone(part);
    part->push_data = at;
    at += part->push_bytes;
    if (part->push_bytes == 0) continue;
    if (first->task.round->in.memory == ZENPS_DEVICE)
      zps_device_push_copy(part, part->push_data);
    else
      zps_encoder_write(encoder, part->task.arg, part->push_codec, part->push_data);
  }
}

static struct zps_slice_view encode_coo(const struct zps_served_part *part, unsigned char *coo) {
  const struct zps_served_round *round = zps_served_of(part->task.round);
  const struct zps_round_tensor *tensor = round->base.tensor;
  const enum zps_dtype dtype = zps_dtype_sum(tensor->dtype);
  const enum zps_value_codec value_codec = zps_served_part_value_codec(part);
  const uint64_t values_bytes = zps_values_bytes(value_codec, dtype, (uint64_t)part->nnz * tensor->width);
  if (part->nnz > 0) zps_encoder_write(round->encoder, part->task.arg, ZPS_CODEC_COO, coo);
  return zps_slice_view_own(ZPS_CODEC_COO, part->m, part->nnz, tensor->width, dtype, value_codec, coo,
                            values_bytes + part->nnz * sizeof(uint32_t));
}

void zps_served_part_write_joined(struct zps_served_part *first) {
  const struct zps_served_round *round = zps_served_of(first->task.round);
  const struct zps_round_tensor *tensor = round->base.tensor;
  if (first->slice_bytes == 0) return;
  if (first->n_more == 0) {
    write_apart(first);
    return;
  }
  _Alignas(8) unsigned char coo[ZPS_JOIN_BYTES_MAX];
  struct zps_joined join;
  zps_join_init(&join, tensor->width, zps_dtype_sum(tensor->dtype), zps_served_part_value_codec(first));
  for (const struct zps_served_part *part = first; part; part = part->join_next) {
    const struct zps_slice_view view =
        round->base.in.memory == ZENPS_DEVICE ? zps_device_push_view(part) : encode_coo(part, coo);
    zps_join_add(&join, &view);
  }
  const uint64_t room = first->slice_bytes;
  if (!zps_join_write(&join, zps_codec_push_set(tensor->codec), first->push_data, room, &first->slice_codec,
                      &first->slice_bytes))
    write_apart(first);
}
