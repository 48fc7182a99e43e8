/*
 * Rounds between ranks when memory is short: two ranks in one process over the in-process fabric, which share the
 * allocations granted. Wherever they run out the round ends, with ZPS_ERR_NOMEM or that of the other rank, and the next
 * one is right.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/support/oom.h"
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/choice/topology.h"
#include "worker/peer/peer.h"
#include "worker/plane/unexpected.h"

enum { WORLD = 2, ROWS = 3000, WIDTH = 2, GRANTED_MAX = 3000 };

struct rank {
  struct zenps_job job;
  struct zenps_tensor *tensor;
  zenps_request_t *request;
  zenps_grad_t in, out;
  float values[ROWS * WIDTH], sum[ROWS * WIDTH];
};

static struct rank ranks[WORLD];
static struct zps_join_peers peers = {.world = WORLD};
static uint32_t next_id;

static int open_jobs(void **state) {
  (void)state;
  static struct zps_join_peer there[WORLD];
  static char provider[] = "loop", name[] = "run";
  zps_log_set_level(ZPS_LOG_ERROR);
  peers.ranks = there;
  for (uint32_t r = 0; r < WORLD; r++) {
    struct zenps_job *job = &ranks[r].job;
    const struct zps_join join = {.job_id = 7, .seed = 1, .epoch = 1};
    pthread_condattr_t attr;
    job->pid = getpid();
    job->options = (struct zps_worker_options){.provider = provider,
                                               .job = name,
                                               .rank = r,
                                               .world = WORLD,
                                               .local_world = WORLD,
                                               .threads = 1,
                                               .memory_limit_bytes = 16 << 20,
                                               .round_timeout_ms = 20000};
    pthread_mutex_init(&job->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&job->done, &attr);
    pthread_condattr_destroy(&attr);
    job->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    zps_rounds_init(&job->rounds, &job->plane);
    const struct zps_plane_handler rounds = zps_rounds_handler(&job->rounds);
    if (zps_plane_open(&job->options, &rounds, &job->plane, NULL) != ZPS_OK) return -1;
    if (zps_plane_connect(&job->plane, &join, r, NULL) != ZPS_OK) return -1;
    const struct zps_net_info *fabric = zps_net_info(zps_engine_net(job->plane.engine));
    memcpy(there[r].addr, fabric->addr, fabric->addr_len);
    there[r].addr_len = fabric->addr_len;
    strcpy(there[r].host, "here");
  }
  return 0;
}

/* Failed rounds linger until the other rank says that its is over, which one that could not begin never does. */
static void drop_tensors(struct zenps_job *job) {
  for (struct zenps_tensor *tensor = job->tensors, *next; tensor; tensor = next) {
    next = tensor->next;
    pthread_mutex_lock(&job->lock);
    while (tensor->n_active > 0) pthread_cond_wait(&job->done, &job->lock);
    pthread_mutex_unlock(&job->lock);
    zps_worker_tensor_destroy(tensor);
  }
}

static int close_jobs(void **state) {
  (void)state;
  for (uint32_t r = 0; r < WORLD; r++) zps_rounds_close(&ranks[r].job.rounds);
  for (uint32_t r = 0; r < WORLD; r++) zps_plane_disconnect(&ranks[r].job.plane);
  for (uint32_t r = 0; r < WORLD; r++) {
    struct zenps_job *job = &ranks[r].job;
    drop_tensors(job);
    zps_plane_close(&job->plane);
    zps_rounds_fini(&job->rounds);
    close(job->event_fd);
    pthread_cond_destroy(&job->done);
    pthread_mutex_destroy(&job->lock);
  }
  return 0;
}

/* Links are made whole or not at all. */
static zps_err_t link_create(void *ctx) {
  struct zps_error error;
  return zps_plane_link(&((struct rank *)ctx)->job.plane, &peers, &error);
}

static void link_keep(void *ctx) {
  (void)ctx;
}

static void links(void **state) {
  (void)state;
  for (uint32_t r = 0; r < WORLD; r++) oom_sweep(link_create, link_keep, &ranks[r], 5);
}

static struct zps_scheme_ask ask_for(const char *scheme) {
  struct zps_scheme_ask ask;
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  if (strcmp(scheme, "oktopk") == 0) options.k = 400;
  assert_int_equal(
      zps_scheme_ask_init(&ask, &options, &ranks[0].job.options, "t", ROWS, WIDTH, ZPS_DTYPE_F32, false, NULL), ZPS_OK);
  return ask;
}

