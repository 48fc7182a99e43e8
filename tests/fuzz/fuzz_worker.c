/* Takes arbitrary bytes for what servers and other ranks say to a rank: sums and gradients as they should be, spoilt
 * ones, words, bodies of any bytes, sealed as a member's so that they come through; and for the rank's own rounds (over
 * servers, whole, pushes, pulls and seeks apart; between ranks), how time passes, and who is lost. A sum that is
 * delivered is right, unless somebody has said of it what is not so; each request ends once, with a sum or a typed
 * error and a sentence, and none waits beyond its deadline; in the end nothing is left. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/worker_scene.h"
#include "tests/support/one_thread.h"
#include "worker/control/membership.h"

enum { JOB = 9, REQUESTS = 8, TURNS_MAX = 20000, EVENTS_MAX = 300, SLACK_MS = 5 };

enum kind { ALL, GIVES, TAKES, SEEKS, BETWEEN, KINDS };

struct request {
  struct zps_round *round; /* kept for the next one of its kind */
  enum kind kind;
  uint64_t step, deadline_ns;
  bool is_used, is_over, is_released;
  struct zps_wants *wants;
  zenps_grad_t out, nothing; /* nothing: what it lacks is an empty list */
  float in_values[ROWS_MAX * WIDTH_MAX], out_values[ROWS_MAX * WIDTH_MAX];
  uint32_t sent[PARTS_MAX], in_union[PARTS_MAX];
};

struct scene scene;
static struct request requests[REQUESTS];
static uint64_t n_begun;

/* ---- the owner of rounds ---- */

static void check_sum(const struct request *request) {
  const bool is_between = request->kind == BETWEEN;
  const uint64_t step = request->kind == SEEKS ? request->round->sum_step : request->step;
  must(step <= request->step && request->step - step <= request->round->staleness);
  if (request->kind == GIVES || scene.has_lied[is_between][request->step]) return;
  for (uint32_t i = 0; i < scene.rows * scene.width; i++) {
    if (request->out_values[i] != scene_sum(step, i))
      fprintf(stderr, "kind %d, step %llu: value %u is %g, not %g\n", request->kind, (unsigned long long)step, i,
              (double)request->out_values[i], (double)scene_sum(step, i));
    must(request->out_values[i] == scene_sum(step, i));
  }
}

static bool over(struct zps_round *round, const zenps_error_t *error, bool serving) {
  struct request *const request = round->request;
  (void)serving;
  must(request->is_used && !request->is_over);
  request->is_over = true;
  if (error->status == ZENPS_OK)
    check_sum(request);
  else
    must(zps_err_name((zps_err_t)error->status)[0] && error->text[0]);
  zps_row_arrays_give(&round->row_arrays);
  return false;
}

static void wake(const struct zps_round_tensor *tensor) {
  (void)tensor;
}

static void released(struct zps_round *round) {
  struct request *const request = round->request;
  must(request->is_over && !request->is_released);
  request->is_released = true;
}

static const struct zps_round_owner owner = {.over = over, .wake = wake, .released = released};

/* ---- time ---- */

static bool turn(void) {
  bool any = one_thread_turn(scene.plane.engine);
  any |= one_thread_work();
  for (unsigned i = 0; i < MEMBERS; i++)
    if (scene.members[i].peer.net) any |= peer_turn(&scene.members[i].peer) > 0;
  return any;
}

static void settle(void) {
  for (unsigned n = 0; turn(); n++) must(n < TURNS_MAX);
  for (unsigned i = 0; i < REQUESTS; i++)
    must(!requests[i].is_used || requests[i].is_over ||
         one_thread_now_ns <= requests[i].deadline_ns + SLACK_MS * ZPS_NS_PER_MS);
}

/* In steps, so that what is due in between is done then. */
static void pass(uint64_t ms) {
  for (uint64_t left = ms, step; left > 0; left -= step) {
    step = left > 1000 ? 1000 : left;
    one_thread_now_ns += step * ZPS_NS_PER_MS;
    for (unsigned n = 0; turn(); n++) must(n < TURNS_MAX);
  }
  settle();
}

/* ---- requests ---- */

static void free_request(struct request *request) {
  zps_round_destroy(request->round);
  zps_wants_destroy(request->wants);
  *request = (struct request){.round = NULL};
}

static bool is_under_way(enum kind kind, uint64_t step) {
  for (unsigned i = 0; i < REQUESTS; i++)
    if (requests[i].is_used && !requests[i].is_released && requests[i].step == step &&
        (requests[i].kind == BETWEEN) == (kind == BETWEEN))
      return true;
  return false;
}

