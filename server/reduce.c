/* One job per partition whose contributions are all here. The job owns them until it is done; the reduce pool's threads
 * see nothing else of the data plane. Small ones are done by the engine's thread itself: a thread of the pool would
 * take longer to wake up. Large ones are shared by threads that would otherwise have nothing to do. */
#include "server/plane.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ZPS_LOG_COMPONENT "shard"
#include "common/base/clock.h"
#include "common/base/log.h"

/* Contributions to one partition, and to all of a round here, that are summed before another thread has woken up.
 * Looking for rows among all that there could be takes time, too. */
enum { SMALL_BYTES = 32 << 10, SMALL_ROUND_BYTES = 128 << 10, SMALL_ROWS = 256 << 10, SHARED_BYTES_MIN = 1 << 20 };

struct zps_reduce_job {
  struct zps_work work;
  struct zps_reduce_job *next; /* done, free, or small */
  struct zps_shard *shard;
  struct zps_live *live;      /* NULL: the round is over */
  uint32_t part, n, m, width; /* n: contributions */
  enum zps_dtype dtype;
  enum zps_value_codec value_codec;
  uint64_t key; /* of the sum's values */
  enum zps_op op;
  unsigned codecs;
  struct zps_buf result;
  struct zps_contribution **contributions; /* in the order of ranks */
  struct zps_slice_view *views;
  struct zps_buffer ranks, raw; /* scratch */
  atomic_uint first_bad;
  /* the pool's answer */
  zps_err_t code;
  uint32_t bad_rank;
  struct zps_error error;
  enum zps_codec codec;
  uint32_t nnz;
  uint64_t len_bytes, took_ns;
};

static struct zps_reduce_job *job_create(struct zps_shard *shard, uint32_t world) {
  struct zps_reduce_job *job = calloc(1, sizeof *job);
  if (!job) return NULL;
  job->shard = shard;
  job->contributions = calloc(world, sizeof(void *));
  job->views = calloc(world, sizeof job->views[0]);
  if (job->contributions && job->views) return job;
  free(job->contributions);
  free(job->views);
  free(job);
  return NULL;
}

static void job_free(struct zps_reduce_job *job) {
  free(job->contributions);
  free(job->views);
  zps_buffer_fini(&job->ranks);
  zps_buffer_fini(&job->raw);
  free(job);
}

void zps_reduce_jobs_free(struct zps_tensor *tensor) {
  for (struct zps_reduce_job *job; (job = tensor->free_jobs) != NULL;) {
    tensor->free_jobs = job->next;
    job_free(job);
  }
}

void zps_reduce_forget(struct zps_reduce_job *job) {
  job->live = NULL;
}

/* In what the sum of `nnz` contributed rows is coded while it is made. */
static enum zps_codec plain_codec(unsigned codecs, uint32_t m, uint64_t nnz) {
  return zps_codec_plain(codecs, m, nnz < m ? (uint32_t)nnz : m);
}

/* ---- on a pool thread, or the engine's ---- */

/* Only the sum tells which code of its rows is the smallest. Values that are narrowed go to the result with it. */
static zps_err_t recode(struct zps_reduce_job *job, void *sum) {
  const uint64_t values_bytes = (uint64_t)job->nnz * job->width * zps_dtype_size(job->dtype);
  struct zps_slice_view view = {.codec = job->codec,
                                .dtype = job->dtype,
                                .value_codec = ZPS_VALUES_RAW,
                                .m = job->m,
                                .z = job->nnz,
                                .width = job->width,
                                .values = sum,
                                .index = (const char *)sum + values_bytes,
                                .index_bytes = job->len_bytes - values_bytes};
  const zps_err_t code = zps_slice_recode(&view, job->codecs, &job->ranks);
  job->codec = view.codec;
  job->len_bytes = values_bytes + view.index_bytes;
  if (job->value_codec == ZPS_VALUES_RAW || code != ZPS_OK) return code;
  const uint64_t n = (uint64_t)job->nnz * job->width, coded_bytes = zps_values_bytes(job->value_codec, job->dtype, n);
  zps_values_encode(job->value_codec, job->dtype, sum, n, job->key, job->result.data);
  if (view.index_bytes > 0) memcpy((char *)job->result.data + coded_bytes, view.index, view.index_bytes);
  job->len_bytes = coded_bytes + view.index_bytes;
  return code;
}

static uint64_t bytes_of(const struct zps_reduce_job *job) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < job->n; i++) bytes += job->contributions[i]->len_bytes;
  return bytes;
}

static zps_err_t check(const struct zps_reduce_job *job, uint32_t i, struct zps_error *error) {
  const struct zps_contribution *contribution = job->contributions[i];
  return zps_slice_view_init(&job->views[i], contribution->codec, job->m, contribution->nnz, job->width, job->dtype,
                             job->value_codec, contribution->data, contribution->len_bytes, error);
}

