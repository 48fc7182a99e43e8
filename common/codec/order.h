/*
 * Slices whose indices come in any order (ZPS_CODEC_COO_ANY), as Zen's Algorithm 1 leaves them: the paper's workers do
 * not sort. Whoever sums in the order of indices puts them in order first: a bit for each index of the partition says
 * which are there, how many bits are set below an index is its place, and rows move to their places where they lie. No
 * comparison, and no memory but 3/16 of a byte for each row of the partition.
 */
#ifndef ZPS_CODEC_ORDER_H
#define ZPS_CODEC_ORDER_H

#include "common/codec/buffer.h"
#include "common/codec/codec_choice.h"
#include "common/codec/partitioner.h"

/* Whether a tensor's pushes come so: those that Algorithm 1 deals out under the paper's codecs. Values in buckets with
 * a scale cannot be moved, so they come in order. */
bool zps_order_is_any(enum zps_partitioner partitioner, enum zps_codec_policy policy, enum zps_value_codec value_codec);
/* Makes a payload that a peer announced as COO_ANY a payload of COO, in place. The sizes have been checked, as those of
 * COO are. ZPS_ERR_PROTOCOL, and nothing is moved, where an index is not below `m` or is there twice. A payload that is
 * in order already stays as it is. `scratch` is the caller's, kept from call to call. */
zps_err_t zps_slice_order(uint32_t m, uint32_t nnz, uint32_t width, enum zps_dtype dtype,
                          enum zps_value_codec value_codec, void *payload, struct zps_buffer *scratch,
                          struct zps_error *error) ZPS_MUSTCHECK;

#endif
