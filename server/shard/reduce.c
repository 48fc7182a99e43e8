/* One task per partition whose contributions are all here. The task owns them until it is done; the reduce pool's
 * threads see nothing else of the data plane. Small ones are done by the engine's thread itself: a thread of the pool
 * would take longer to wake up. Large ones are shared by threads that would otherwise have nothing to do. */
#include "server/shard/reduce.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/moment.h"
#include "common/base/container.h"
#include "common/codec/order.h"
#include "common/codec/reduce.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

/* Contributions to one partition, and to all of a round here, that are summed before another thread has woken up.
 * Looking for rows among all that there could be takes time, too. */
enum { SMALL_BYTES = 32 << 10, SMALL_ROUND_BYTES = 128 << 10, SMALL_ROWS = 256 << 10, SHARED_BYTES_MIN = 1 << 20 };

/* The sum of a contribution of so many bytes never goes inline, in any code: it is kept until the round is over. */
enum { LARGE_BYTES = 64 * ZPS_WIRE_READ_BYTES };

struct zps_reduce_task {
  struct zps_work work;
  struct zps_command command;   /* reports the end to the engine */
  struct zps_reduce_task *next; /* free, or small */
  struct zps_shard *shard;
  struct zps_shard_round *round; /* NULL: the round is over */
  uint32_t inline_bytes;         /* the tensor's */
  uint32_t part, n, m, width;    /* n: contributions, of which the first `n_summed` */
  uint32_t n_summed;             /* are summed: all, but of a mean of those present */
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint64_t key; /* of the sum's values */
  enum zps_op op;
  unsigned codecs;
  struct zps_buf result;
  struct zps_checks *checks;               /* of the job, which may be gone before the pool is done */
  struct zps_contribution **contributions; /* in the order of ranks; those not summed are last */
  struct zps_slice_view *views;
  struct zps_buffer ranks, raw;   /* scratch */
  struct zps_partition partition; /* a copy: the tensor may be gone before the pool is done */
  uint32_t number;                /* of the partition, in the tensor */
  atomic_uint first_bad;
  /* the pool's answer */
  zps_err_t code;
  uint32_t bad_rank, bad_ranks[2], n_bad_ranks; /* by whose push it failed; both of a pair */
  struct zps_error error;
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes, took_ns;
  uint64_t checksum;
};

static struct zps_reduce_task *task_create(struct zps_shard *shard, uint32_t world) {
  struct zps_reduce_task *task = calloc(1, sizeof *task);
  if (!task) return NULL;
  task->shard = shard;
  task->contributions = calloc(world, sizeof(void *));
  task->views = calloc(world, sizeof task->views[0]);
  if (task->contributions && task->views) return task;
  free(task->contributions);
  free(task->views);
  free(task);
  return NULL;
}

static void task_free(struct zps_reduce_task *task) {
  free(task->contributions);
  free(task->views);
  zps_buffer_fini(&task->ranks);
  zps_buffer_fini(&task->raw);
  free(task);
}

void zps_reduce_tasks_free(struct zps_tensor *tensor) {
  for (struct zps_reduce_task *task; (task = tensor->free_tasks) != NULL;) {
    tensor->free_tasks = task->next;
    task_free(task);
  }
}

void zps_reduce_forget(struct zps_reduce_task *task) {
  task->round = NULL;
}

/* ---- on a pool thread, or the engine's ---- */

/* Only the sum tells which code of its rows is the smallest. Values that are narrowed go to the result with it. */
static zps_err_t recode(struct zps_reduce_task *task, void *sum) {
  const uint64_t values_bytes = task->nnz * zps_row_bytes(task->width, task->dtype);
  struct zps_slice_view view = zps_slice_view_own(task->codec, task->m, task->nnz, task->width, task->dtype,
                                                  ZPS_VALUES_RAW, sum, task->len_bytes);
  const zps_err_t code = zps_slice_recode(&view, task->codecs, &task->ranks);
  task->codec = view.codec;
  task->len_bytes = values_bytes + view.index_bytes;
  if (task->value_codec == ZPS_VALUES_RAW || code != ZPS_OK) return code;
  const uint64_t n = (uint64_t)task->nnz * task->width,
                 coded_bytes = zps_values_bytes(task->value_codec, task->dtype, n);
  zps_values_encode(task->value_codec, task->dtype, sum, n, task->key, task->result.data);
  if (view.index_bytes > 0) memcpy((char *)task->result.data + coded_bytes, view.index, view.index_bytes);
  task->len_bytes = coded_bytes + view.index_bytes;
  return code;
}

