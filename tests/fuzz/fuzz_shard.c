/* Takes arbitrary bytes for what happens to a server's shard: a job with its tensors and limits, then what its ranks
 * send (contributions, pulls, what members do not say, what strangers do), what the coordinator calls, how time passes.
 * Each sum that arrives is compared with the plain sum of what was pushed, unless a rank pushed something else, too. In
 * the end no round waits beyond its deadline, and when the job is closed nothing of it is left. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/account.h"
#include "common/base/log.h"
#include "server/shard/job.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/shard_ranks.h"
#include "tests/support/one_thread.h"
#include "tests/support/views.h"

enum { JOB = 9, SERVERS = 3, TURNS_MAX = 20000, EVENTS_MAX = 400 };

static struct zps_account *account;
static bool is_open;

/* ---- time ---- */

static bool turn(void) {
  bool any = one_thread_turn(scene.shard->engine);
  any |= one_thread_work();
  for (uint32_t r = 0; r < scene.world; r++)
    if (scene.ranks[r].peer.net) any |= peer_turn(&scene.ranks[r].peer) > 0;
  return any;
}

static void settle(void) {
  for (unsigned n = 0; turn(); n++) must(n < TURNS_MAX);
}

static void pass(uint64_t ms) {
  one_thread_now_ns += ms * ZPS_NS_PER_MS;
  settle();
}

/* ---- what the coordinator calls ---- */

/* The placing in force, as the shard has it. */
static void look_at_map(void) {
  const struct zps_job *job = zps_job_find(scene.shard->jobs, JOB);
  for (unsigned i = 0; i < MODEL_TENSORS; i++) {
    const struct zps_tensor *tensor = job ? zps_tensor_find(job, scene.tensors[i].spec.tensor) : NULL;
    scene.tensors[i].is_open = tensor;
    for (uint32_t p = 0; tensor && p < scene.tensors[i].spec.n_parts; p++) {
      scene.tensors[i].sizes[p] = tensor->all_sizes[p];
      scene.tensors[i].here[p] = tensor->positions[p] != UINT32_MAX;
    }
  }
}

static void map(struct input *input) {
  const unsigned bits = input_next(input);
  char letters[SERVERS + 1] = "i";
  struct zps_place_image places[SERVERS];
  for (uint32_t server = 1; server < SERVERS; server++) letters[server] = bits >> server & 1 ? 'x' : 'i';
  const struct zps_job_view told = {.job_id = JOB,
                                    .view = view_of(places, scene.epoch + !(bits & 1), SERVERS, letters)};
  if (zps_shard_job_view(scene.shard, &told, NULL) == ZPS_OK) scene.epoch = told.view.epoch;
  look_at_map();
  for (uint32_t r = 0; r < scene.world; r++)
    if (!(bits >> (3 + r) & 1)) peer_set_epoch(&scene.ranks[r].peer, scene.epoch);
  const zps_err_t code = bits & 128 ? zps_shard_job_replay(scene.shard, JOB, scene.epoch, NULL) : ZPS_OK;
  must(code == ZPS_OK || !is_open);
}

static void lose(struct input *input) {
  const unsigned bits = input_next(input);
  struct rank *const rank = &scene.ranks[(bits & 3) % scene.world];
  rank->is_honest = false;
  if (bits & 4) {
    if (rank->peer.net) peer_close(&rank->peer);
    return;
  }
  const zps_err_t code =
      zps_shard_rank_gone(scene.shard, JOB, rank->number, bits & 8 ? ZPS_ERR_CLOSED : ZPS_ERR_PEER_LOST, "why");
  must(code == ZPS_OK || !is_open);
}

static void end(struct input *input) {
  const unsigned bits = input_next(input);
  zps_err_t code = ZPS_OK;
  if (bits & 1)
    code = zps_shard_tensor_close(scene.shard, JOB, scene.tensors[bits >> 1 & 1].spec.tensor, NULL);
  else if ((bits & 14) == 14)
    code = zps_shard_job_leave(scene.shard, JOB, "why");
  if (!(bits & 1) && (bits & 14) == 14) is_open = false;
  (void)code; /* it may be closed already */
  look_at_map();
}

/* ---- the job ---- */

