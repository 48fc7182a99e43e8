/*
 * Data-plane frames: struct <-> bytes, with every bounds check. PROTOCOL.md (this folder) describes each byte.
 *
 * A frame is a header, a body and inline payload. The header comes in two forms: the long one names job, epoch and
 * sender, the short one only the tag that the receiver gave to the sender's link. Bodies are varints, so that a small
 * round costs little beside its payload; ABORT is protobuf (zenps.proto; only wire.c sees protobuf-c). Bulk payloads do
 * not travel in frames: a slice either carries its bytes inline or names the sender's registered memory for the
 * receiver to read.
 */
#ifndef ZPS_PROTO_WIRE_H
#define ZPS_PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/err.h"
#include "common/net/net.h"

#define ZPS_WIRE_VERSION 1u
#define ZPS_WIRE_MAGIC 0x3153505au /* "ZPS1", little-endian */
#define ZPS_WIRE_LONG_BYTES 34u    /* a long header */
#define ZPS_WIRE_SHORT_BYTES 4u    /* a short header with a tag below 128 */
#define ZPS_WIRE_FRAME_MAX 16376u  /* header + body + inline payload */
#define ZPS_WIRE_MAC_BYTES 8u      /* behind the frames of a message: common/session/mac.h */
#define ZPS_WIRE_MESSAGE_MAX (ZPS_WIRE_FRAME_MAX + ZPS_WIRE_MAC_BYTES)
#define ZPS_WIRE_INLINE_MAX 12288u /* inline payload of one frame, all slices together (zps_slice_room()) */
#define ZPS_WIRE_SLICES_MAX 48u    /* slices in one frame */
#define ZPS_WIRE_CODEC_RUNS 7u     /* of the slices of PULL: common/codec/runs.h */
#define ZPS_WIRE_CODECS 8u         /* numbers that a slice has room for */
#define ZPS_WIRE_VALUES 128u       /* most numbers of value codecs */
#define ZPS_WIRE_RANKS_MAX 256u    /* ranks named by one abort */
#define ZPS_WIRE_TEXT_MAX 400u     /* bytes of an abort's text */
#define ZPS_WIRE_LATE_BYTES 512u   /* a bit for each rank of the largest world */

/* A slice of a small tensor travels inside a frame where it can, since a read takes longer. Of others slices are read
 * from 4 KiB on: an owner reads one partition after another, and has the first sums while it reads the last ones. */
#define ZPS_WIRE_READ_BYTES 4096u
#define ZPS_WIRE_SMALL_BYTES (512u << 10) /* bytes of all ranks for one owner: a small tensor has no more */

static inline uint32_t zps_wire_inline_bytes(uint64_t tensor_bytes, uint32_t world, uint32_t n_owners) {
  const uint64_t bytes = tensor_bytes / n_owners;
  const bool is_small = bytes <= ZPS_WIRE_SMALL_BYTES && bytes * world <= ZPS_WIRE_SMALL_BYTES;
  return is_small ? ZPS_WIRE_INLINE_MAX : ZPS_WIRE_READ_BYTES;
}

enum zps_frame_type {
  ZPS_FRAME_PUSH = 1,    /* worker -> owner: contributions to partitions are ready */
  ZPS_FRAME_RESULT = 2,  /* owner -> worker: sums of partitions are ready */
  ZPS_FRAME_DONE = 3,    /* worker -> owner or worker: I have read all that is remote of this round; retire it for me.
                          * Of programs that lend gradients: and have my result */
  ZPS_FRAME_ABORT = 4,   /* either way: the round failed, and why */
  ZPS_FRAME_CREDIT = 5,  /* either way: no content, returns credits in the header */
  ZPS_FRAME_PEER = 6,    /* worker -> worker: streams of a program (worker/schemes/program.h) are ready */
  ZPS_FRAME_GIVE = 7,    /* worker -> owner: as PUSH, but no sum is sent for it */
  ZPS_FRAME_PULL = 8,    /* worker -> owner: the rows of sums that I want */
  ZPS_FRAME_TAKEN = 9,   /* owner -> worker: everything that GIVE frames announced is here */
  ZPS_FRAME_SEEK = 10,   /* worker -> owner: as PULL, of the newest sum of some steps up to this one */
  ZPS_FRAME_FOUND = 11,  /* owner -> worker: as RESULT, of the sum that was found for a SEEK */
  ZPS_FRAME_MISSED = 12, /* owner -> worker: as ABORT, of a SEEK alone */
  ZPS_FRAME_RESUME = 13, /* either way: the frame that I expect next. Not of the sequence of its link: it costs no
                          * credit, and goes alone, with a long header whose seq counts these frames, from 1 */
  ZPS_FRAME_CLOSED = 14, /* either way: a quorum closed the round, and these ranks are late. Of an owner, ahead of the
                          * sums. Of a worker, ahead of its push: an owner of an earlier epoch has said so */
};