static uint64_t bytes_of(const struct zps_reduce_task *task) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < task->n; i++) bytes += task->contributions[i]->len_bytes;
  return bytes;
}

/* Rows in any order are put in order where they lie. */
static zps_err_t put_in_order(const struct zps_reduce_task *task, const struct zps_contribution *contribution,
                              enum zps_value_codec values, struct zps_error *error) {
  struct zps_buffer *const scratch = zps_scratch_get(task->shard->orders);
  const zps_err_t code =
      zps_slice_order(task->m, contribution->nnz, task->width, task->dtype, values, contribution->data, scratch, error);
  zps_scratch_put(task->shard->orders, scratch);
  return code;
}

static zps_err_t check(const struct zps_reduce_task *task, uint32_t i, struct zps_error *error) {
  const struct zps_contribution *contribution = task->contributions[i];
  const enum zps_value_codec values = contribution->is_wide ? ZPS_VALUES_RAW : task->value_codec;
  uint32_t codec = contribution->codec;
  if (codec == ZPS_CODEC_COO_ANY) {
    const zps_err_t code = put_in_order(task, contribution, values, error);
    if (code != ZPS_OK) return code;
    codec = ZPS_CODEC_COO;
  }
  return zps_slice_view_init(&task->views[i], codec, task->m, contribution->nnz, task->width, task->dtype, values,
                             contribution->data, contribution->len_bytes, error);
}

static void check_one(void *ctx, unsigned i) {
  struct zps_reduce_task *task = ctx;
  if (check(task, i, NULL) == ZPS_OK) return;
  unsigned first = atomic_load(&task->first_bad);
  while (i < first && !atomic_compare_exchange_weak(&task->first_bad, &first, i)) {
  }
}

/* Names the two ranks that pushed the same row, where only one may (allgather). */
static void name_repeat(struct zps_reduce_task *task) {
  uint32_t index = 0;
  unsigned pair[2] = {0, 0};
  zps_reduce_find_repeat(task->views, task->n, &index, pair);
  for (unsigned i = 0; i < 2; i++) task->bad_ranks[i] = task->contributions[pair[i]]->rank;
  task->n_bad_ranks = 2;
  task->code =
      zps_fail(&task->error, ZPS_ERR_INVALID, "ranks %u and %u both gave row %llu", task->bad_ranks[0],
               task->bad_ranks[1], (unsigned long long)zps_partition_row(&task->partition, task->number, index));
}

static void sum(struct zps_reduce_task *task, struct zps_reduce_scratch *scratch) {
  struct zps_workpool *pool = NULL;
  if (zps_workpool_idle(task->shard->pool) > 0 && bytes_of(task) >= SHARED_BYTES_MIN) pool = task->shard->pool;
  atomic_store(&task->first_bad, UINT_MAX);
  zps_workpool_for(pool, task->n, check_one, task);
  const unsigned bad = atomic_load(&task->first_bad);
  if (bad < task->n) {
    task->bad_rank = task->contributions[bad]->rank;
    task->code = check(task, bad, &task->error);
    return;
  }
  task->code = ZPS_OK;
  task->bad_rank = ZPS_SHARD_NO_RANK;
  uint64_t most = 0;
  for (uint32_t i = 0; i < task->n_summed; i++) most += task->views[i].z;
  task->codec = zps_codec_plain(task->codecs, task->m, most < task->m ? (uint32_t)most : task->m);
  void *out = task->result.data;
  if (task->value_codec != ZPS_VALUES_RAW) {
    task->code = zps_buffer_need(&task->raw, zps_reduce_bound(task->views, task->n_summed, task->codec), 1);
    out = task->raw.data;
  }
  if (task->code == ZPS_OK)
    task->code =
        zps_reduce(scratch, task->views, task->n_summed, task->op == ZPS_OP_MEAN_PRESENT ? ZPS_OP_MEAN : task->op,
                   task->codec, pool, out, &task->nnz, &task->len_bytes);
  if (task->code == ZPS_OK && task->op == ZPS_OP_ONE && task->nnz < most) {
    name_repeat(task);
    return;
  }
  if (task->code == ZPS_OK) task->code = recode(task, out);
  task->checksum = 0;
  if (task->code == ZPS_OK && task->len_bytes > task->inline_bytes)
    task->checksum = zps_checks_sum(task->checks, task->result.data, (size_t)task->len_bytes);
  if (task->code != ZPS_OK) zps_fail(&task->error, task->code, "cannot sum: %s", zps_err_str(task->code));
}

