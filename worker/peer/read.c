/* RECV: payloads of other ranks, into memory of this one.
 *
 * What is announced may be far more than is to be read at a time. Of that, what stands first in the program is read
 * first: others get what they wait for sooner, memory that one lane is through with serves the next while it is in a
 * cache, and a round takes as much memory as its links fill, not as its peers announce. */
#include <inttypes.h>
#include <string.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"
#include "worker/api/job.h"
#include "worker/api/tensor.h"

/* What is no longer is checked here and now, at some 30 GB/s: a thread of the pool would take longer to wake up. */
#define CHECK_HERE_BYTES (512u << 10)

/* In a round so much is asked for at a time, over all peers: what 400 Gbit/s carry in a third of a millisecond. */
#define READING_BYTES (16u << 20)

static void read_waiting(struct zps_peer_round *exchange);

/* The payload is a peer's: nothing of it is used before it was checked. */
static zps_err_t view(struct zps_peer_task *task, struct zps_error *error) {
  const struct zps_peer_round *exchange = task->exchange;
  const struct zps_slice *slice = &task->slice;
  const struct zps_stream *stream = &task->compute.out;
  struct zps_error why;
  const zps_err_t err = zps_slice_view_init(
      &task->view, slice->codec, (uint32_t)(stream->hi - stream->lo), slice->nnz,
      zps_compute_width(&exchange->compute, stream->kind), zps_compute_dtype(&exchange->compute, stream->kind),
      (enum zps_value_codec)(slice->values + ZPS_VALUES_RAW), task->out, slice->len_bytes, &why);
  if (err == ZPS_OK) return err;
  const uint32_t rank = task->compute.instr.peer;
  return zps_fail(error, err, "message %" PRIu32 " of rank %" PRIu32 " (host %s) is malformed: %s", slice->partition,
                  rank, exchange->round->plane->ranks[rank].name, why.text);
}

/* What another process shares may change while it is looked at: it is copied, and the copy is checked. */
static void copy_run(struct zps_round_task *work) {
  struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  const struct zps_remote *rank = &work->round->plane->ranks[task->compute.instr.peer];
  const void *from = zps_segment_at(&rank->shared.view, task->slice.addr, task->slice.len_bytes);
  struct zps_error error;
  if (!from) {
    zps_fail(&error, ZPS_ERR_PROTOCOL,
             "message %" PRIu32 " of rank %" PRIu32 " (host %s) is said to be in memory that it does not share",
             task->slice.partition, task->compute.instr.peer, rank->name);
    zps_round_task_fail(work, &error);
    return;
  }
  memcpy(task->out, from, (size_t)task->slice.len_bytes);
  if (view(task, &error) != ZPS_OK) zps_round_task_fail(work, &error);
}

static void check_run(struct zps_round_task *work) {
  struct zps_error error;
  if (view(zps_container_of(work, struct zps_peer_task, task), &error) != ZPS_OK) zps_round_task_fail(work, &error);
}

static void landed(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  const uint64_t read_bytes = task->slice.is_inline ? 0 : task->slice.len_bytes;
  exchange->round->landed_last_ns = zps_clock_ns();
  zps_peer_set_stream(exchange, task->instr, &task->view, task->mem);
  zps_peer_carried_out(exchange, task->instr);
  zps_peer_task_put(task);
  exchange->reading_bytes -= read_bytes;
  if (read_bytes > 0) read_waiting(exchange);
}

static void check_done(struct zps_round_task *work) {
  if (zps_round_machine_over(work->round->machine)) return;
  landed(zps_container_of(work, struct zps_peer_task, task));
  zps_peer_advance(work->round->exchange);
}

static void check_here(struct zps_peer_task *task) {
  struct zps_error error;
  const zps_err_t err = view(task, &error);
  if (err == ZPS_OK)
    landed(task);
  else
    zps_round_fail(task->exchange->round, err, "%s", error.text);
}

static void copy_done(struct zps_round_task *work) {
  const struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  work->round->stats.shared_in += task->slice.len_bytes;
  work->round->stats.payload_in += task->slice.len_bytes;
  check_done(work);
}

