#include "tests/unit/worker/round/worker_rig.h"

#include <stdio.h>

#include "common/base/container.h"
#include "tests/support/fabrics/loop.h"

/* ------------------------------------------------------------ the owner */

static bool over(struct zps_round *round, const zenps_error_t *error, bool serving) {
  struct rig_request *request = round->request;
  struct worker_rig *rig = zps_container_of(round->rounds, struct worker_rig, rounds);
  request->n_over++;
  request->number = rig->n_over++;
  request->serving = serving;
  request->error = *error;
  request->stats = round->stats;
  request->arrays = round->row_arrays;
  round->row_arrays = (struct zps_row_arrays){0};
  pthread_mutex_lock(&rig->lock);
  atomic_store(&request->over, true);
  pthread_mutex_unlock(&rig->lock);
  return true;
}

static void wake(const struct zps_round_tensor *tensor) {
  zps_container_of(tensor->rounds, struct worker_rig, rounds)->n_woken++;
}

static void released(struct zps_round *round) {
  atomic_store(&((struct rig_request *)round->request)->released, true);
}

static void kept(struct zps_round *round) {
  atomic_store(&((struct rig_request *)round->request)->kept, true);
}

static const struct zps_round_owner owner = {.over = over, .wake = wake, .released = released};
static const struct zps_round_owner keeper = {.over = over, .wake = wake, .released = released, .kept = kept};

/* ------------------------------------------------------------ life */

const struct zps_net_info *rig_info(const struct worker_rig *rig) {
  return zps_net_info(zps_engine_net(rig->plane.engine));
}

static void connect_servers(struct worker_rig *rig) {
  struct zps_place_image places[RIG_FAKES_MAX] = {0};
  struct zps_error error = {.text = ""};
  for (uint32_t s = 0; s < rig->n_servers; s++) {
    fake_open(&rig->servers[s]);
    fake_connect(&rig->servers[s], rig_info(rig), RIG_JOB, s | ZPS_WIRE_SRC_SERVER, rig->rank);
    const struct zps_net_info *info = zps_net_info(rig->servers[s].net);
    places[s].state = ZPS_PLACE_IN;
    snprintf(places[s].server.name, sizeof places[s].server.name, "ps-%u", s);
    memcpy(places[s].server.addr, info->addr, info->addr_len);
    places[s].server.addr_len = info->addr_len;
  }
  const struct zps_join join = {
      .job_id = RIG_JOB,
      .seed = 1,
      .checksums = rig->checksums,
      .view = {.epoch = 1, .n_first = rig->n_servers, .n_places = rig->n_servers, .places = places}};
  if (zps_plane_connect(&rig->plane, &join, rig->rank, RIG_FAKES_MAX, &error) != ZPS_OK) fail_msg("%s", error.text);
}

void rig_link(struct worker_rig *rig, const struct zps_join_peers *peers) {
  struct zps_error error = {.text = ""};
  if (zps_plane_link(&rig->plane, peers, &error) != ZPS_OK) fail_msg("%s", error.text);
}

static void link_fakes(struct worker_rig *rig) {
  struct zps_join_peer ranks[RIG_FAKES_MAX] = {0};
  for (uint32_t r = 0; r < rig->world; r++) {
    snprintf(ranks[r].host, sizeof ranks[r].host, "node-%u", r);
    if (r == rig->rank) continue;
    fake_open(&rig->ranks[r]);
    fake_connect(&rig->ranks[r], rig_info(rig), RIG_JOB, r, rig->rank);
    const struct zps_net_info *info = zps_net_info(rig->ranks[r].net);
    memcpy(ranks[r].addr, info->addr, info->addr_len);
    ranks[r].addr_len = info->addr_len;
  }
  rig_link(rig, &(struct zps_join_peers){.world = rig->world, .ranks = ranks});
}