static void open_tensor(unsigned i, struct input *input) {
  static const enum zps_dtype dtypes[] = {ZPS_DTYPE_F32, ZPS_DTYPE_F32, ZPS_DTYPE_F64, ZPS_DTYPE_F16};
  static const uint32_t widths[] = {1, 1, 3, MODEL_WIDTH};
  static const enum zps_op ops[] = {ZPS_OP_SUM, ZPS_OP_SUM, ZPS_OP_MEAN, ZPS_OP_MAX, ZPS_OP_MEAN_PRESENT};
  static const enum zps_value_codec codecs[] = {ZPS_VALUES_RAW, ZPS_VALUES_RAW, ZPS_VALUES_QSGD4, ZPS_VALUES_F16};
  const unsigned shape = input_next(input), kind = input_next(input);
  struct model_tensor *const tensor = &scene.tensors[i];
  memset(tensor, 0, sizeof *tensor);
  tensor->world = scene.world;
  tensor->spec = (struct zps_tensor_spec){.job_id = JOB,
                                          .tensor = 7 + i,
                                          .rows = 1 + (shape & 7) * 9,
                                          .width = widths[shape >> 3 & 3],
                                          .n_parts = 1 + (shape >> 5 & 3),
                                          .dtype = dtypes[kind & 3],
                                          .op = ops[(kind >> 2 & 7) % 5],
                                          .codec = shape & 128 ? ZPS_CODEC_PAPER : ZPS_CODEC_AUTO,
                                          .value_codec = codecs[kind >> 5 & 3],
                                          .staleness = kind & 128 ? 2 : 0,
                                          .owners = tensor->owners,
                                          .ranks = tensor->ranks};
  snprintf(tensor->spec.name, sizeof tensor->spec.name, "t%u", i);
  if (kind == 255) tensor->spec.n_ranks = 1; /* rank 0 alone */
  for (uint32_t p = 0; p < tensor->spec.n_parts; p++) tensor->owners[p] = p % SERVERS;
  if ((shape & 0x87) == 0x85) tensor->spec.partitioner = ZPS_PARTITIONER_HIERARCHICAL;
  if (!zps_values_suit(tensor->spec.value_codec, tensor->spec.dtype)) tensor->spec.value_codec = ZPS_VALUES_RAW;
  const zps_err_t code = zps_shard_tensor_open(scene.shard, &tensor->spec, NULL);
  must(code == ZPS_OK || code == ZPS_ERR_QUOTA);
  const struct zps_job *job = zps_job_find(scene.shard->jobs, JOB);
  const struct zps_tensor *made = zps_tensor_find(job, tensor->spec.tensor);
  tensor->any_order = made && made->any_order;
}

static void begin(struct input *input) {
  static const struct zps_secret secret = {{1}};
  static struct zps_member_spec members[MODEL_RANKS];
  const unsigned bits = input_next(input);
  const struct zps_shard_config config = {
      .net = {.provider = "loop", .n_recv = 4},
      .memory_limit_bytes = bits & 4 ? 3 << 14 : 1 << 24,
      .reduce_threads = 1,
      .quota = {.memory_bytes = bits & 8 ? 3 * ZPS_LINK_BYTES + (1 << 16) : 0, .rounds = bits & 16 ? 3 : 0}};
  scene.world = 1 + (bits & 3) % MODEL_RANKS;
  scene.epoch = 1;
  one_thread_now_ns = ZPS_NS_PER_S;
  must(zps_shard_create(&config, &scene.shard, NULL) == ZPS_OK);
  for (uint32_t r = 0; r < scene.world; r++) {
    struct rank *const rank = &scene.ranks[r];
    rank_open(r);
    const struct zps_net_info *const info = zps_net_info(rank->peer.net);
    members[r] = (struct zps_member_spec){.rank = r, .addr_len = info->addr_len};
    memcpy(members[r].addr, info->addr, info->addr_len);
    const struct peer_ends ends = {
        .job = JOB, .epoch = scene.epoch, .self = r, .other = ZPS_WIRE_SRC_SERVER, .tag = 40 + r, .secret = &secret};
    peer_connect(&rank->peer, &ends, zps_shard_net_info(scene.shard), zps_shard_net_info(scene.shard));
  }
  struct zps_place_image places[SERVERS];
  struct zps_view_image view = view_of(places, scene.epoch, SERVERS, "i");
  while (view.n_places < SERVERS) places[view.n_places++] = places[0];
  const struct zps_job_spec spec = {
      .job_id = JOB, .secret = secret, .name = "j", .view = view, .world = scene.world, .members = members};
  must(zps_shard_job_open(scene.shard, &spec, NULL) == ZPS_OK);
  is_open = true;
  account = zps_job_find(scene.shard->jobs, JOB)->account;
  zps_account_add(account, 1); /* so that it is still there in the end */
  for (unsigned i = 0; i < MODEL_TENSORS; i++) open_tensor(i, input);
  look_at_map();
}