static void run_job(struct zps_reduce_task *task) {
  const uint64_t start_ns = zps_clock_ns();
  struct zps_reduce_scratch *scratch = zps_scratch_get(task->shard->scratches);
  sum(task, scratch);
  zps_scratch_put(task->shard->scratches, scratch);
  task->took_ns = zps_clock_ns() - start_ns;
}

static void run(struct zps_work *work) {
  struct zps_reduce_task *task = zps_container_of(work, struct zps_reduce_task, work);
  run_job(task);
  zps_engine_post(task->shard->engine, &task->command); /* it may be gone from here on */
}

/* ---- on the engine's thread ---- */

static void finish(struct zps_reduce_task *task) {
  struct zps_shard *shard = task->shard;
  struct zps_shard_round *round = task->round;
  shard->n_reducing--;
  zps_checks_unref(task->checks);
  for (uint32_t i = 0; i < task->n; i++) {
    if (round) round->unsummed_bytes -= task->contributions[i]->buf.cap;
    zps_contribution_put(task->contributions[i]);
  }
  if (!round) {
    zps_slab_put(shard->slab, &task->result);
    task_free(task);
    return;
  }
  struct zps_part_run *part_run = &round->parts[task->part];
  part_run->task = NULL;
  part_run->nnz = task->nnz;
  struct zps_shard_sum **sum_p = &round->sums[task->part];
  if (zps_shard_sum_get(shard, sum_p) == ZPS_OK) {
    (*sum_p)->buf = task->result;
    (*sum_p)->codec = task->codec;
    (*sum_p)->nnz = task->nnz;
    (*sum_p)->len_bytes = task->len_bytes;
    (*sum_p)->is_inline = task->len_bytes <= task->inline_bytes;
    (*sum_p)->checksum = task->checksum;
  } else {
    zps_slab_put(shard->slab, &task->result);
    if (task->code == ZPS_OK) task->code = zps_fail(&task->error, ZPS_ERR_NOMEM, "the server is out of memory");
  }
  round->reduce_ns += task->took_ns;
  task->next = round->tensor->free_tasks;
  round->tensor->free_tasks = task;
  if (task->code == ZPS_OK) {
    zps_shard_round_tell(round, .type = ZPS_SHARD_REDUCED, .part = task->part,
                         .is_here = task->len_bytes <= task->inline_bytes);
  } else if (task->n_bad_ranks > 0) {
    zps_shard_round_tell(round, .type = ZPS_SHARD_FAIL, .rank = ZPS_SHARD_NO_RANK, .code = task->code,
                         .text = task->error.text, .blamed = task->bad_ranks, .n_blamed = task->n_bad_ranks);
  } else {
    zps_shard_round_fail(round, task->bad_rank, task->code, "partition %u: %s", round->tensor->partitions[task->part],
                         task->error.text);
  }
}

/* The tick that follows does the work that it makes possible, once for all sums that are done by then. */
static void on_reduced(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  finish(zps_container_of(command, struct zps_reduce_task, command));
}