struct making {
  struct zps_scheme_ask ask;
  struct zps_peer_tensor *made;
};

static zps_err_t scheme_create(void *ctx) {
  struct making *making = ctx;
  struct zps_error error;
  return zps_peer_tensor_create(&making->ask, &peers, 0, &making->made, &error);
}

static void scheme_destroy(void *ctx) {
  zps_peer_tensor_destroy(((struct making *)ctx)->made);
}

static void schemes(void **state) {
  (void)state;
  struct making making = {.ask = ask_for("oktopk")};
  making.ask.plan.levels = making.ask.levels;
  oom_sweep(scheme_create, scheme_destroy, &making, 5);
}

static void open_tensors(const char *scheme) {
  struct zps_scheme_ask ask = ask_for(scheme);
  ask.plan.levels = ask.levels;
  next_id++;
  for (uint32_t r = 0; r < WORLD; r++) {
    struct zenps_tensor *tensor = calloc(1, sizeof *tensor);
    assert_non_null(tensor);
    *tensor = (struct zenps_tensor){.job = &ranks[r].job,
                                    .asked.codec = ZPS_CODEC_AUTO,
                                    .core = {.job = ranks[r].job.options.job,
                                             .name = "t",
                                             .id = next_id,
                                             .rounds = &ranks[r].job.rounds,
                                             .shape = {.rows = ROWS, .width = WIDTH, .dtype = ZPS_DTYPE_F32},
                                             .width = WIDTH,
                                             .dtype = ZPS_DTYPE_F32,
                                             .op = ZPS_OP_SUM,
                                             .codec = ZPS_CODEC_AUTO,
                                             .value_codec = ZPS_VALUES_RAW,
                                             .ops = &zps_peer_ops,
                                             .works_in_host = true}};
    zps_row_arrays_pool_init(&tensor->core.arrays);
    assert_int_equal(zps_partition_init(&tensor->core.part, ROWS, 1, 0, 1, NULL), ZPS_OK);
    assert_int_equal(zps_peer_tensor_create(&ask, &peers, r, &tensor->core.peer, NULL), ZPS_OK);
    tensor->core.scheme = tensor->core.peer->scheme->name;
    tensor->next = ranks[r].job.tensors;
    ranks[r].tensor = ranks[r].job.tensors = tensor;
  }
}

static void draw(bool rows_out) {
  for (uint32_t r = 0; r < WORLD; r++) {
    struct rank *rank = &ranks[r];
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
      rank->values[i] = (i / WIDTH) % 3 == r ? (float)(1 + (i * 7919u + r) % 1000) : 0;
    ZENPS_GRAD_INIT(&rank->in);
    ZENPS_GRAD_INIT(&rank->out);
    rank->in.layout = ZENPS_DENSE;
    rank->in.values = rank->values;
    rank->out.layout = rows_out ? ZENPS_ROWS : ZENPS_DENSE;
    if (!rows_out) rank->out.values = rank->sum;
  }
}

static bool is_expected(zenps_status_t status) {
  return status == ZENPS_OK || status == ZENPS_ERR_NOMEM || status == ZENPS_ERR_CANCELED;
}

/* Both ranks take the step with `granted` allocations; true: it went well on both, and some were left. A rank that
 * cannot begin cancels the other's. Where a rank has to tell the other that it failed, it needs memory again, which
 * this fabric takes for a message: so there is some after a while. */