static void read_next(struct zps_peer_round *exchange) {
  struct zps_peer_task *task = exchange->waiting;
  exchange->waiting = task->next_waiting;
  exchange->reading_bytes += task->slice.len_bytes;
  const zps_err_t err = zps_peer_get_memory(task, task->slice.len_bytes);
  if (err == ZPS_OK) {
    zps_peer_read(task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_round_fail(exchange->round, err, "no registered memory for a message of %" PRIu64 " bytes (ZENPS_MEMORY_LIMIT)",
                   task->slice.len_bytes);
  }
}

static void read_waiting(struct zps_peer_round *exchange) {
  while (
      exchange->waiting && !zps_round_machine_over(exchange->round->machine) &&
      (exchange->reading_bytes == 0 || exchange->reading_bytes + exchange->waiting->slice.len_bytes <= READING_BYTES))
    read_next(exchange);
}

void zps_peer_receive(struct zps_peer_round *exchange, uint32_t instr) {
  struct zps_peer_task *task = exchange->announced[instr], **at = &exchange->waiting;
  task->compute = (struct zps_compute_task){.instr = exchange->program.instrs[instr],
                                            .out = exchange->program.streams[exchange->program.instrs[instr].out]};
  if (task->slice.is_inline) {
    check_here(task);
    return;
  }
  exchange->peers[task->compute.instr.peer].remote = true;
  while (*at && (*at)->instr < instr) at = &(*at)->next_waiting;
  task->next_waiting = *at;
  *at = task;
  read_waiting(exchange);
}

/* A read of the rank's memory is over. */
static void read_ended(struct zps_peer_task *task) {
  struct zps_peer_round *exchange = task->exchange;
  struct zps_round *round = exchange->round;
  task->reading = false;
  round->n_reads--;
  exchange->peers[task->compute.instr.peer].n_reads--;
  zps_round_touch(round);
  if (round->machine->state == ZPS_MACHINE_FAILED && exchange->scheme->scheme->lends) zps_peer_owe_done(exchange);
}

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_peer_task *task = zps_container_of(read, struct zps_peer_task, read);
  struct zps_round *round = task->exchange->round;
  const uint32_t rank = task->compute.instr.peer;
  if (code == ZPS_ERR_PEER_LOST) { /* the buffer comes back with the release */
    zps_round_touch(round);
    zps_plane_rank_lost(round->plane, rank, "reading from it failed");
    return;
  }
  read_ended(task);
  if (code != ZPS_OK) {
    zps_round_fail(round, code, "reading from rank %" PRIu32 " (host %s) failed: %s", rank,
                   round->plane->ranks[rank].name, zps_err_str(code));
    return;
  }
  round->stats.bytes_in += task->slice.len_bytes;
  round->stats.payload_in += task->slice.len_bytes;
  if (zps_round_machine_over(round->machine)) return;
  if (task->slice.len_bytes <= CHECK_HERE_BYTES) {
    check_here(task);
    zps_peer_advance(task->exchange);
    return;
  }
  task->task.run = check_run;
  task->task.done = check_done;
  zps_round_task_start(&task->task, round->plane->pool);
}

static void read_release(struct zps_bulk_read *read) {
  read_ended(zps_container_of(read, struct zps_peer_task, read));
}

void zps_peer_stop_reading(struct zps_peer_round *exchange) {
  for (struct zps_peer_task *task = exchange->tasks; task; task = task->next) {
    if (task->reading) zps_bulk_give_up(&task->read, ZPS_ERR_CANCELED);
  }
}

void zps_peer_read(struct zps_peer_task *task) {
  struct zps_round *round = task->exchange->round;
  const struct zps_remote *rank = &round->plane->ranks[task->compute.instr.peer];
  if (task->slice.key == ZPS_WIRE_KEY_SHARED) {
    task->task.run = copy_run;
    task->task.done = copy_done;
    zps_round_task_start(&task->task, round->plane->pool);
    return;
  }
  if (rank->lost) return; /* the round fails for it */
  task->read = (struct zps_bulk_read){.local = task->out,
                                      .mem = task->mem->buf.mem,
                                      .len = task->slice.len_bytes,
                                      .addr = task->slice.addr,
                                      .key = task->slice.key,
                                      .done = read_done,
                                      .release = read_release};
  task->reading = true;
  round->n_reads++;
  task->exchange->peers[rank->index].n_reads++;
  zps_bulk_start(rank->bulk, &task->read);
}