void rig_open(struct worker_rig *rig, const struct rig_config *config) {
  char provider[] = "fault+loop", real[16], interface[] = "lo", rules[64];
  snprintf(real, sizeof real, "%s", config->provider ? config->provider : "");
  snprintf(rules, sizeof rules, "%s", config->fault ? config->fault : "");
  const struct zps_worker_options options = {
      .provider = config->provider ? real
                  : config->fault  ? provider
                                   : provider + strlen("fault+"),
      .interface = config->provider ? interface : NULL,
      .fault = rules,
      .device = -1,
      .local_world = 64, /* nothing spins */
      .threads = config->threads ? config->threads : 2,
      .memory_limit_bytes = config->memory_limit_bytes ? config->memory_limit_bytes : 64 << 20};
  struct zps_error error = {.text = ""};
  memset(rig, 0, sizeof *rig);
  fake_provider = config->provider;
  rig->n_servers = config->n_servers;
  rig->checksums = config->checksums;
  rig->rank = config->rank;
  rig->world = config->world;
  pthread_mutex_init(&rig->lock, NULL);
  zps_rounds_init(&rig->rounds, &rig->plane);
  const struct zps_plane_handler handler = zps_rounds_handler(&rig->rounds);
  if (zps_plane_open(&options, &handler, &rig->plane, &error) != ZPS_OK) fail_msg("%s", error.text);
  connect_servers(rig);
  if (rig->world > 0) link_fakes(rig);
}

void rig_close(struct worker_rig *rig) {
  if (!rig->plane.engine) return;
  zps_rounds_close(&rig->rounds);
  zps_plane_disconnect(&rig->plane);
  for (struct rig_request *request = rig->requests; request; request = request->next) {
    UNTIL(atomic_load(&request->released));
    rig_free_result(request);
    zps_round_destroy(request->round);
  }
  zps_plane_close(&rig->plane);
  assert_int_equal(rig->n_woken, rig->n_over);
  zps_rounds_fini(&rig->rounds);
  pthread_mutex_destroy(&rig->lock);
  for (uint32_t i = 0; i < RIG_FAKES_MAX; i++) {
    fake_close(&rig->servers[i]);
    fake_close(&rig->ranks[i]);
  }
}

/* ------------------------------------------------------------ rounds */

zps_err_t rig_begin(struct worker_rig *rig, struct rig_request *request, struct zps_round_tensor *tensor, uint64_t step,
                    uint64_t timeout_ms, const zenps_grad_t *in) {
  if (!request->round) {
    const zps_err_t err = zps_round_create(tensor, rig->keeps ? &keeper : &owner, &request->round);
    if (err != ZPS_OK) return err;
    request->next = rig->requests;
    rig->requests = request;
  } else {
    assert_true(atomic_load(&request->released)); /* it belongs to no round: it may start anew */
  }
  rig_free_result(request);
  request->n_over = 0;
  request->error = (zenps_error_t){0};
  atomic_store(&request->over, false);
  atomic_store(&request->released, false);
  atomic_store(&request->kept, false);
  const bool on_device = in->memory == ZENPS_DEVICE || request->out.memory == ZENPS_DEVICE;
  zps_round_setup(request->round, &(struct zps_round_start){.request = request,
                                                            .step = step,
                                                            .timeout_ms = timeout_ms,
                                                            .number = ++rig->n_begun,
                                                            .seen_to = rig->seen_to,
                                                            .in = in,
                                                            .out = &request->out,
                                                            .sent = request->sent,
                                                            .in_union = request->in_union,
                                                            .device = on_device ? rig->device : NULL});
  if (tensor->ops->prepare) tensor->ops->prepare(request->round);
  zps_round_launch(request->round);
  return ZPS_OK;
}

void rig_cancel(struct rig_request *request) {
  struct zps_round *const round = request->round;
  struct worker_rig *const rig = zps_container_of(round->rounds, struct worker_rig, rounds);
  pthread_mutex_lock(&rig->lock);
  if (!atomic_load(&request->over)) zps_round_cancel(round);
  pthread_mutex_unlock(&rig->lock);
}

void rig_expect_ok(struct rig_request *request) {
  UNTIL(atomic_load(&request->over));
  if (request->error.status != ZENPS_OK) fail_msg("it failed: %s", request->error.text);
  assert_int_equal(request->n_over, 1);
}