/* Runs them later than they come up, which is in the middle of a round's step. Sums that become due meanwhile are run,
 * too. */
void zps_reduce_run_small(struct zps_shard *shard) {
  for (struct zps_reduce_task *task; (task = shard->small) != NULL;) {
    shard->small = task->next;
    if (!shard->small) shard->small_tail = &shard->small;
    run_job(task);
    finish(task);
  }
}

static bool is_small(const struct zps_shard_round *round, const struct zps_reduce_task *task) {
  const uint64_t bytes = bytes_of(task);
  return task->m <= SMALL_ROWS && bytes <= SMALL_BYTES && round->machine->n_parts * bytes <= SMALL_ROUND_BYTES;
}

/* A mean of those present is that of their contributions alone: what an absent rank pushes, rows of zeros at most,
 * comes last, and is left out. */
static void take_contributions(struct zps_reduce_task *task, const struct zps_shard_round *round, uint32_t part) {
  const struct zps_tensor *tensor = round->tensor;
  const bool by_presence = tensor->op == ZPS_OP_MEAN_PRESENT;
  task->n = 0;
  for (unsigned absent = 0; absent <= by_presence; absent++) {
    for (uint32_t rank = 0; rank < tensor->job->world; rank++) {
      struct zps_contribution **slot = zps_shard_round_slot(round, part, rank);
      if (!*slot || zps_shard_machine_is_late(round->machine, rank) ||
          (by_presence && (round->presence[rank] == ZPS_SHARD_ABSENT) != absent))
        continue;
      task->contributions[task->n++] = *slot;
      *slot = NULL;
    }
    if (!absent) task->n_summed = task->n;
  }
  if (task->n_summed == 0) task->n_summed = 1; /* all are absent: no rows, or zeros */
}

static void submit(struct zps_memory_wait *wait) {
  struct zps_shard_round *round = zps_container_of(wait, struct zps_shard_wait, memory)->round;
  const uint32_t part = wait->part;
  struct zps_tensor *tensor = round->tensor;
  struct zps_shard *shard = tensor->job->shard;
  struct zps_part_run *part_run = &round->parts[part];
  struct zps_reduce_task *task = tensor->free_tasks;
  if (task)
    tensor->free_tasks = task->next;
  else if (!(task = task_create(shard, tensor->job->world))) {
    zps_shard_round_fail(round, ZPS_SHARD_NO_RANK, ZPS_ERR_NOMEM, "out of memory");
    return;
  }
  task->work.run = run;
  task->command.run = on_reduced;
  task->round = round;
  task->part = part;
  task->m = tensor->sizes[part];
  task->width = tensor->width;
  task->dtype = tensor->dtype;
  task->value_codec = tensor->value_codec;
  task->key = zps_values_key(&(struct zps_values_origin){.seed = tensor->partition.seed,
                                                         .step = round->machine->config.step,
                                                         .tensor = tensor->id,
                                                         .rank = tensor->job->world},
                             tensor->partitions[part]);
  task->op = tensor->op;
  task->codecs = tensor->codecs;
  task->inline_bytes = tensor->inline_bytes;
  task->partition = tensor->partition;
  task->number = tensor->partitions[part];
  task->n_bad_ranks = 0;
  task->checks = zps_checks_ref(tensor->job->checks);
  ZPS_MOMENT("push read, not summed");
  task->result = part_run->result;
  part_run->result = (struct zps_buf){0};
  part_run->task = task;
  take_contributions(task, round, part);
  shard->n_reducing++;
  if (!is_small(round, task)) {
    zps_workpool_submit_for(shard->pool, tensor->job->flow, &task->work, bytes_of(task));
    return;
  }
  task->next = NULL;
  *shard->small_tail = task;
  shard->small_tail = &task->next;
}

/* What is asked for, for the sum of contributions of `nnz` rows: it is kept until the round is over, if it is large. */
static uint64_t zps_reduce_sum_bytes(const struct zps_tensor *tensor, uint32_t part, uint64_t nnz) {
  const uint32_t m = tensor->sizes[part], z = nnz < m ? (uint32_t)nnz : m;
  return zps_codec_slice_bytes(zps_codec_plain(tensor->codecs, m, z), m, z, tensor->width, tensor->dtype,
                               tensor->value_codec);
}

