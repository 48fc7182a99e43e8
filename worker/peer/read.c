/* RECV: payloads of other ranks, into memory of this one.
 *
 * Peers may announce far more than is to be read at a time. Streams are read in the program's order: other ranks get
 * what they wait for sooner, memory that one lane is through with serves the next while it is in a cache, and a round
 * takes as much memory as its links fill, not as its peers announce. */
#include <inttypes.h>
#include <string.h>

#include "common/base/container.h"
#include "worker/peer/peer.h"

/* A payload of at most so many bytes is checked on the spot, at some 30 GB/s: a thread of the pool would take longer to
 * wake up. */
#define CHECK_HERE_BYTES (512u << 10)

/* Bytes that a round reads at a time, from all peers together: what 400 Gbit/s carry in a third of a millisecond. */
#define READING_BYTES (16u << 20)

static void read_waiting(struct zps_peer_round *round);

/* The payload is a peer's: nothing of it is used before it was checked. */
static zps_err_t view(struct zps_peer_task *task, struct zps_error *error) {
  const struct zps_peer_round *round = task->round;
  const struct zps_slice *slice = &task->slice;
  const struct zps_stream *stream = &task->compute.out;
  struct zps_error why;
  const zps_err_t err = zps_slice_view_init(
      &task->view, slice->codec, (uint32_t)(stream->hi - stream->lo), slice->nnz,
      zps_compute_width(&round->compute, stream->kind), zps_compute_dtype(&round->compute, stream->kind),
      (enum zps_value_codec)(slice->values + ZPS_VALUES_RAW), task->out, slice->len_bytes, &why);
  if (err == ZPS_OK) return err;
  const uint32_t rank = task->compute.instr.peer;
  return zps_fail(error, err, "message %" PRIu32 " of rank %" PRIu32 " (host %s) is malformed: %s", slice->partition,
                  rank, round->base.plane->ranks[rank].name, why.text);
}

/* Memory that another process shares may change while it is looked at: it is copied, and the copy is checked. Of a
 * process that was stopped meanwhile, and given up, nothing else would hold the copy back. */
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
  if (zps_plane_check_copied(work->round->plane, task->compute.instr.peer, &error) != ZPS_OK ||
      view(task, &error) != ZPS_OK)
    zps_round_task_fail(work, &error);
}

static void check_run(struct zps_round_task *work) {
  struct zps_error error;
  if (view(zps_container_of(work, struct zps_peer_task, task), &error) != ZPS_OK) zps_round_task_fail(work, &error);
}

static void landed(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  const uint64_t read_bytes = task->slice.is_inline ? 0 : task->slice.len_bytes;
  round->base.landed_last_ns = zps_clock_ns();
  zps_peer_set_stream(round, task->instr, &task->view, task->mem);
  round->streams[task->compute.instr.out].sum = task->slice.sum; /* for ranks that it is passed on to */
  zps_peer_carried_out(round, task->instr);
  zps_peer_task_put(task);
  round->reading_bytes -= read_bytes;
  if (read_bytes > 0) read_waiting(round);
}

static void check_done(struct zps_round_task *work) {
  if (zps_round_machine_over(work->round->machine)) return;
  landed(zps_container_of(work, struct zps_peer_task, task));
  zps_peer_due(zps_peer_of(work->round));
}

static void check_here(struct zps_peer_task *task) {
  struct zps_error error;
  const zps_err_t err = view(task, &error);
  if (err == ZPS_OK)
    landed(task);
  else
    zps_round_fail(&task->round->base, err, "%s", error.text);
}

static void copy_done(struct zps_round_task *work) {
  const struct zps_peer_task *task = zps_container_of(work, struct zps_peer_task, task);
  work->round->stats.shared_in += task->slice.len_bytes;
  work->round->stats.payload_in += task->slice.len_bytes;
  check_done(work);
}

static void read_next(struct zps_peer_round *round) {
  struct zps_peer_task *task = round->to_read;
  round->to_read = task->next_to_read;
  round->reading_bytes += task->slice.len_bytes;
  const zps_err_t err = zps_peer_get_memory(task, task->slice.len_bytes);
  if (err == ZPS_OK) {
    zps_peer_read(task);
  } else if (err != ZPS_ERR_AGAIN) {
    zps_round_fail(&round->base, err, "no registered memory for a message of %" PRIu64 " bytes (ZENPS_MEMORY_LIMIT)",
                   task->slice.len_bytes);
  }
}