void rig_expect_error(struct rig_request *request, zps_err_t code, const char *text) {
  char all[sizeof request->error.text];
  UNTIL(atomic_load(&request->over));
  const struct zps_round *round = request->round;
  snprintf(all, sizeof all, "job %s, tensor %s, step %llu: %s", round->tensor->job, round->tensor->name,
           (unsigned long long)request->error.step, text);
  assert_string_equal(request->error.text, all);
  assert_int_equal(request->error.status, code);
  assert_int_equal(request->n_over, 1);
}

void rig_expect_released(struct rig_request *request) {
  UNTIL(atomic_load(&request->released));
}

void rig_drop(struct worker_rig *rig, struct rig_request *request) {
  if (!request->round) return;
  rig_expect_released(request);
  struct rig_request **at = &rig->requests;
  while (*at != request) at = &(*at)->next;
  *at = request->next;
  rig_free_result(request);
  zps_round_destroy(request->round);
  request->round = NULL;
}

void rig_free_result(struct rig_request *request) {
  if (request->round) zps_row_arrays_give(&request->arrays);
}

/* ------------------------------------------------------------ on the engine's thread */

struct call {
  struct zps_command command;
  void (*run)(void *ctx);
  void *ctx;
};

static void call_run(struct zps_command *command, void *handler_ctx) {
  (void)handler_ctx;
  struct call *call = (struct call *)command;
  call->run(call->ctx);
}

void rig_do(struct worker_rig *rig, void (*run)(void *ctx), void *ctx) {
  struct call call = {.command.run = call_run, .run = run, .ctx = ctx};
  assert_int_equal(zps_engine_call(rig->plane.engine, &call.command), ZPS_OK);
}

struct look {
  struct worker_rig *rig;
  const struct zps_round *round;
  uint64_t held_bytes, left_bytes;
  unsigned n_reads;
  enum zps_round_machine_state state;
  struct zps_remote *remote;
  const char *why;
};

static void look_held(void *ctx) {
  struct look *look = ctx;
  look->held_bytes = look->rig->plane.memory.used.push + look->rig->plane.memory.used.pull;
}

uint64_t rig_held(struct worker_rig *rig) {
  struct look look = {.rig = rig};
  rig_do(rig, look_held, &look);
  return look.held_bytes;
}

static void look_left(void *ctx) {
  struct look *look = ctx;
  look->left_bytes = look->rig->plane.memory.left_bytes;
}

uint64_t rig_left(struct worker_rig *rig) {
  struct look look = {.rig = rig};
  rig_do(rig, look_left, &look);
  return look.left_bytes;
}

static void look_reads(void *ctx) {
  struct look *look = ctx;
  look->n_reads = look->round->n_reads;
}

unsigned rig_reads(struct worker_rig *rig, const struct rig_request *request) {
  struct look look = {.round = request->round};
  rig_do(rig, look_reads, &look);
  return look.n_reads;
}

static void look_state(void *ctx) {
  struct look *look = ctx;
  look->state = look->round->machine->state;
}

enum zps_round_machine_state rig_state(struct worker_rig *rig, const struct rig_request *request) {
  struct look look = {.round = request->round};
  rig_do(rig, look_state, &look);
  return look.state;
}

static void lose_run(void *ctx) {
  const struct look *look = ctx;
  zps_plane_lose(look->remote, look->why);
}

void rig_lose(struct worker_rig *rig, struct zps_remote *remote, const char *why) {
  struct look look = {.remote = remote, .why = why};
  rig_do(rig, lose_run, &look);
}

/* ------------------------------------------------------------ busy threads */

static void block_run(struct zps_work *work) {
  struct rig_block *block = zps_container_of(work, struct rig_block, work);
  atomic_store(&block->is_running, true);
  while (atomic_load(&block->is_held)) fakes_rest();
  atomic_store(&block->is_through, true);
}

void rig_block(struct rig_block *block, struct zps_workpool *pool) {
  atomic_store(&block->is_running, false);
  atomic_store(&block->is_through, false);
  atomic_store(&block->is_held, true);
  block->work = (struct zps_work){.run = block_run};
  zps_workpool_submit(pool, &block->work);
  UNTIL(atomic_load(&block->is_running));
}

void rig_unblock(struct rig_block *block) {
  atomic_store(&block->is_held, false);
  UNTIL(atomic_load(&block->is_through));
}
