/* Membership, coordinator and agent when memory is short: refused, and nothing left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "server/coordinator/coordinator.h"
#include "server/membership/members.h"
#include "server/daemon/agent.h"
#include "tests/support/oom.h"
#include "tests/support/settled.h"

struct scene {
  struct zps_members *members;
  struct zps_member_client server, ranks[2];
  zps_err_t answered;
  unsigned n_answers;
  uint64_t random;
};

static void on_act(void *ctx, const struct zps_action *action) {
  struct scene *scene = ctx;
  if (action->type < ZPS_ACT_JOIN_DONE || action->type > ZPS_ACT_TENSOR_FAILED) return;
  scene->n_answers++;
  if (action->code) scene->answered = action->code;
}

static uint64_t on_random(void *ctx) {
  return ++((struct scene *)ctx)->random;
}

static void scene_destroy(void *ctx) {
  struct scene *scene = ctx;
  for (unsigned i = 0; i < 2; i++) zps_members_client_lost(scene->members, &scene->ranks[i], "end");
  zps_members_client_lost(scene->members, &scene->server, "end");
  assert_int_equal(zps_members_jobs(scene->members), 0);
  zps_members_destroy(scene->members);
}

/* A server, a job of two ranks, nine tensors. */
static zps_err_t play(struct scene *scene) {
  static const struct zps_net_info fabric = {.provider = "tcp"};
  const struct zps_server_spec server = {.name = "s", .host = "h", .fabric = &fabric};
  zps_err_t err = zps_members_server_register(scene->members, &scene->server, &server, false, NULL);
  for (uint32_t r = 0; r < 2 && !err; r++) {
    const struct zps_join_spec join = {
        .job = "j", .host = "h", .world = 2, .rank = r, .timeout_ms = 1500, .fabric = &fabric};
    err = zps_members_join(scene->members, &scene->ranks[r], &join, scene, 0, NULL);
  }
  if (err || scene->answered) return err ? err : scene->answered;
  const uint64_t job_id = zps_members_job_first(scene->members)->job_id;
  zps_members_job_opened(scene->members, &scene->server, job_id, ZPS_OK, NULL);
  for (uint32_t i = 0; i < 9 && !err; i++) {
    struct zps_tensor_spec spec = {.job_id = job_id,
                                   .name = "w",
                                   .rows = 1000,
                                   .width = 1,
                                   .dtype = ZPS_DTYPE_F32,
                                   .op = ZPS_OP_SUM,
                                   .codec = ZPS_CODEC_AUTO,
                                   .value_codec = ZPS_VALUES_RAW,
                                   .block_bits = UINT32_MAX};
    spec.name[1] = (char)('0' + i);
    err = zps_members_tensor_register(scene->members, &scene->ranks[i % 2], &spec, scene, NULL);
    if (!err) zps_members_tensor_opened(scene->members, &scene->server, job_id, i, ZPS_OK, NULL);
  }
  if (!err) assert_int_equal(scene->n_answers, 2 + 9);
  return err;
}

static zps_err_t scene_create(void *ctx) {
  struct scene *scene = ctx;
  *scene = (struct scene){.answered = ZPS_OK};
  const struct zps_members_config config = {
      .min_servers = 1, .max_jobs = 4, .max_tensors = 16, .ctx = scene, .act = on_act, .random = on_random};
  zps_err_t err = zps_members_create(&config, &scene->members);
  if (err) return err;
  err = play(scene);
  if (err) scene_destroy(scene);
  return err;
}

static void test_members(void **state) {
  (void)state;
  struct scene scene;
  oom_sweep(scene_create, scene_destroy, &scene, 20);
}

struct on_loop {
  uv_loop_t loop;
  struct zps_coordinator *coordinator;
  struct zps_agent *agent;
};

static void drain_loop(struct on_loop *on) {
  uv_run(&on->loop, UV_RUN_DEFAULT);
  assert_int_equal(uv_loop_close(&on->loop), 0);
}

static zps_err_t coordinator_create(void *ctx) {
  struct on_loop *on = ctx;
  const struct zps_coordinator_config config = {
      .listen = "127.0.0.1:0", .heartbeat_ms = 1000, .dead_ms = 5000, .call_timeout_ms = 1000, .min_servers = 1};
  uv_loop_init(&on->loop);
  const zps_err_t err = zps_coordinator_create(&on->loop, &config, &on->coordinator, NULL);
  if (err) drain_loop(on);
  return err;
}

static void coordinator_destroy(void *ctx) {
  struct on_loop *on = ctx;
  zps_coordinator_close(on->coordinator);
  drain_loop(on);
}

static void test_coordinator(void **state) {
  (void)state;
  struct on_loop on;
  oom_sweep(coordinator_create, coordinator_destroy, &on, 2);
}

static void on_change(void *ctx, bool registered, const char *text) {
  (void)ctx, (void)registered, (void)text;
}

static zps_err_t agent_create(void *ctx) {
  struct on_loop *on = ctx;
  const struct zps_agent_config config = {
      .coordinator = "127.0.0.1:1", .name = "s", .host = "h", .on_change = on_change};
  uv_loop_init(&on->loop);
  const zps_err_t err = zps_agent_create(&on->loop, &config, &on->agent, NULL);
  if (err) drain_loop(on);
  return err;
}

static void agent_destroy(void *ctx) {
  struct on_loop *on = ctx;
  zps_agent_close(on->agent);
  drain_loop(on);
}

static void test_agent(void **state) {
  (void)state;
  struct on_loop on;
  oom_sweep(agent_create, agent_destroy, &on, 3);
}

int main(void) {
  zps_log_set_level(ZPS_LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_members),
      cmocka_unit_test(test_coordinator),
      cmocka_unit_test(test_agent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