/* The sender of a frame: a rank, or a server (its index in the job's server list) with the top bit set. */
#define ZPS_WIRE_SRC_SERVER 0x80000000u

struct zps_frame_header {
  uint8_t type; /* enum zps_frame_type */
  bool is_short;
  uint64_t job;     /* long: random id issued by the coordinator */
  uint32_t epoch;   /* long: membership epoch the sender lives in */
  uint32_t src;     /* long */
  uint32_t tag;     /* long: the tag for short frames to the sender; short: the tag that the receiver has asked for */
  uint32_t seq;     /* per (src, receiver), from 0, without gaps; short: its low 8 bits */
  uint16_t credits; /* receive credits returned to the receiver of this frame; short: below 256 */
};

/* A key that no fabric gives out: the payload is in the sender's shared memory, at offset `addr`. */
#define ZPS_WIRE_KEY_SHARED UINT64_MAX

/* A contribution, a sum, or the wanted rows of a PULL: of one partition, or of several joined ones
 * (common/codec/join.h), which follow each other at their owner. Its payload: values in ascending order of index (nnz *
 * width * value size), then the coded index set. */
struct zps_slice {
  uint32_t partition; /* PEER: the tag */
  uint32_t n_more;    /* inline: so many of the owner's partitions that follow in ascending order are joined to it */
  uint8_t codec;      /* enum zps_codec of common/codec; below ZPS_WIRE_CODECS */
  uint8_t values;     /* PEER: enum zps_value_codec, less 1; below ZPS_WIRE_VALUES */
  bool is_inline;
  bool is_wide;             /* PUSH, GIVE, of halves: its values are the floats that this rank's own sums are */
  uint32_t nnz;             /* rows */
  uint64_t len_bytes;       /* payload; 0 is legal and always inline */
  uint64_t addr;            /* remote: the address that the receiver passes to its read */
  uint64_t key;             /* remote: memory key */
  struct zps_net_keys more; /* remote: on further rails */
  uint64_t sum;             /* remote: checksum of the payload (common/session/checks.h); 0: it has none */
  const void *data;         /* inline: encode borrows it, decode points it into the frame, at any alignment */
};

/* The part of ZPS_WIRE_INLINE_MAX that a slice takes: its payload, or its keys on further rails. */
static inline uint64_t zps_slice_room(const struct zps_slice *slice) {
  return slice->is_inline ? slice->len_bytes : slice->more.n * 10u;
}

struct zps_frame_round { /* PUSH, RESULT, PEER, GIVE, PULL, SEEK, FOUND: at least one slice */
  uint32_t tensor;
  uint64_t step;
  uint64_t total_nnz;  /* PUSH, GIVE: the rank's rows over all partitions, as far as counted: no less than the slices'
                          nnz; PULL, SEEK: the rows that this frame and later ones ask of this owner; others: 0 */
  uint32_t timeout_ms; /* PUSH, GIVE, PULL, SEEK: the rest of the sender's deadline; others: 0 */
  bool is_absent;      /* PUSH, GIVE: the rank does not count among those that contribute to the step */
  uint32_t n_absent;   /* RESULT, FOUND: how many ranks do not */
  uint32_t seek;       /* SEEK, FOUND: the seek's number, as its rank counts; others: 0 */
  uint32_t age; /* steps before `step`. SEEK: the newest that is wanted; FOUND: the one whose sum follows; others: 0 */
  uint32_t age_max; /* steps before `step`. SEEK: the oldest that is wanted; others: 0 */
  uint32_t n_slices;
  struct zps_slice slices[ZPS_WIRE_SLICES_MAX];
};

struct zps_frame_done { /* DONE, TAKEN */
  uint32_t tensor;
  uint64_t step;
};

struct zps_frame_resume { /* RESUME */
  uint32_t expects;       /* sequence number of the frame that the sender expects next */
  uint32_t answers;       /* the seq of the RESUME that this one answers; 0: none */
  bool asks;              /* for an answer, at once */
  uint32_t early;         /* Bit i: the message that begins with frame expects + 1 + i has come. */
};

