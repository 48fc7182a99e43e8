/* What ranks need for rounds between workers, when memory is short: links, schemes, messages that come early. */
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
#include "worker/early.h"
#include "worker/job.h"

enum { WORLD = 2, ROWS = 3000, WIDTH = 2 };

struct rank {
  struct zenps_job job;
};

static struct rank ranks[WORLD];
static struct zps_join_peers peers = {.world = WORLD};

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
    if (zps_plane_open(&job->options, &job->plane, NULL) != ZPS_OK) return -1;
    if (zps_plane_connect(&job->plane, &join, r, NULL) != ZPS_OK) return -1;
    const struct zps_net_info *fabric = zps_net_info(zps_engine_net(job->plane.engine));
    memcpy(there[r].addr, fabric->addr, fabric->addr_len);
    there[r].addr_len = fabric->addr_len;
    strcpy(there[r].host, "here");
  }
  return 0;
}

static int close_jobs(void **state) {
  (void)state;
  for (uint32_t r = 0; r < WORLD; r++) zps_plane_quiesce(&ranks[r].job.plane);
  for (uint32_t r = 0; r < WORLD; r++) zps_plane_disconnect(&ranks[r].job.plane);
  for (uint32_t r = 0; r < WORLD; r++) {
    struct zenps_job *job = &ranks[r].job;
    zps_plane_close(&job->plane);
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
  struct zps_tensor_scheme *made;
};

static zps_err_t scheme_create(void *ctx) {
  struct making *making = ctx;
  struct zps_error error;
  return zps_tensor_scheme_create(&making->ask, &peers, 0, &making->made, &error);
}

static void scheme_destroy(void *ctx) {
  zps_tensor_scheme_destroy(((struct making *)ctx)->made);
}

static void schemes(void **state) {
  (void)state;
  struct making making = {.ask = ask_for("oktopk")};
  making.ask.plan.levels = making.ask.levels;
  oom_sweep(scheme_create, scheme_destroy, &making, 5);
}

/* What comes before its round has begun: kept or, without memory, missed in the open. */
static void early(void **state) {
  (void)state;
  const struct zps_slice slice = {.is_inline = true, .len_bytes = 5, .data = "early"};
  const struct zps_frame_abort abort = {.tensor = 3, .step = 4};
  for (long n = 0; n < 5; n++) {
    struct zps_early kept = {0};
    atomic_store(&oom_granted, n);
    zps_early_add(&kept, 3, 4, 1, 100, &slice);
    zps_early_add(&kept, 3, 4, 2, 100, &slice);
    zps_early_abort(&kept, 1, &abort);
    atomic_store(&oom_granted, OOM_UNLIMITED);
    bool dropped, again;
    struct zps_early_round *round = zps_early_take(&kept, 3, 4, &dropped);
    assert_true((round != NULL) == (n > 0));
    assert_true(dropped == (n < 4));
    assert_null(zps_early_take(&kept, 3, 4, &again));
    assert_false(again);
    if (round) assert_true((round->aborts != NULL) == (n == 4));
    if (n == 4) assert_int_equal(round->messages->src, 2); /* what came before an abort is of no use */
    zps_early_round_free(round);
    zps_early_fini(&kept);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(early),
      cmocka_unit_test(links),
      cmocka_unit_test(schemes),
  };
  return cmocka_run_group_tests_name("between workers without memory", tests, open_jobs, close_jobs);
}