static void read_waiting(struct zps_peer_round *round) {
  while (round->to_read && !zps_round_machine_over(round->base.machine) &&
         (round->reading_bytes == 0 || round->reading_bytes + round->to_read->slice.len_bytes <= READING_BYTES))
    read_next(round);
}

void zps_peer_receive(struct zps_peer_round *round, uint32_t instr) {
  struct zps_peer_task *task = round->announced[instr], **at = &round->to_read;
  task->compute = (struct zps_compute_task){.instr = round->program.instrs[instr],
                                            .out = round->program.streams[round->program.instrs[instr].out]};
  if (task->slice.is_inline) {
    check_here(task);
    return;
  }
  round->remotes[task->compute.instr.peer].is_read = true;
  while (*at && (*at)->instr < instr) at = &(*at)->next_to_read;
  task->next_to_read = *at;
  *at = task;
  read_waiting(round);
}

/* A read of the rank's memory is over. */
static void read_ended(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  struct zps_round *base = &round->base;
  task->reading = false;
  base->n_reads--;
  round->remotes[task->compute.instr.peer].n_reads--;
  zps_round_touch(base);
  if (base->machine->state == ZPS_MACHINE_FAILED && round->base.tensor->peer->scheme->zerocopy)
    zps_peer_owe_done(round);
}

/* The rank is lost, and the round fails. The fabric may write to the memory for as long as the rank is silent: the
 * round, and the job that is being closed, do not wait for that. The task belongs to its read from here on. */
static void leave_behind(struct zps_peer_task *task) {
  struct zps_peer_round *round = task->round;
  struct zps_peer_task **at = &round->tasks;
  read_ended(task);
  while (*at != task) at = &(*at)->next;
  *at = task->next;
  round->announced[task->instr] = NULL;
  task->mem->n_left++;
}

static void read_done(struct zps_bulk_read *read, zps_err_t code) {
  struct zps_peer_task *task = zps_container_of(read, struct zps_peer_task, read.bulk);
  struct zps_round *base = &task->round->base;
  const uint32_t rank = task->compute.instr.peer;
  if (code == ZPS_ERR_PEER_LOST) {
    leave_behind(task);
    zps_plane_lose(&base->plane->ranks[rank], "reading from it failed");
    return;
  }
  read_ended(task);
  if (code != ZPS_OK) {
    zps_round_fail(base, code, "reading from rank %" PRIu32 " (host %s) failed: %s", rank,
                   base->plane->ranks[rank].name, zps_checks_why(&task->read, code));
    return;
  }
  base->stats.bytes_in += task->slice.len_bytes;
  base->stats.payload_in += task->slice.len_bytes;
  if (zps_round_machine_over(base->machine)) return;
  if (task->slice.len_bytes <= CHECK_HERE_BYTES) {
    check_here(task);
    zps_peer_due(task->round);
    return;
  }
  task->task.run = check_run;
  task->task.done = check_done;
  zps_round_task_start(&task->task, base->plane->pool);
}

static void read_release(struct zps_bulk_read *read) {
  zps_peer_task_end(zps_container_of(read, struct zps_peer_task, read.bulk));
}

void zps_peer_stop_reading(struct zps_peer_round *round) {
  for (struct zps_peer_task *task = round->tasks; task; task = task->next) {
    if (task->reading) zps_bulk_give_up(&task->read.bulk, ZPS_ERR_CANCELED);
  }
}

void zps_peer_read(struct zps_peer_task *task) {
  struct zps_round *base = &task->round->base;
  const struct zps_remote *rank = &base->plane->ranks[task->compute.instr.peer];
  if (task->slice.key == ZPS_WIRE_KEY_SHARED) {
    task->task.run = copy_run;
    task->task.done = copy_done;
    zps_round_task_start(&task->task, base->plane->pool);
    return;
  }
  if (rank->lost) return; /* the round fails for it */
  task->read.bulk = (struct zps_bulk_read){.local = task->out,
                                           .mem = task->mem->buf.mem,
                                           .len = task->slice.len_bytes,
                                           .addr = task->slice.addr,
                                           .key = task->slice.key,
                                           .more = task->slice.more,
                                           .done = read_done,
                                           .release = read_release};
  task->reading = true;
  base->n_reads++;
  task->round->remotes[rank->index].n_reads++;
  zps_checks_read(base->plane->checks, rank->bulk, &task->read, task->slice.sum);
}