static bool take_step(uint64_t step, bool rows_out, long granted) {
  zenps_status_t begun[WORLD], status[WORLD];
  draw(rows_out);
  atomic_store(&oom_granted, granted);
  for (uint32_t r = 0; r < WORLD; r++) {
    ranks[r].request = NULL;
    begun[r] = zenps_allreduce(ranks[r].tensor, step, &ranks[r].in, &ranks[r].out, &ranks[r].request);
    assert_true(begun[r] == ZENPS_OK || begun[r] == ZENPS_ERR_NOMEM);
  }
  for (uint32_t r = 0; r < WORLD; r++) {
    if (begun[r] == ZENPS_OK && begun[1 - r] != ZENPS_OK) assert_int_equal(zenps_cancel(ranks[r].request), ZENPS_OK);
  }
  for (uint32_t r = 0; r < WORLD; r++) {
    if (begun[r] == ZENPS_OK && zenps_wait(ranks[r].request, 20) == ZENPS_IN_PROGRESS) break;
  }
  const long left = atomic_exchange(&oom_granted, OOM_UNLIMITED);
  bool good = granted == OOM_UNLIMITED || left > 0;
  for (uint32_t r = 0; r < WORLD; r++) {
    status[r] = begun[r] == ZENPS_OK ? zenps_wait(ranks[r].request, -1) : begun[r];
    if (!is_expected(status[r])) fail_msg("rank %u: %s", r, zenps_last_error()->text);
    if (begun[r] == ZENPS_OK && status[r] != ZENPS_OK) assert_non_null(strstr(zenps_last_error()->text, "tensor t"));
    good &= status[r] == ZENPS_OK;
  }
  return good;
}

static void free_requests(void) {
  for (uint32_t r = 0; r < WORLD; r++) zenps_request_free(ranks[r].request);
}

/* The same on all ranks; where nothing is dropped, sums of exact values. */
static void check_sums(bool lossy) {
  for (uint32_t r = 0; r < WORLD; r++) {
    const zenps_grad_t *out = &ranks[r].out;
    if (lossy) {
      assert_memory_equal(ranks[r].sum, ranks[0].sum, sizeof ranks[r].sum);
    } else if (out->layout == ZENPS_ROWS) {
      assert_int_equal(out->nnz, ROWS / 3 * 2);
    } else {
      for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        assert_true(ranks[r].sum[i] == ranks[0].values[i] + ranks[1].values[i]);
    }
  }
}

static void sweep_of(const char *scheme, bool rows_out, bool once) {
  const bool lossy = strcmp(scheme, "oktopk") == 0;
  bool good = false;
  long n = 0;
  for (oom_once = once; !good; n++) {
    assert_true(n < GRANTED_MAX);
    open_tensors(scheme);
    good = take_step(0, rows_out, n);
    free_requests();
    assert_true(take_step(1, rows_out, OOM_UNLIMITED));
    check_sums(lossy);
    free_requests();
  }
  oom_once = false;
  assert_true(n > 20);
}

static void sweep(const char *scheme, bool rows_out) {
  sweep_of(scheme, rows_out, false);
  sweep_of(scheme, rows_out, true);
}

static void recursive_doubling(void **state) {
  (void)state;
  sweep("recursive-doubling", false);
  sweep("recursive-doubling", true);
}

static void ring(void **state) {
  (void)state;
  sweep("ring", false);
}

static void oktopk(void **state) {
  (void)state;
  sweep("oktopk", false);
}

/* What comes before its round has begun: kept or, without memory, missed in the open. */
static void unexpected(void **state) {
  (void)state;
  const struct zps_slice slice = {.is_inline = true, .len_bytes = 5, .data = "early"};
  const struct zps_frame_abort abort = {.tensor = 3, .step = 4};
  for (long n = 0; n < 5; n++) {
    struct zps_unexpected kept = {0};
    atomic_store(&oom_granted, n);
    zps_unexpected_add(&kept, 3, 4, 1, 100, &slice);
    zps_unexpected_add(&kept, 3, 4, 2, 100, &slice);
    zps_unexpected_abort(&kept, 1, &abort);
    atomic_store(&oom_granted, OOM_UNLIMITED);
    bool dropped, again;
    struct zps_unexpected_round *round = zps_unexpected_take(&kept, 3, 4, &dropped);
    assert_true((round != NULL) == (n > 0));
    assert_true(dropped == (n < 4));
    assert_null(zps_unexpected_take(&kept, 3, 4, &again));
    assert_false(again);
    if (round) assert_true((round->aborts != NULL) == (n == 4));
    if (n == 4) assert_int_equal(round->messages->src, 2); /* what came before an abort is of no use */
    zps_unexpected_round_free(round);
    zps_unexpected_fini(&kept);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(unexpected),         cmocka_unit_test(links), cmocka_unit_test(schemes),
      cmocka_unit_test(recursive_doubling), cmocka_unit_test(ring),  cmocka_unit_test(oktopk),
  };
  return cmocka_run_group_tests_name("rounds between ranks without memory", tests, open_jobs, close_jobs);
}