static void check_one(void *ctx, unsigned i) {
  struct zps_reduce_job *job = ctx;
  if (check(job, i, NULL) == ZPS_OK) return;
  unsigned first = atomic_load(&job->first_bad);
  while (i < first && !atomic_compare_exchange_weak(&job->first_bad, &first, i)) {
  }
}

static void sum(struct zps_reduce_job *job, struct zps_reduce_scratch *scratch) {
  struct zps_workpool *pool = NULL;
  if (zps_workpool_idle(job->shard->pool) > 0 && bytes_of(job) >= SHARED_BYTES_MIN) pool = job->shard->pool;
  atomic_store(&job->first_bad, UINT_MAX);
  zps_workpool_for(pool, job->n, check_one, job);
  const unsigned bad = atomic_load(&job->first_bad);
  if (bad < job->n) {
    job->bad_rank = job->contributions[bad]->rank;
    job->code = check(job, bad, &job->error);
    return;
  }
  job->code = ZPS_OK;
  job->bad_rank = ZPS_ROUND_NO_RANK;
  uint64_t most = 0;
  for (uint32_t i = 0; i < job->n; i++) most += job->views[i].z;
  job->codec = plain_codec(job->codecs, job->m, most);
  void *out = job->result.data;
  if (job->value_codec != ZPS_VALUES_RAW) {
    job->code = zps_buffer_need(&job->raw, zps_reduce_bound(job->views, job->n, job->codec), 1);
    out = job->raw.data;
  }
  if (job->code == ZPS_OK)
    job->code = zps_reduce(scratch, job->views, job->n, job->op, job->codec, pool, out, &job->nnz, &job->len_bytes);
  if (job->code == ZPS_OK) job->code = recode(job, out);
  if (job->code != ZPS_OK) zps_fail(&job->error, job->code, "cannot sum: %s", zps_err_str(job->code));
}

static void run_job(struct zps_reduce_job *job) {
  struct zps_shard *shard = job->shard;
  const uint64_t start_ns = zps_clock_ns();
  pthread_mutex_lock(&shard->scratch_lock);
  struct zps_reduce_scratch *scratch = shard->scratches[--shard->n_scratches]; /* one for each thread that sums */
  pthread_mutex_unlock(&shard->scratch_lock);
  sum(job, scratch);
  pthread_mutex_lock(&shard->scratch_lock);
  shard->scratches[shard->n_scratches++] = scratch;
  pthread_mutex_unlock(&shard->scratch_lock);
  job->took_ns = zps_clock_ns() - start_ns;
}

static void run(struct zps_work *work) {
  struct zps_reduce_job *job = (struct zps_reduce_job *)((char *)work - offsetof(struct zps_reduce_job, work));
  struct zps_shard *shard = job->shard;
  run_job(job);
  job->next = atomic_load(&shard->reduced);
  while (!atomic_compare_exchange_weak(&shard->reduced, &job->next, job)) {
  }
  /* The job may be gone from here on; the shard is not, it joins this pool first. */
  if (atomic_exchange(&shard->is_collect_posted, true)) return;
  while (zps_engine_post(shard->engine, &shard->collect_command) == ZPS_ERR_AGAIN) sched_yield();
}

/* ---- on the engine's thread ---- */

static void finish(struct zps_reduce_job *job) {
  struct zps_shard *shard = job->shard;
  struct zps_live *live = job->live;
  shard->n_reducing--;
  for (uint32_t i = 0; i < job->n; i++) {
    if (live) live->unsummed_bytes -= job->contributions[i]->buf.cap;
    zps_contribution_put(job->contributions[i]);
  }
  if (!live) {
    zps_slab_put(shard->slab, &job->result);
    job_free(job);
    return;
  }
  struct zps_part_run *part_run = &live->parts[job->part];
  part_run->job = NULL;
  part_run->result = job->result;
  part_run->codec = job->codec;
  part_run->nnz = job->nnz;
  part_run->len_bytes = job->len_bytes;
  live->reduce_ns += job->took_ns;
  job->next = live->tensor->free_jobs;
  live->tensor->free_jobs = job;
  if (job->code == ZPS_OK) {
    zps_live_step(live,
                  &(struct zps_round_event){
                      .type = ZPS_ROUND_REDUCED, .part = job->part, .is_here = job->len_bytes <= ZPS_WIRE_INLINE_MAX});
  } else {
    zps_live_fail(live, job->bad_rank, job->code, "partition %u: %s", live->tensor->partitions[job->part],
                  job->error.text);
  }
}

