/*
 * A round over servers: the gradient is cut into partitions, each encoded and announced to the server that owns it,
 * which reads it; sums come back the same way. All schemes over servers (kinds.h) run so.
 *
 * scan.c, lookahead.h: finding rows; push.c, join.c: encoding and announcing; pull.c: sums; decode.c, rows.c: from sums
 * to the result; device_push.c, device_pull.c, device_checks.c (on_device.h): the same in device memory; replay.c:
 * other owners, when a server is lost; served.c: the kind's ops, and every action of machine.c carried out.
 *
 * Small rounds do without tasks on the pools, where handing over takes longer than the work: the trainer's thread
 * encodes them before they begin, the engine thread decodes.
 */
#ifndef ZPS_WORKER_SERVED_SERVED_H
#define ZPS_WORKER_SERVED_SERVED_H

#include "common/base/workpool.h"
#include "common/codec/codec.h"
#include "common/codec/decode.h"
#include "common/codec/encode.h"
#include "common/session/checks.h"
#include "worker/device/staging.h"
#include "worker/plane/plane.h"
#include "worker/round/round.h"
#include "worker/round/rounds.h"
#include "worker/served/blocks.h"
#include "worker/served/kinds.h"
#include "worker/served/lookahead.h"
#include "worker/served/on_device.h"

extern const struct zps_round_ops zps_served_ops;
extern const struct zps_round_machine_ops zps_served_machine;

/* A sum that is read. When the server is lost meanwhile, the fabric may hold the buffer for as long as the server is
 * silent: it stays behind with this, and the round goes on without; in memory of a device, of which this keeps the
 * round from being used anew. */
struct zps_served_fetch {
  struct zps_checked_read read;
  struct zps_served_part *part; /* NULL: the read was left behind, with `buf` or `round` */
  struct zps_buf buf;           /* of `memory` */
  struct zps_plane_memory *memory;
  struct zps_served_round *round; /* its memory of a device, where the read goes there */
  struct zps_served_fetch *next;  /* of those that the device hashes */
};

struct zps_served_part {
  struct zps_round_task task; /* write, later decode */
  uint32_t m;                 /* rows of the partition */
  uint32_t nnz;               /* rows pushed */
  uint64_t push_bytes;
  enum zps_codec push_codec;
  bool is_wide;    /* of halves: floats travel, since this rank's sums are no halves */
  void *push_data; /* in `arena` where inline, in `push_buf` otherwise */
  /* Small ones that follow each other at a server are joined: their slice travels with the first one. */
  struct zps_served_part *joined_to, *join_next; /* the first one (itself, when alone); the next one joined to it */
  uint32_t n_more;                               /* joined to this one */
  uint64_t slice_bytes;                          /* of the slice; before it is written, the most it can take */
  uint32_t slice_nnz;
  enum zps_codec slice_codec;
  struct zps_buf push_buf;
  uint64_t push_sum; /* checksum of what is read there; 0: none */
  struct zps_served_part *next_ready;
  bool told; /* the owner announced its sum: it has read our contribution */
  struct zps_slice result;
  void *sum; /* in `arena` where inline, in `pull_buf` otherwise */
  struct zps_buf pull_buf;
  struct zps_plane_wait wait; /* for pull_buf */
  struct zps_served_part *next_held_back;
  struct zps_served_fetch *fetch; /* made with the first read, and kept from round to round */
};

/* One step of scanning the gradient, and what of its partitions travels inside frames. */
struct zps_served_scan_step {
  struct zps_round_task find, small;
  bool any_inline;
};

struct zps_served_server {
  struct zps_served_part *ready, **ready_tail;    /* written, to be announced */
  bool announced;                                 /* it was told of partitions */
  bool over;                                      /* it gave the round up itself */
  bool any_remote;                                /* some of its sums must be read: it waits for our DONE */
  bool owes_done, owes_abort;                     /* frames to be sent */
  bool knows_closed;                              /* it has closed the round, or was told that an earlier owner has */
  bool asks;                                      /* rows that are wanted must still be named to it */
  uint32_t ask_part;                              /* the first partition of those rows */
  uint64_t ask_run, ask_rows;                     /* the run of that partition to begin with; rows not named yet */
  struct zps_served_part *join_first, *join_last; /* while partitions are joined: the slice at hand */
  uint64_t join_m;                                /* rows of the joined partitions */
};

