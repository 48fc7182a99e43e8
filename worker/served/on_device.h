/*
 * Rounds over servers whose gradient or result is in device memory: their state, and the work that replaces coding on
 * the CPU.
 *
 * Gradient: the device scans, encodes all slices into one piece of its memory, and they are staged from there to where
 * servers read them, in order; servers read the first ones while those behind them are copied. Result: each sum is sent
 * to the device when it has landed, and all are decoded there at once. Where the fabric reaches device memory, servers
 * read slices where they were encoded, and sums land on the device; their checksums are made there, too.
 *
 * Everything is submitted to the caller's streams by the device's two threads (device.h), as tasks of the round.
 */
#ifndef ZPS_WORKER_SERVED_ON_DEVICE_H
#define ZPS_WORKER_SERVED_ON_DEVICE_H

#include "common/net/net.h"
#include "worker/device/device.h"

struct zps_round_task;
struct zps_served_round;
struct zps_served_part;
struct zps_worker_device;
struct zps_checked_read;
struct zps_served_fetch;
struct zps_encode_input;
struct zps_slice_view;

/* Memory of the device for the slices of all partitions, one after the other: those that travel inside frames first. */
struct zps_device_slices {
  void *at;
  size_t cap;
  /* Where the fabric reads slices itself. */
  struct zps_net_mem mem; /* engine thread: registration of */
  void *exposed;          /* what was `at` then; NULL: nothing */
  void *retired;          /* memory that is freed when it is no longer exposed */
};

/* Kept from round to round; all zero at first. */
struct zps_device_push {
  struct zps_device_encoder *encoder;
  struct zps_stage_mark mark; /* behind what was submitted last */
  uint64_t serial;
  struct zps_device_slices slices;
  bool is_short, may_retry; /* there was no memory for them; a kept round can give its own up then */
  size_t slices_bytes;
  void *small; /* a copy of those inside frames, in pinned memory */
  size_t small_bytes, small_cap;
  size_t *offsets; /* of each partition in `slices` */
  void **outs;
  struct zps_device_tag *tags; /* pinned: of each partition, where reads are checked */
};

struct zps_device_chunk;
struct zps_device_pull {
  bool is_direct;                  /* the round's sums: the fabric writes them to the device */
  struct zps_device_chunk *direct; /* engine thread: where it does */
  struct zps_device_decoder *decoder;
  struct zps_stage_mark mark;
  bool is_ready;                           /* for the round at hand */
  struct zps_device_chunk *chunks, *chunk; /* where sums are, until they are decoded; the one at hand */
  struct zps_device_view *views;           /* of those that have rows, in the order in which they came */
  uint32_t n_views;
  void *rows, *values;                                      /* a result that is the library's, in device memory */
  struct zps_device_tag *tags;                              /* pinned: of the sums that are being hashed */
  struct zps_served_fetch *hashing, *landed, **landed_tail; /* engine thread: these, and those that are next */
};

/* On the device's thread for gradients, as parts of the round's tasks; a failure fails the task. */
void zps_device_push_scan(struct zps_round_task *task, const struct zps_encode_input *input);
/* On the engine thread, when that is done: true where the device had no memory for slices. The task runs again, with
 * those of a round that is kept no longer. */
bool zps_device_push_retries(struct zps_served_round *round);
/* Brings the partitions that travel inside frames. */
bool zps_device_push_small(struct zps_round_task *task);
/* One of those, or its bytes copied to `out`. */
struct zps_slice_view zps_device_push_view(const struct zps_served_part *part);
void zps_device_push_copy(const struct zps_served_part *part, void *out);
/* Brings a partition to where its server reads it. */
void zps_device_push_write(struct zps_round_task *task);

/* On the engine thread: lets the server read a partition where it is, and says so in its push_buf. False: it is staged.
 */
bool zps_device_push_is_direct(const struct zps_served_round *round);
zps_err_t zps_device_push_expose(struct zps_served_part *part, struct zps_net *net) ZPS_MUSTCHECK;

/* On the device's thread for gradients: submits the hashing of what servers read where it is; and the checksum of a
 * partition, once that is done. 0: there is none. */
zps_err_t zps_device_push_hash(struct zps_served_round *round, struct zps_error *error) ZPS_MUSTCHECK;
uint64_t zps_device_push_sum(const struct zps_served_part *part);

/* On the engine thread: room for the partition's sum in device memory, and its registration. */
zps_err_t zps_device_pull_room(struct zps_served_part *part, struct zps_net *net,
                               const struct zps_net_mem **mem_p) ZPS_MUSTCHECK;
/* On the engine thread: the sum has landed there; the device hashes it, with all that land meanwhile. */
void zps_device_pull_hash(struct zps_checked_read *read);
/* On the device's thread for results: makes the state ready for the round's first work, and waits until the stream has
 * done all that was submitted, until the deadline. */
zps_err_t zps_device_pull_prepare(struct zps_served_round *round, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_device_pull_wait(struct zps_served_round *round, struct zps_error *error) ZPS_MUSTCHECK;
/* The task that sends the partition's sum to the device, and the one that decodes all of them. */
void zps_device_pull_upload(struct zps_round_task *task);
void zps_device_pull_decode(struct zps_round_task *task);
/* On the engine thread, when the round begins. */
void zps_device_pull_begin(struct zps_served_round *round);
/* At the end, before the request is told: a result of the library's goes to the request, or is kept until the
 * round's memory is used again. */
void zps_device_pull_finish(struct zps_served_round *round, bool ok);

/* On the engine thread, when the round has failed: the request is told when the device is through with its work, at the
 * latest at the deadline, so that the arrays are the caller's again. True: the device is being waited for. */
bool zps_device_round_quiesce(struct zps_served_round *round);

/* On the engine thread, when the round begins: it takes from the tensor's rounds that are kept what they do not need to
 * give their pushes again, which is all but slices that the fabric reads on the device. */
void zps_device_round_begin(struct zps_served_round *round);
void zps_device_round_fini(struct zps_served_round *round);

#endif
