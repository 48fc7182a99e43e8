#define ZPS_LOG_COMPONENT "device"
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/device/device.h"
#include "worker/served/served.h"

#define CHUNK_BYTES (4u << 20)

struct zps_device_chunk {
  struct zps_device_chunk *next;
  void *at_on_device;
  size_t cap, n_used;
  struct zps_net_mem mem; /* where the fabric writes to it */
};

static void release(const struct zps_served_round *round, void **at_p) {
  struct zps_device *const device = round->base.device->device;
  if (*at_p) device->ops->release(device, ZPS_MEMORY_DEVICE, *at_p);
  *at_p = NULL;
}

zps_err_t zps_device_pull_prepare(struct zps_served_round *round, struct zps_error *error) {
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_device *const device = round->base.device->device;
  zps_err_t code = ZPS_OK;
  if (pull->is_ready) return ZPS_OK;
  if (!pull->views) pull->views = calloc(round->base.tensor->part.n_parts, sizeof *pull->views);
  if (!pull->views) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u sums", round->base.tensor->part.n_parts);
  if (!pull->decoder) code = device->ops->decoder_create(device, &pull->decoder, error);
  /* A round that failed may have left work behind that uses the same memory. */
  if (code == ZPS_OK) code = zps_stage_mark_wait(device, &pull->mark, round->base.deadline_ns, error);
  if (code != ZPS_OK) return code;
  device->ops->release_on(device, pull->rows, round->base.out->stream);
  device->ops->release_on(device, pull->values, round->base.out->stream);
  pull->rows = pull->values = NULL;
  for (struct zps_device_chunk *chunk = pull->chunks; chunk; chunk = chunk->next) chunk->n_used = 0;
  pull->chunk = pull->chunks;
  pull->n_views = 0;
  pull->is_ready = true;
  return ZPS_OK;
}

static zps_err_t record(struct zps_served_round *round, struct zps_error *error) {
  return zps_stage_mark_set(round->base.device->device, &round->device_pull.mark, round->base.out->stream, error);
}

zps_err_t zps_device_pull_wait(struct zps_served_round *round, struct zps_error *error) {
  return zps_stage_finish(round->base.device->device, &round->device_pull.mark, round->base.out->stream,
                          round->base.deadline_ns, error);
}

/* Memory that a fabric is to reach may make the device wait where it is allocated; other memory does not. */
static zps_err_t allocate_chunk(const struct zps_served_round *round, struct zps_device_chunk *chunk,
                                struct zps_error *error) {
  struct zps_device *const device = round->base.device->device;
  if (round->device_pull.is_direct)
    return device->ops->allocate(device, ZPS_MEMORY_DEVICE, chunk->cap, &chunk->at_on_device, error);
  return device->ops->allocate_on(device, chunk->cap, round->base.out->stream, &chunk->at_on_device, error);
}

/* Room for a sum, up to the next multiple of 16 bytes, in a chunk of the list from *from_p on; *first_p is where the
 * list begins. */
static zps_err_t take_room(const struct zps_served_round *round, struct zps_device_chunk **first_p,
                           struct zps_device_chunk *from, size_t len_bytes, struct zps_device_chunk **chunk_p,
                           void **at_p, struct zps_error *error) {
  len_bytes = (len_bytes + 15) & ~(size_t)15;
  struct zps_device_chunk *chunk = from, *last = NULL;
  for (; chunk && chunk->cap - chunk->n_used < len_bytes; chunk = chunk->next) last = chunk;
  if (!chunk) {
    chunk = calloc(1, sizeof *chunk);
    if (!chunk) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for a sum");
    chunk->cap = len_bytes > CHUNK_BYTES ? len_bytes : CHUNK_BYTES;
    const zps_err_t code = allocate_chunk(round, chunk, error);
    if (code != ZPS_OK) {
      free(chunk);
      return code;
    }
    *(last ? &last->next : first_p) = chunk;
  }
  *chunk_p = chunk;
  *at_p = (char *)chunk->at_on_device + chunk->n_used;
  chunk->n_used += len_bytes;
  return ZPS_OK;
}