struct zps_served_round {
  struct zps_round base;

  /* Kept from round to round. */
  struct zps_encoder *encoder;
  struct zps_blocks blocks; /* of a scheme of blocks */
  struct zps_served_part *parts;
  struct zps_served_server *servers;
  struct zps_slice_view *views; /* of the sums, for decoding rows */
  struct zps_decode_scratch decode_scratch;
  struct zps_decode_stripes ordered;  /* rows of their sums */
  struct zps_served_scan_step *scans; /* [stripes], the first n_scans used */
  struct zps_round_task *clears, *stripes;
  struct zps_device_push device_push;
  struct zps_device_pull device_pull;
  struct zps_staging staging;

  /* Of the current round. */
  struct zps_round_task whole, hash, quiesce_in, quiesce_out;
  struct zps_plane_wait wait;     /* for push buffers */
  unsigned n_pieces, n_clears;    /* tasks that clear the result; those that are left */
  uint32_t n_scans;               /* steps of scanning */
  struct zps_lookahead lookahead; /* the steps of scanning that have begun */
  uint32_t n_sized;               /* partitions whose size is known */
  uint32_t n_ordered;             /* stripes whose rows are in order */
  uint32_t next_buffer;           /* place, in the order of pushes, of the partition that gets its buffer next */
  struct zps_served_part *held_back, **held_back_tail; /* sums that are read when all pushes have buffers */
  uint32_t seek;                                       /* the number of a round that seeks */
  uint32_t sought_at, age; /* the server that is asked first; how many steps older than the round's its sum is */
  bool is_found;           /* `age` is known */
  const struct zps_slice *at_hand; /* a sum that a frame announces, while the machine decides on it */
  unsigned n_uploads;              /* sums that are on their way to the device */
  unsigned n_reads_left;           /* of base.n_reads: from servers that were lost, which nobody waits for */
  uint32_t inline_bytes;           /* longer slices are read */
  bool is_remapped;                /* owners have changed since it was encoded: nothing is joined any more */
  bool is_small;                   /* scanned by the trainer's thread, which also encoded what is pushed inline */
  bool is_apart;                   /* gradient and result have no memory in common */
  bool is_quiesced;                /* it has failed, and the device is through with it, or not in time */
};

static inline struct zps_served_round *zps_served_of(const struct zps_round *round) {
  return (struct zps_served_round *)(uintptr_t)round;
}

static inline bool zps_served_part_is_inline(const struct zps_served_part *part) {
  return part->push_bytes <= zps_served_of(part->task.round)->inline_bytes;
}

/* join.c */
/* Sorts the inline ones of partitions [first, end) into slices, whose bytes and rows are bounds until they are written.
 */
void zps_served_join(struct zps_served_round *round, uint32_t first, uint32_t end);
/* On the pool: writes the slice that begins with `part`, or the partitions one by one where that takes fewer bytes. */
void zps_served_part_write_joined(struct zps_served_part *part);

/* scan.c */
void zps_served_scan_init(struct zps_served_round *round);
/* In how many steps the gradient is scanned. */
uint32_t zps_served_scan_steps(const struct zps_served_round *round);
uint32_t zps_served_scan_parts(const struct zps_served_round *round); /* partitions of one step */
void zps_served_scan(struct zps_served_round *round);
/* Begins all steps that are left, whatever links can carry. */
void zps_served_flush(struct zps_round *base);
/* The owner has announced the partition's sum. */
void zps_served_summed(struct zps_served_round *round, const struct zps_served_part *part);