/* Whatever was said, no round waits for ever, but for sums that are kept for ranks to come. */
static void check_deadlines(void) {
  pass(1ull << 32);
  for (const struct zps_shard_round *round = scene.shard->oldest; round; round = round->younger)
    must(round->machine->state >= ZPS_SHARD_PUBLISHED);
  for (unsigned i = 0; i < 40 && scene.shard->oldest; i++) pass(ZPS_SHARD_PATIENCE_MS / 16);
  for (const struct zps_shard_round *round = scene.shard->oldest; round; round = round->younger)
    must(zps_shard_machine_only_keeps(round->machine));
}

/* However others lie. Of a rank that has not said for long that it has read sums the server thinks otherwise. */
static void check_honest(void) {
  const struct zps_job *job = zps_job_find(scene.shard->jobs, JOB);
  if (!job || one_thread_now_ns > ZPS_SHARD_PATIENCE_MS * ZPS_NS_PER_MS) return;
  for (uint32_t r = 0; r < scene.world; r++) must(!scene.ranks[r].is_honest || job->members[r].link);
}

static void check_tensor(void *ctx, const struct zps_tensor_stats *stats) {
  (void)ctx;
  must(stats->world == scene.world && stats->parts_here <= stats->n_parts && stats->rounds < 1000);
}

static void check_nothing_left(void) {
  struct zps_shard_totals totals;
  must(zps_shard_stats(scene.shard, &totals, NULL, NULL, NULL) == ZPS_OK);
  must(totals.jobs == 0 && totals.rounds_in_flight == 0 && totals.slab.in_use_bytes == 0);
  must(!scene.shard->lingering && !scene.shard->memory.first && !scene.shard->oldest && !scene.shard->ready &&
       !scene.shard->small);
  must(scene.shard->n_orphans == 0 && scene.shard->n_held == 0 && scene.shard->n_reducing == 0 &&
       scene.shard->n_picking == 0);
  must(scene.shard->wants_bytes == 0);
  must(account->bytes == 1 && account->is_closed);
}

static void finish(void) {
  struct zps_shard_totals totals;
  settle();
  check_honest();
  must(zps_shard_stats(scene.shard, &totals, check_tensor, NULL, NULL) == ZPS_OK);
  check_deadlines();
  const zps_err_t code = zps_shard_job_close(scene.shard, JOB, "the end");
  must(code == (is_open ? ZPS_OK : ZPS_ERR_UNKNOWN));
  look_at_map();
  for (unsigned i = 0; i < 4; i++) pass(20000); /* sums of aborted rounds stay for two turns of a second */
  check_nothing_left();
  zps_account_sub(account, 1);
  for (uint32_t r = 0; r < scene.world; r++)
    if (scene.ranks[r].peer.net) peer_close(&scene.ranks[r].peer);
  zps_shard_destroy(scene.shard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct input input = {.at = data, .end = data + size};
  if (size < 6) return 0;
  zps_log_set_level(ZPS_LOG_ERROR);
  begin(&input);
  for (unsigned n = 0; input.at < input.end && n < EVENTS_MAX; n++) {
    const unsigned event = input_next(&input);
    switch (event & 15) {
      case 0:
      case 1:
        rank_push(&input, ZPS_FRAME_PUSH, false);
        break;
      case 2:
        rank_push(&input, ZPS_FRAME_GIVE, false);
        break;
      case 3:
        rank_push(&input, event & 64 ? ZPS_FRAME_GIVE : ZPS_FRAME_PUSH, true);
        break;
      case 4:
        rank_pull(&input, ZPS_FRAME_PULL);
        break;
      case 5:
        rank_pull(&input, ZPS_FRAME_SEEK);
        break;
      case 6:
        rank_say(&input, ZPS_FRAME_DONE);
        break;
      case 7:
        rank_say(&input, ZPS_FRAME_ABORT);
        break;
      case 8:
        (event & 64 ? rank_say_for_another : rank_say_body)(&input);
        break;
      case 9:
        rank_say_bytes(&input);
        break;
      case 10:
        turn();
        break;
      case 11:
        pass(1ull << (event >> 4));
        break;
      case 12:
        map(&input);
        break;
      case 13:
        lose(&input);
        break;
      case 14:
        end(&input);
        break;
      default:
        settle();
    }
    if (event & 128) turn();
  }
  finish();
  return 0;
}