struct zps_frame_abort { /* ABORT, MISSED */
  uint32_t tensor;
  uint64_t step;
  uint32_t seek; /* MISSED: the seek's number; ABORT: 0 */
  zps_err_t code;
  uint32_t n_ranks;
  uint32_t ranks[ZPS_WIRE_RANKS_MAX]; /* missing or lost */
  char text[ZPS_WIRE_TEXT_MAX + 1];   /* printable UTF-8, NUL-terminated; encode replaces unprintable bytes by '?' */
};

struct zps_frame_closed { /* CLOSED */
  uint32_t tensor;
  uint64_t step;
  uint32_t n_bytes;                  /* the last one is not 0; 0: no rank is late */
  uint8_t late[ZPS_WIRE_LATE_BYTES]; /* bit i of byte k: rank 8 k + i */
};

struct zps_frame {
  struct zps_frame_header header;
  uint32_t len_bytes; /* of the encoded frame: set by decoding, and by the link that sends it */
  union {
    struct zps_frame_round round;
    struct zps_frame_done done;
    struct zps_frame_resume resume;
    struct zps_frame_abort abort;
    struct zps_frame_closed closed;
  } u;
};

/* All that comes ahead of slices, ranks and text becomes 0: these are many bytes, and counted. */
static inline void zps_frame_round_init(struct zps_frame_round *round) {
  memset(round, 0, offsetof(struct zps_frame_round, slices));
}
static inline void zps_frame_abort_init(struct zps_frame_abort *abort) {
  memset(abort, 0, offsetof(struct zps_frame_abort, ranks));
  abort->text[0] = '\0';
}

/* Names a late rank. Ranks ascend; the first one finds n_bytes 0. */
static inline void zps_frame_closed_add(struct zps_frame_closed *closed, uint32_t rank) {
  while (closed->n_bytes <= rank / 8) closed->late[closed->n_bytes++] = 0;
  closed->late[rank / 8] |= (uint8_t)(1u << rank % 8);
}

/* Writes `frame` to `buf` (at least ZPS_WIRE_FRAME_MAX bytes). ZPS_ERR_INVALID when a count or size exceeds the limits
 * above: a bug of the caller's. No allocation. */
zps_err_t zps_wire_encode(const struct zps_frame *frame, void *buf, size_t cap, size_t *len_p) ZPS_MUSTCHECK;
/* Checks `buf` completely and fills `frame`; inline data points into `buf`. ZPS_ERR_VERSION for another version (the
 * text names both), ZPS_ERR_PROTOCOL, with a text that names the fault and its place, for anything else. The caller
 * checks the facts that cannot be known here (is the tensor registered, is the partition in range). No allocation
 * beyond a fixed arena on the stack. */
zps_err_t zps_wire_decode(const void *buf, size_t len, struct zps_frame *frame, struct zps_error *error) ZPS_MUSTCHECK;
/* The header alone, of a frame whose sender is still to be looked for. */
zps_err_t zps_wire_header(const void *buf, size_t len, struct zps_frame_header *header,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* Only patches header fields of an encoded frame: the link fills seq and credits when the frame really leaves. */
void zps_wire_stamp(void *buf, uint32_t seq, uint16_t credits);
const char *zps_frame_type_name(uint8_t type);

/* A message: the unit that leaves for one peer at a time, either one frame as it is or several frames, each after
 * its length; then the MAC. */
struct zps_wire_message {
  uint8_t bytes[ZPS_WIRE_MESSAGE_MAX];
  uint8_t *first; /* frame */
  size_t len;
  unsigned n_frames;
};

void zps_wire_message_clear(struct zps_wire_message *message);
/* Appends a copy of an encoded frame, and returns it, for zps_wire_stamp(). NULL: it does not fit beside those there.
 */
void *zps_wire_message_add(struct zps_wire_message *message, const void *frame, size_t len);
/* The bytes to send of a message with frames, but for the MAC, for which there is room behind them. */
void *zps_wire_message_bytes(struct zps_wire_message *message, size_t *len_p);

/* The frames of a message that came. */
struct zps_wire_frames {
  const uint8_t *start, *at, *end;
  bool several, ended;
};

/* `len` counts the MAC, which is not looked at. */
void zps_wire_frames_begin(struct zps_wire_frames *frames, const void *message, size_t len);
/* The next frame, not yet looked at; NULL: there is no more. ZPS_ERR_PROTOCOL: the rest cannot be taken apart. */
zps_err_t zps_wire_frames_next(struct zps_wire_frames *frames, const void **frame_p, size_t *len_p,
                               struct zps_error *error) ZPS_MUSTCHECK;

#endif