/* push.c */
/* The coding in which the partition's values are pushed: the tensor's; raw where it is wide. */
enum zps_value_codec zps_served_part_value_codec(const struct zps_served_part *part);
void zps_served_push_init(struct zps_served_round *round);
/* Whether the result may be written while the gradient is read. */
bool zps_served_is_apart(const struct zps_served_round *round);
/* On the trainer's thread: encodes a small gradient. */
void zps_served_prepare(struct zps_round *base);
void zps_served_write(struct zps_served_round *round, uint32_t scan);
void zps_served_announce(struct zps_served_round *round, uint32_t partition);
/* The round's wait: takes push buffers in order and has them written. ZPS_ERR_AGAIN: for memory, or for the next scan.
 */
zps_err_t zps_served_take_buffers(struct zps_plane_wait *wait) ZPS_MUSTCHECK;
bool zps_served_has_buffers(const struct zps_served_round *round); /* all that it will need for pushes */
/* Sends PUSH frames to a server. ZPS_ERR_AGAIN: some are left. */
zps_err_t zps_served_send_ready(struct zps_served_round *round, uint32_t server, uint64_t now_ns) ZPS_MUSTCHECK;

/* pull_frames.c */
/* Notes what each server is to be asked for. Of a round that seeks, one of them is asked alone, which finds the sum. */
void zps_served_ask_init(struct zps_served_round *round);
/* Sends PULL frames to a server. ZPS_ERR_AGAIN: some are left. */
zps_err_t zps_served_ask(struct zps_served_round *round, uint32_t server, uint32_t timeout_ms) ZPS_MUSTCHECK;

/* A FOUND frame: whether it announces rows of the sum that is sought; else the round has failed. */
bool zps_served_found(struct zps_served_round *round, uint32_t server, const struct zps_frame_round *found);

/* pull.c */
/* The owner has all that was given to it. */
void zps_served_taken(struct zps_served_round *round, uint32_t server, const struct zps_frame *frame);
/* A quorum has closed the round. */
void zps_served_closed(struct zps_served_round *round, uint32_t server, const struct zps_frame_closed *closed);
void zps_served_pull_init(struct zps_served_round *round);
void zps_served_result(struct zps_served_round *round, uint32_t server, const struct zps_frame *frame);
/* Fetches the sum that is at hand. */
void zps_served_read(struct zps_served_round *round, uint32_t partition);
void zps_served_part_put_pull_buf(struct zps_served_part *part); /* gives back the sum's memory */
/* Asks for memory for the sums that were held back for pushes. */
void zps_served_pull_resume(struct zps_served_round *round);

/* decode.c */
void zps_served_decode_init(struct zps_served_round *round);
/* On the pool: opens the partition's sum, which is a peer's, to round->views. False: the task has failed. */
bool zps_served_view(struct zps_round_task *task, uint32_t p);
void zps_served_clear(struct zps_served_round *round);
void zps_served_decode_stripe(struct zps_served_round *round, uint32_t stripe);
void zps_served_decode(struct zps_served_round *round, uint32_t partition); /* ZPS_MACHINE_ALL: all partitions */

/* rows.c */
void zps_served_decode_rows(struct zps_served_round *round);
/* Whether rows are put in order stripe by stripe: then the machine decodes stripes, and when the last one is in order
 * all are decoded. */
bool zps_served_orders_stripes(const struct zps_served_round *round);
void zps_served_order_stripe(struct zps_served_round *round, uint32_t stripe);

/* replay.c */
extern const char zps_served_sums_lost[];
void zps_served_servers_init(struct zps_served_round *round);
bool zps_served_can_give(const struct zps_round *base);
void zps_served_remap(struct zps_round *base);
void zps_served_outdate(struct zps_round *base, bool is_wanted);
bool zps_served_is_still(const struct zps_round *base);
void zps_served_give(struct zps_round *base);
/* Nothing of the partition's sum is here: as if it had not been announced. */
void zps_served_unread(struct zps_served_round *round, uint32_t partition);
/* Takes the slice that `part` is joined to apart. False: there is no memory, and the round fails. */
bool zps_served_part_from_joined(struct zps_served_part *part);

/* end.c */
/* Completes the reason of a failure by what the machine knows. */
void zps_served_explain(struct zps_round *base);
/* No server can be reading what the round pushed any more. */
bool zps_served_quiet(const struct zps_round *base);

#endif