zps_err_t zps_device_pull_room(struct zps_served_part *part, struct zps_net *net, const struct zps_net_mem **mem_p) {
  struct zps_served_round *const round = zps_served_of(part->task.round);
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_device_chunk *chunk = NULL;
  struct zps_error error;
  void *at = NULL;
  zps_err_t code = take_room(round, &pull->direct, pull->direct, (size_t)part->result.len_bytes, &chunk, &at, &error);
  if (code == ZPS_OK && !chunk->mem.handle)
    code = zps_worker_device_register(round->base.device, net, chunk->at_on_device, chunk->cap, &chunk->mem, &error);
  if (code != ZPS_OK) {
    zps_log_warn("no memory of GPU %d for a sum: %s", round->base.device->index, error.text);
    return code;
  }
  part->sum = at;
  *mem_p = &chunk->mem;
  return ZPS_OK;
}

/* The fabric has written the sum to the device. */
static bool is_there(const struct zps_served_part *part) {
  return !part->result.is_inline && !part->pull_buf.owner;
}

void zps_device_pull_upload(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  const struct zps_served_part *const part = &round->parts[task->arg];
  struct zps_error error;
  void *at = NULL;
  zps_err_t code = zps_device_pull_prepare(round, &error);
  if (part->result.nnz > 0 && is_there(part)) {
    at = part->sum;
  } else if (code == ZPS_OK && part->result.nnz > 0) {
    struct zps_device_pull *const pull = &round->device_pull;
    code = take_room(round, &pull->chunks, pull->chunk, (size_t)part->result.len_bytes, &pull->chunk, &at, &error);
    if (code == ZPS_OK)
      code = zps_stage_write(round->base.device->out_stage, at, part->sum, (size_t)part->result.len_bytes,
                             round->base.out->stream, round->base.deadline_ns, &error);
    if (code == ZPS_OK) code = record(round, &error);
  }
  if (code != ZPS_OK) {
    zps_round_task_fail(task, &error);
    return;
  }
  if (part->result.nnz == 0) return;
  struct zps_device_pull *const pull = &round->device_pull;
  pull->views[pull->n_views++] = (struct zps_device_view){.codec = part->result.codec,
                                                          .value_codec = round->base.tensor->value_codec,
                                                          .partition = task->arg,
                                                          .nnz = part->result.nnz,
                                                          .len_bytes = part->result.len_bytes,
                                                          .payload_on_device = at};
}

/* ------------------------------------------------------------ decode */

static zps_err_t take_rows(struct zps_served_round *round, int64_t **rows_p, void **values_p, struct zps_error *error) {
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_device *const device = round->base.device->device;
  const uint64_t nnz = round->base.stats.nnz_out;
  if (round->base.out->row_ids && zps_round_rows_fit(&round->base, nnz)) {
    *rows_p = round->base.out->row_ids;
    *values_p = round->base.out->values;
    return ZPS_OK;
  }
  const size_t n = nnz ? (size_t)nnz : 1;
  const size_t row_bytes = round->base.tensor->shape.width * zps_dtype_size(round->base.tensor->dtype);
  const zps_stream_t stream = round->base.out->stream;
  zps_err_t code = device->ops->allocate_on(device, n * sizeof(int64_t), stream, &pull->rows, error);
  if (code == ZPS_OK) code = device->ops->allocate_on(device, n * row_bytes, stream, &pull->values, error);
  *rows_p = pull->rows;
  *values_p = pull->values;
  return code;
}

static zps_err_t decode(struct zps_served_round *round, struct zps_error *error) {
  struct zps_device_pull *const pull = &round->device_pull;
  struct zps_device *const device = round->base.device->device;
  const struct zps_round_tensor *const tensor = round->base.tensor;
  const struct zps_partition *const part = zps_round_tensor_device_part(tensor);
  const zps_stream_t stream = round->base.out->stream;
  zps_err_t code;
  if (round->base.out->layout == ZENPS_ROWS) {
    int64_t *rows;
    void *values;
    code = take_rows(round, &rows, &values, error);
    if (code == ZPS_OK)
      code = device->ops->decoder_rows(pull->decoder, part, tensor->width, tensor->dtype, pull->views, pull->n_views,
                                       rows, values, stream, error);
  } else {
    const size_t dense_bytes = (size_t)zps_tensor_shape_bytes(&tensor->shape);
    code = device->ops->clear(device, round->base.out->values, dense_bytes, stream, error);
    if (code == ZPS_OK)
      code = device->ops->decoder_dense(pull->decoder, part, tensor->width, tensor->dtype, pull->views, pull->n_views,
                                        round->base.out->values, stream, error);
  }
  if (code == ZPS_OK) code = zps_device_pull_wait(round, error);
  if (code != ZPS_OK) return code;
  struct zps_error why;
  code = device->ops->decoder_finish(pull->decoder, &why);
  return code == ZPS_OK ? code : zps_fail(error, code, "a server's sum is malformed: %s", why.text);
}