static void begin_request(struct input *input) {
  const unsigned which = input_next(input), bits = input_next(input);
  struct request *const request = &requests[which % REQUESTS];
  const enum kind kind = (enum kind)(bits % KINDS);
  const uint64_t step = which / REQUESTS % STEPS;
  struct zps_round_tensor *const tensor = &scene.tensors[kind == BETWEEN];
  if ((request->is_used && !request->is_released) || is_under_way(kind, step)) return;
  if (request->is_used && (request->kind != kind || bits & 64)) free_request(request);
  if (!request->round) must(zps_round_create(tensor, &owner, &request->round) == ZPS_OK);
  if (!request->wants && (kind == TAKES || kind == SEEKS))
    must(zps_wants_create(&tensor->part, 0, scene.rows, NULL, &request->wants, NULL) == ZPS_OK);
  const uint64_t timeout_ms = bits & 128 ? 30000 : 200;
  request->kind = kind;
  request->step = step;
  request->deadline_ns = one_thread_now_ns + timeout_ms * ZPS_NS_PER_MS;
  request->is_used = true;
  request->is_over = request->is_released = false;
  for (uint32_t i = 0; i < scene.rows * scene.width; i++) {
    request->in_values[i] = scene_value(0, step, i);
    request->out_values[i] = -1;
  }
  const zenps_grad_t in = {
      .struct_size = sizeof in, .layout = ZENPS_DENSE, .memory = ZENPS_HOST, .values = request->in_values};
  request->out = in;
  request->out.values = request->out_values;
  request->nothing = (zenps_grad_t){.struct_size = sizeof in, .layout = ZENPS_ROWS, .memory = ZENPS_HOST};
  const bool has_in = kind != TAKES && kind != SEEKS;
  zps_round_setup(request->round, &(struct zps_round_start){.request = request,
                                                            .step = step,
                                                            .timeout_ms = timeout_ms,
                                                            .number = ++n_begun,
                                                            .in = has_in ? &in : &request->nothing,
                                                            .out = kind == GIVES ? &request->nothing : &request->out,
                                                            .only_gives = kind == GIVES,
                                                            .only_takes = !has_in,
                                                            .wants = request->wants,
                                                            .seeks = kind == SEEKS,
                                                            .staleness = kind == SEEKS ? 2 : 0,
                                                            .sent = request->sent,
                                                            .in_union = request->in_union});
  if (tensor->ops->prepare) tensor->ops->prepare(request->round);
  zps_round_launch(request->round);
}

static void cancel(unsigned which) {
  struct request *const request = &requests[which % REQUESTS];
  if (request->is_used && !request->is_over) zps_round_cancel(request->round);
}

struct lose {
  struct zps_command command;
  struct zps_remote *remote;
};

static void lose_run(struct zps_command *command, void *ctx) {
  (void)ctx;
  zps_plane_lose(((struct lose *)command)->remote, "no heartbeat");
}

static void lose_member(const struct member *member) {
  struct lose command = {
      .command.run = lose_run,
      .remote = member->is_rank ? &scene.plane.ranks[member->number] : &scene.plane.servers[member->number]};
  must(zps_engine_call(scene.plane.engine, &command.command) == ZPS_OK);
}

/* In the end the coordinator tells of a member with a closed endpoint. */
static void lose(unsigned bits) {
  struct member *const member = &scene.members[bits % MEMBERS];
  if (bits & 128)
    lose_member(member);
  else if (member->peer.net)
    peer_close(&member->peer);
}

/* ---- the rank ---- */

static void connect_members(void) {
  static const struct zps_secret secret = {{1}};
  static struct zps_place_image servers[SERVERS];
  static struct zps_join_peer ranks[RANKS];
  const struct zps_net_info *const here = zps_net_info(zps_engine_net(scene.plane.engine));
  const struct zps_net_info none = {.addr_len = 0};
  struct zps_error error = {.text = ""};
  for (unsigned i = 0; i < MEMBERS; i++) {
    struct member *const member = &scene.members[i];
    member_open(i);
    const struct zps_net_info *const info = zps_net_info(member->peer.net);
    const struct peer_ends ends = {.job = JOB,
                                   .epoch = 1,
                                   .self = member->number | (member->is_rank ? 0 : ZPS_WIRE_SRC_SERVER),
                                   .other = 0,
                                   .tag = 40 + i,
                                   .secret = &secret};
    peer_connect(&member->peer, &ends, here, member->is_rank ? &none : info);
    uint8_t *const addr = member->is_rank ? ranks[member->number].addr : servers[member->number].server.addr;
    memcpy(addr, info->addr, info->addr_len);
    *(member->is_rank ? &ranks[member->number].addr_len : &servers[member->number].server.addr_len) = info->addr_len;
    if (!member->is_rank) servers[member->number].state = ZPS_PLACE_IN;
  }
  const struct zps_join join = {.job_id = JOB,
                                .seed = 1,
                                .link_secret = secret,
                                .view = {.epoch = 1, .n_first = SERVERS, .n_places = SERVERS, .places = servers}};
  must(zps_plane_connect(&scene.plane, &join, 0, RANKS, &error) == ZPS_OK);
  must(zps_plane_link(&scene.plane, &(struct zps_join_peers){.world = RANKS, .ranks = ranks}, &error) == ZPS_OK);
}

