/* A rank that is silent for too long is lost for the plane, and whoever waits for it hears so at once. */
#include "tests/unit/worker/peer/peer_rig.h"

#include "common/session/engine.h"
#include "tests/support/logs.h"

enum { DEAD_MS = 5000 };

static struct peer_rig rig;

struct silence {
  bool is_lost, is_due, is_gone; /* the rank; the next turn, at once; the rank's link, with that turn */
};

/* On the engine's thread: the plane is told of times to come, and the fakes, on the test's thread, say nothing. */
static void be_silent(void *ctx) {
  struct silence *const silence = ctx;
  struct zps_plane *const plane = &rig.worker.plane;
  const struct zps_engine_handler handler = zps_plane_engine_handler(plane);
  const struct zps_remote *const silent = &plane->ranks[1];
  plane->dead_ns = DEAD_MS * ZPS_NS_PER_MS;
  zps_link_ask(silent->link);
  uint64_t now_ns = zps_clock_ns(), next_ns = now_ns;
  for (unsigned ms = 0; ms < 2 * DEAD_MS && !silent->lost; ms += 10) {
    now_ns += 10 * ZPS_NS_PER_MS;
    next_ns = handler.on_tick(handler.ctx, now_ns);
  }
  silence->is_lost = silent->lost;
  silence->is_due = next_ns <= now_ns;
  handler.on_tick(handler.ctx, now_ns);
  silence->is_gone = !silent->link;
}

static void its_loss_is_acted_on_at_once(void **state) {
  (void)state;
  logs_start();
  logs_allow(ZPS_LOG_WARN, "rank 1 (host node-1) is lost: nothing has come for 5.");
  peer_open(&rig, &(struct peer_config){.worker.world = 2, .scheme = &zps_peer_agsparse, .rows = 200});
  struct silence silence = {false};
  rig_do(&rig.worker, be_silent, &silence);
  assert_true(silence.is_lost);
  assert_true(silence.is_due);
  assert_true(silence.is_gone);
  peer_close(&rig);
  logs_finish();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(its_loss_is_acted_on_at_once)};
  return cmocka_run_group_tests_name("silent rank", tests, NULL, NULL);
}