static uint64_t slab_bytes(const struct zps_shard_round *round, uint32_t part, uint64_t nnz) {
  return nnz > 0 ? zps_slab_bytes(zps_reduce_sum_bytes(round->tensor, part, nnz)) : 0;
}

uint64_t zps_reduce_more_bytes(const struct zps_shard_round *round, uint32_t part, uint32_t nnz, uint64_t len_bytes) {
  const uint64_t had = round->parts[part].pushed_nnz;
  return len_bytes < LARGE_BYTES ? 0 : slab_bytes(round, part, had + nnz) - slab_bytes(round, part, had);
}

void zps_reduce_expect(struct zps_shard_round *round, const struct zps_contribution *pushed) {
  round->sums_bytes += zps_reduce_more_bytes(round, pushed->part, pushed->nnz, pushed->len_bytes);
  if (pushed->len_bytes >= LARGE_BYTES) round->parts[pushed->part].pushed_nnz += pushed->nnz;
}

void zps_reduce_expect_no_more(struct zps_shard_round *round, const struct zps_contribution *pushed) {
  if (pushed->len_bytes < LARGE_BYTES) return;
  round->parts[pushed->part].pushed_nnz -= pushed->nnz;
  round->sums_bytes -= zps_reduce_more_bytes(round, pushed->part, pushed->nnz, pushed->len_bytes);
}

bool zps_reduce_is_small(const struct zps_shard_round *round, uint32_t part) {
  return round->parts[part].wait.memory.len_bytes <= round->tensor->inline_bytes;
}

void zps_reduce_begin(struct zps_shard_round *round, uint32_t part) {
  const struct zps_tensor *tensor = round->tensor;
  uint64_t nnz = 0;
  for (uint32_t rank = 0; rank < tensor->job->world; rank++) {
    const struct zps_contribution *contribution = *zps_shard_round_slot(round, part, rank);
    nnz += contribution && contribution->is_here ? contribution->nnz : 0;
  }
  struct zps_part_run *part_run = &round->parts[part];
  const uint64_t len_bytes = zps_reduce_sum_bytes(tensor, part, nnz);
  part_run->wait = (struct zps_shard_wait){
      .round = round, .memory = {.part = part, .len_bytes = len_bytes, .buf_p = &part_run->result, .granted = submit}};
  round->n_small += zps_reduce_is_small(round, part);
  zps_shard_memory_want(tensor->job->shard, &part_run->wait);
}

/* ---- life ---- */

static zps_err_t scratch_create(void **scratch_p) {
  struct zps_reduce_scratch *scratch;
  const zps_err_t code = zps_reduce_scratch_create(&scratch);
  if (code == ZPS_OK) *scratch_p = scratch;
  return code;
}

static void scratch_destroy(void *scratch) {
  zps_reduce_scratch_destroy(scratch);
}

static zps_err_t order_create(void **scratch_p) {
  *scratch_p = calloc(1, sizeof(struct zps_buffer));
  return *scratch_p ? ZPS_OK : ZPS_ERR_NOMEM;
}

static void order_destroy(void *scratch) {
  zps_buffer_fini(scratch);
  free(scratch);
}

zps_err_t zps_reduce_init(struct zps_shard *shard) {
  const unsigned n_threads = zps_workpool_threads(shard->pool) + 1;
  shard->small_tail = &shard->small;
  const zps_err_t code = zps_scratch_pool_create(n_threads, order_create, order_destroy, &shard->orders);
  return code == ZPS_OK ? zps_scratch_pool_create(n_threads, scratch_create, scratch_destroy, &shard->scratches) : code;
}

void zps_reduce_fini(struct zps_shard *shard) {
  zps_scratch_pool_destroy(shard->orders);
  zps_scratch_pool_destroy(shard->scratches);
}