static void collect(struct zps_command *command, void *handler_ctx) {
  struct zps_shard *shard = handler_ctx;
  (void)command;
  atomic_store(&shard->is_collect_posted, false);
  struct zps_reduce_job *job = atomic_exchange(&shard->reduced, NULL), *next;
  for (; job; job = next) {
    next = job->next;
    finish(job);
  }
  zps_shard_settle(shard);
}

/* Not from where they come up, which is the middle of a round's step. Those that this makes ready are run, too. */
void zps_reduce_run_small(struct zps_shard *shard) {
  for (struct zps_reduce_job *job; (job = shard->small) != NULL;) {
    shard->small = job->next;
    if (!shard->small) shard->small_tail = &shard->small;
    run_job(job);
    finish(job);
  }
}

static bool is_small(const struct zps_live *live, const struct zps_reduce_job *job) {
  const uint64_t bytes = bytes_of(job);
  return job->m <= SMALL_ROWS && bytes <= SMALL_BYTES && live->round->n_parts * bytes <= SMALL_ROUND_BYTES;
}

static void submit(struct zps_memory_wait *wait) {
  struct zps_live *live = wait->live;
  const uint32_t part = wait->part;
  struct zps_tensor *tensor = live->tensor;
  struct zps_shard *shard = tensor->job->shard;
  struct zps_part_run *part_run = &live->parts[part];
  struct zps_reduce_job *job = tensor->free_jobs;
  if (job)
    tensor->free_jobs = job->next;
  else if (!(job = job_create(shard, tensor->job->world))) {
    zps_live_fail(live, ZPS_ROUND_NO_RANK, ZPS_ERR_NOMEM, "out of memory");
    return;
  }
  job->work.run = run;
  job->live = live;
  job->part = part;
  job->m = tensor->sizes[part];
  job->width = tensor->width;
  job->dtype = tensor->dtype;
  job->value_codec = tensor->value_codec;
  job->key = zps_values_key(&(struct zps_values_origin){.seed = tensor->partition.seed,
                                                        .step = live->round->config.step,
                                                        .tensor = tensor->id,
                                                        .rank = tensor->job->world},
                            tensor->partitions[part]);
  job->op = tensor->op;
  job->codecs = tensor->codecs;
  job->result = part_run->result;
  part_run->result = (struct zps_buf){0};
  part_run->job = job;
  job->n = 0;
  for (uint32_t rank = 0; rank < tensor->job->world; rank++) {
    struct zps_contribution **slot = &live->slots[(size_t)part * tensor->job->world + rank];
    if (*slot) job->contributions[job->n++] = *slot;
    *slot = NULL;
  }
  shard->n_reducing++;
  if (!is_small(live, job)) {
    zps_workpool_submit(shard->pool, &job->work);
    return;
  }
  job->next = NULL;
  *shard->small_tail = job;
  shard->small_tail = &job->next;
}

void zps_reduce_start(struct zps_live *live, uint32_t part) {
  struct zps_tensor *tensor = live->tensor;
  const uint32_t m = tensor->sizes[part];
  uint64_t nnz = 0;
  for (uint32_t rank = 0; rank < tensor->job->world; rank++) {
    const struct zps_contribution *contribution = live->slots[(size_t)part * tensor->job->world + rank];
    nnz += contribution ? contribution->nnz : 0;
  }
  struct zps_part_run *part_run = &live->parts[part];
  part_run->wait = (struct zps_memory_wait){
      .live = live,
      .part = part,
      .len_bytes = zps_codec_slice_bytes(plain_codec(tensor->codecs, m, nnz), m, nnz < m ? (uint32_t)nnz : m,
                                         tensor->width, tensor->dtype, tensor->value_codec),
      .buf_p = &part_run->result,
      .granted = submit};
  zps_memory_want(tensor->job->shard, &part_run->wait);
}

/* ---- life ---- */

zps_err_t zps_reduce_init(struct zps_shard *shard) {
  shard->collect_command.run = collect;
  shard->small_tail = &shard->small;
  const unsigned n = zps_workpool_threads(shard->pool) + 1;
  pthread_mutex_init(&shard->scratch_lock, NULL);
  shard->scratches = calloc(n, sizeof(void *));
  if (!shard->scratches) return ZPS_ERR_NOMEM;
  for (; shard->n_scratches < n; shard->n_scratches++) {
    const zps_err_t code = zps_reduce_scratch_create(&shard->scratches[shard->n_scratches]);
    if (code != ZPS_OK) return code;
  }
  return ZPS_OK;
}

void zps_reduce_fini(struct zps_shard *shard) {
  if (!shard->scratches) return;
  while (shard->n_scratches > 0) zps_reduce_scratch_destroy(shard->scratches[--shard->n_scratches]);
  free(shard->scratches);
  pthread_mutex_destroy(&shard->scratch_lock);
}