static void open_tensors(unsigned shape) {
  static const char *const names[] = {"t", "u"};
  for (unsigned i = 0; i < TENSORS; i++) {
    struct zps_round_tensor *const tensor = &scene.tensors[i];
    *tensor = (struct zps_round_tensor){.job = "j",
                                        .id = i == 0 ? SERVED_TENSOR : PEER_TENSOR,
                                        .world = scene.world,
                                        .rounds = &scene.rounds,
                                        .shape = {scene.rows, scene.width, ZPS_DTYPE_F32},
                                        .width = scene.width,
                                        .dtype = ZPS_DTYPE_F32,
                                        .op = ZPS_OP_SUM,
                                        .codec = shape & 128 ? ZPS_CODEC_PAPER : ZPS_CODEC_AUTO,
                                        .value_codec = ZPS_VALUES_RAW,
                                        .works_in_host = true};
    strcpy(tensor->name, names[i]);
    must(zps_row_arrays_pool_create(&tensor->arrays) == ZPS_OK);
    must(zps_partition_init(&tensor->part, scene.rows, i == 0 ? 1 + (shape >> 4 & 3) : 1, 0, 1, NULL) == ZPS_OK);
  }
  for (uint32_t p = 0; p < PARTS_MAX; p++) scene.owners[p] = p % SERVERS;
  scene.tensors[0].owners = scene.owners;
  scene.tensors[0].ops = &zps_served_ops;
  scene.tensors[0].served = zps_served_kind_find("balanced");
  scene.tensors[0].scheme = "balanced";
  scene.peer =
      (struct zps_peer_tensor){.scheme = &zps_peer_agsparse,
                               .plan = {.n = RANKS, .me = 0, .rows = scene.rows, .width = scene.width, .chunks = 1}};
  scene.tensors[1].ops = &zps_peer_ops;
  scene.tensors[1].peer = &scene.peer;
  scene.tensors[1].scheme = scene.peer.scheme->name;
}

static void begin(struct input *input) {
  const unsigned shape = input_next(input), bits = input_next(input);
  char provider[] = "loop", rules[] = "";
  const struct zps_worker_options options = {.provider = provider,
                                             .fault = rules,
                                             .device = -1,
                                             .local_world = 64,
                                             .threads = 1,
                                             .memory_limit_bytes = bits & 1 ? 3 << 14 : 1 << 24};
  struct zps_error error = {.text = ""};
  memset(&scene, 0, sizeof scene);
  n_begun = 0;
  one_thread_now_ns = ZPS_NS_PER_S;
  scene.world = RANKS;
  scene.rows = 1 + (shape & 7) * 6;
  scene.width = 1 + (shape >> 3 & 1);
  zps_rounds_init(&scene.rounds, &scene.plane);
  const struct zps_plane_handler handler = zps_rounds_handler(&scene.rounds);
  must(zps_plane_open(&options, &handler, &scene.plane, &error) == ZPS_OK);
  connect_members();
  open_tensors(shape);
}

static void finish(void) {
  settle();
  pass(31000);
  for (unsigned i = 0; i < REQUESTS; i++) must(!requests[i].is_used || requests[i].is_over);
  for (unsigned i = 0; i < MEMBERS; i++)
    if (!scene.members[i].peer.net) lose_member(&scene.members[i]);
  pass(11000); /* servers may have been reading what failed rounds pushed */
  for (unsigned i = 0; i < REQUESTS; i++) must(!requests[i].is_used || requests[i].is_released);
  must(scene.plane.memory.used.push == 0 && scene.plane.memory.used.pull == 0);
  zps_rounds_close(&scene.rounds);
  settle();
  zps_plane_disconnect(&scene.plane);
  settle();
  must(scene.plane.memory.left_bytes == 0);
  for (unsigned i = 0; i < REQUESTS; i++) free_request(&requests[i]);
  zps_plane_close(&scene.plane);
  zps_rounds_fini(&scene.rounds);
  for (unsigned i = 0; i < TENSORS; i++) zps_row_arrays_pool_close(scene.tensors[i].arrays);
  for (unsigned i = 0; i < MEMBERS; i++)
    if (scene.members[i].peer.net) peer_close(&scene.members[i].peer);
}

static void event(struct input *input, unsigned what) {
  switch (what & 15) {
    case 0:
    case 1:
    case 2:
      begin_request(input);
      break;
    case 3:
    case 4:
    case 5:
    case 6:
      member_answer(input, false);
      break;
    case 7:
      member_answer(input, true);
      break;
    case 8:
      member_say(input);
      break;
    case 9:
      member_say_body(input);
      break;
    case 10:
      turn();
      break;
    case 11:
      pass(1ull << (what >> 4));
      break;
    case 12:
      cancel(what >> 4);
      break;
    case 13:
      lose(input_next(input));
      break;
    default:
      settle();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {.at = data, .end = data + size};
  if (size < 3) return 0;
  zps_log_set_level(ZPS_LOG_ERROR);
  begin(&input);
  for (unsigned n = 0; input.at < input.end && n < EVENTS_MAX; n++) {
    const unsigned what = input_next(&input);
    event(&input, what);
    if (what & 128) turn();
  }
  finish();
  return 0;
}