void zps_device_pull_decode(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_error error, ignored;
  if (decode(round, &error) == ZPS_OK) return;
  (void)!record(round, &ignored); /* what was submitted before it failed may still write the result */
  zps_round_task_fail(task, &error);
}

/* ------------------------------------------------------------ life */

void zps_device_pull_begin(struct zps_served_round *round) {
  struct zps_device_pull *const pull = &round->device_pull;
  pull->is_ready = false;
  /* Work that a failed round has left behind may still use the memory: the sums are staged then. */
  pull->is_direct =
      round->base.out->memory == ZENPS_DEVICE && round->base.device->path != ZPS_PATH_STAGED && !pull->mark.is_pending;
  for (struct zps_device_chunk *chunk = pull->direct; chunk && pull->is_direct; chunk = chunk->next) chunk->n_used = 0;
}

void zps_device_pull_finish(struct zps_served_round *round, bool ok) {
  if (ok) zps_round_give_on_device(&round->base, &round->device_pull.rows, &round->device_pull.values);
}

static void quiesce_in_run(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_error ignored;
  (void)!zps_stage_mark_wait(round->base.device->device, &round->device_push.mark, round->base.deadline_ns, &ignored);
}

static void quiesce_out_run(struct zps_round_task *task) {
  struct zps_served_round *const round = zps_served_of(task->round);
  struct zps_error ignored;
  (void)!zps_stage_mark_wait(round->base.device->device, &round->device_pull.mark, round->base.deadline_ns, &ignored);
}

bool zps_device_round_quiesce(struct zps_served_round *round) {
  const bool in = round->device_push.mark.is_pending, out = round->device_pull.mark.is_pending;
  if (round->is_quiesced || round->base.machine->state == ZPS_MACHINE_DONE) return false;
  round->is_quiesced = true;
  if (in) {
    round->quiesce_in = (struct zps_round_task){.round = &round->base, .run = quiesce_in_run};
    zps_round_task_start(&round->quiesce_in, round->base.device->in_pool);
  }
  if (out) {
    round->quiesce_out = (struct zps_round_task){.round = &round->base, .run = quiesce_out_run};
    zps_round_task_start(&round->quiesce_out, round->base.device->out_pool);
  }
  return in || out;
}

static void free_chunks(struct zps_device *device, struct zps_device_chunk *chunk) {
  for (struct zps_device_chunk *next; chunk; chunk = next) {
    next = chunk->next;
    device->ops->release(device, ZPS_MEMORY_DEVICE, chunk->at_on_device);
    free(chunk);
  }
}

/* Registrations went with the fabric. */
void zps_device_round_fini(struct zps_served_round *round) {
  struct zps_device_push *const push = &round->device_push;
  struct zps_device_pull *const pull = &round->device_pull;
  if (!round->base.device) return;
  struct zps_device *const device = round->base.device->device;
  const struct zps_device_ops *const ops = device->ops;
  (void)!zps_stage_idle(round->base.device->in_stage, ZPS_NEVER, NULL);
  zps_stage_mark_fini(device, &push->mark);
  zps_stage_mark_fini(device, &pull->mark);
  if (push->encoder) ops->encoder_destroy(push->encoder);
  if (pull->decoder) ops->decoder_destroy(pull->decoder);
  release(round, &push->slices.at);
  release(round, &push->slices.retired);
  release(round, &pull->rows);
  release(round, &pull->values);
  if (push->small) ops->release(device, ZPS_MEMORY_PINNED, push->small);
  if (push->tags) ops->release(device, ZPS_MEMORY_PINNED, push->tags);
  if (pull->tags) ops->release(device, ZPS_MEMORY_PINNED, pull->tags);
  free_chunks(device, pull->chunks);
  free_chunks(device, pull->direct);
  free(push->offsets);
  free(push->outs);
  free(pull->views);
}
