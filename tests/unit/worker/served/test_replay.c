/* A server is lost: rounds under way go on with the others, and those that are over give their pushes again. Gradients
 * and results are in host memory, or in that of the emulated device: staged, or where the fabric reads and writes. */
#include "worker/round/replay.h"

#include <dlfcn.h>

#include "proto/control_change.h"
#include "tests/unit/worker/served/served_rig.h"

#include "tests/support/logs.h"
#include "tests/support/views.h"

#define LIBRARY ".libs/libzenps_emu.so"

enum { PARTS = 4, EPOCH = 2 };

static const char staged[] = "", direct[] = "dmabuf=1"; /* rules of the fault injector */
static const char *device;                              /* one of these; NULL: host memory */

static struct served_rig rig;
static uint32_t owners_before[PARTS];

/* The word to the coordinator. */
static struct {
  atomic_uint n;
  uint32_t epoch, n_steps;
  uint64_t step; /* the first one */
} said;

static void mapped(void *ctx, const struct zps_job_steps *steps) {
  (void)ctx;
  said.epoch = steps->epoch;
  said.n_steps = steps->n_tensors > 0 ? steps->tensors[0].n_steps : 0;
  said.step = said.n_steps > 0 ? steps->tensors[0].steps[0] : 0;
  atomic_fetch_add(&said.n, 1);
}

static unsigned n_held;

static void held(void *ctx, const char *why) {
  (void)ctx;
  assert_non_null(strstr(why, "its pushes take more memory than it keeps of them"));
  n_held++;
}

static struct zps_round_tensor *tensor_of(void *ctx, uint32_t tensor) {
  (void)ctx;
  return tensor == rig.tensor.id ? &rig.tensor : NULL;
}

/* The engine's thread reads all of it, and runs already. */
static void set_replay(void *limit_bytes) {
  zps_replay_init(&rig.worker.rounds, *(const uint64_t *)limit_bytes, 0);
  rig.worker.rounds.replay.mapped = mapped;
  rig.worker.rounds.replay.held = held;
  rig.worker.rounds.tensor_of = tensor_of;
}

static void set_grace(void *grace_ns) {
  rig.worker.rounds.replay.grace_ns = *(const uint64_t *)grace_ns;
}

/* Pushes lie in registered memory, of which so much may be kept. */
static void open_faulty(uint64_t limit_bytes, const char *fault) {
  char rules[64];
  snprintf(rules, sizeof rules, "%s%s%s", device == direct ? direct : "", device == direct && fault ? "," : "",
           fault ? fault : "");
  logs_allow(ZPS_LOG_WARN, "server 1 (ps-1) is lost: the coordinator says so");
  served_open(&rig, &(struct served_config){.worker.n_servers = 2,
                                            .worker.fault = rules[0] ? rules : NULL,
                                            .device = device ? LIBRARY : NULL,
                                            .rows = 30000,
                                            .n_parts = PARTS});
  if (device) assert_int_equal(rig.worker.device->path == ZPS_PATH_DMABUF, device == direct);
  served_draw(&rig, 2);
  memcpy(owners_before, rig.owners, sizeof owners_before);
  rig.tensor.owners = owners_before;
  rig.worker.keeps = true;
  memset(&said, 0, sizeof said);
  n_held = 0;
  rig_do(&rig.worker, set_replay, &limit_bytes);
}

static void open_rig(uint64_t limit_bytes) {
  open_faulty(limit_bytes, NULL);
}

static void map_run(void *ctx) {
  struct zps_place_image places[2];
  const struct zps_view_image view = view_of(places, EPOCH, 2, "ix");
  (void)ctx;
  zps_replay_view(&rig.worker.rounds, &view);
}

/* Server 1 is lost, and server 0 has heard of it. */
static void map(void) {
  for (uint32_t p = 0; p < PARTS; p++) rig.owners[p] = 0;
  rig.tensor.owners = rig.owners;
  rig.servers[0].n_came = 0;
  zps_link_set_epoch(rig.worker.servers[0].link, EPOCH);
  rig_do(&rig.worker, map_run, NULL);
}

static void expect_said(unsigned n, uint32_t n_steps, uint64_t step) {
  UNTIL(atomic_load(&said.n) == n);
  assert_int_equal(said.epoch, EPOCH);
  assert_int_equal(said.n_steps, n_steps);
  assert_int_equal(said.step, step);
}

static void look_said(void *ctx) {
  *(bool *)ctx = rig.worker.rounds.replay.is_said;
}

static bool has_said(void) {
  bool is_said = false;
  rig_do(&rig.worker, look_said, &is_said);
  return is_said;
}

static void steps_run(void *ctx) {
  zps_replay_steps(&rig.worker.rounds, ctx);
}

/* Some rank has not finished the step; 0: all have all. */
static void play_again_to(uint64_t step, uint64_t last) {
  struct zps_job_steps steps = {.job_id = RIG_JOB, .epoch = EPOCH};
  for (; step > 0 && step <= last; step++) assert_int_equal(zps_job_steps_add(&steps, 5, step), ZPS_OK);
  rig_do(&rig.worker, steps_run, &steps);
  zps_job_steps_fini(&steps);
}

static void play_again(uint64_t step) {
  play_again_to(step, step);
}

static int begin_test(void **state) {
  device = *state;
  *state = NULL;
  logs_start();
  return 0;
}

static int end_test(void **state) {
  (void)state;
  served_close(&rig);
  logs_finish();
  return 0;
}

static void begin_pushed(uint64_t step) {
  served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, step);
}

/* Step 1 is over here, and its push kept if there is room. */
static void end_step(void) {
  begin_pushed(1);
  for (uint32_t s = 0; s < 2; s++) served_answer(&rig, s, 1);
  rig_expect_ok(&rig.request);
  for (uint32_t s = 0; s < 2; s++) fake_expect(&rig.worker.servers[s], ZPS_FRAME_DONE, 5, 1);
}

/* Server 0 gets all partitions of the step as a gift, with the rows of the gradient; then it says that it has them, and
 * hears that nothing more is wanted. */
static void expect_given(uint64_t step) {
  struct fake *server = &rig.worker.servers[0];
  struct zps_frame taken = {.header.type = ZPS_FRAME_TAKEN, .u.done = {.tensor = 5, .step = step}};
  UNTIL(rig.servers[0].step == step && rig.servers[0].n_came == PARTS);
  for (uint64_t i = 0; i < rig.tensor.part.rows * SERVED_WIDTH; i++) assert_true(rig.sum[i] == rig.in[i]);
  assert_false(fake_has(server, ZPS_FRAME_DONE, 5, step));
  fake_send(server, &taken);
  fake_expect(server, ZPS_FRAME_DONE, 5, step);
}

/* ------------------------------------------------------------ under way */

/* One server's sums are here, another's are not. */
static void lost_under_way(void **state) {
  (void)state;
  for (uint32_t answered = 0; answered < 3; answered++) { /* 2: no server's */
    if (answered > 0) served_close(&rig);
    open_rig(1 << 20);
    begin_pushed(1);
    if (answered < 2) served_answer(&rig, answered, 1);
    map();
    expect_said(1, 1, 1);
    assert_int_equal(rig.servers[0].n_came, 0); /* nothing is sent before all ranks know */
    play_again(1);
    served_take(&rig, 0, 1);
    assert_false(atomic_load(&rig.request.over));
    served_answer(&rig, 0, 1);
    rig_expect_ok(&rig.request);
    served_check(&rig);
    fake_expect(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 1);
  }
}

/* Server 1 stops when it has announced its sums, and they are being read. The round goes on with other buffers, and is
 * right, whatever is written to the old ones: when the reads end, or when the job does. */
static void stopped_while_it_is_read(void **state) {
  (void)state;
  static const char *const ends[] = {"stall=2", "stall=2,hold=3600s"};
  for (unsigned i = 0; i < 2; i++) {
    if (i > 0) served_close(&rig);
    open_faulty(1 << 20, ends[i]);
    begin_pushed(1);
    for (uint32_t s = 0; s < 2; s++) served_answer(&rig, s, 1);
    fake_expect(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 1);
    UNTIL(rig_reads(&rig.worker, &rig.request) == PARTS / 2);
    map();
    expect_said(1, 1, 1);
    assert_int_equal(rig_reads(&rig.worker, &rig.request), 0);
    play_again(1);
    served_take(&rig, 0, 1);
    served_answer(&rig, 0, 1);
    rig_expect_ok(&rig.request);
    served_check(&rig);
    fake_expect(&rig.worker.servers[0], ZPS_FRAME_DONE, 5, 1);
    UNTIL(atomic_load(&rig.request.kept));
    assert_int_equal(rig_held(&rig.worker), 0);
    if (i == 0)
      UNTIL(rig_left(&rig.worker) == 0);
    else
      assert_true(rig_left(&rig.worker) >= PARTS / 2 * (4 << 10));
  }
}

/* The coordinator asks again, since the answer was lost with its connection. */
static void asked_twice(void **state) {
  (void)state;
  open_rig(1 << 20);
  begin_pushed(1);
  map();
  expect_said(1, 1, 1);
  rig_do(&rig.worker, map_run, NULL);
  expect_said(2, 1, 1);
  play_again(1);
  served_take(&rig, 0, 1);
  play_again(1); /* it was told already */
  rig_do(&rig.worker, map_run, NULL);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
  assert_int_equal(atomic_load(&said.n), 2);
}

/* The rank is leaving: nobody is there any more who could be told. */
static void lost_at_the_end(void **state) {
  (void)state;
  open_rig(1 << 20);
  begin_pushed(1);
  zps_replay_end(&rig.worker.rounds);
  map();
  UNTIL(has_said());
  assert_int_equal(atomic_load(&said.n), 0);
  play_again(1);
  served_take(&rig, 0, 1);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
}

/* ------------------------------------------------------------ another takes its place */

static struct fake *const newcomer = &rig.worker.servers[2];

static void replace_run(void *ctx) {
  struct zps_place_image places[2];
  const struct zps_view_image view = view_of(places, EPOCH, 2, "ii");
  const struct zps_net_info *const info = zps_net_info(newcomer->net);
  (void)ctx;
  places[1].since = EPOCH;
  strcpy(places[1].server.name, "ps-9");
  memcpy(places[1].server.addr, info->addr, info->addr_len);
  places[1].server.addr_len = info->addr_len;
  zps_replay_view(&rig.worker.rounds, &view);
}

/* Another server is in server 1's place, whose partitions it has; the first one lives, and does not know. */
static void replace(void) {
  fake_open(newcomer);
  newcomer->since = EPOCH;
  fake_connect(newcomer, rig_info(&rig.worker), RIG_JOB, 1 | ZPS_WIRE_SRC_SERVER, rig.worker.rank);
  newcomer->ctx = rig.at[1]->ctx;
  newcomer->on_frame = rig.at[1]->on_frame;
  rig.at[1] = newcomer;
  rig.servers[0].n_came = rig.servers[1].n_came = 0;
  rig.tensor.owners = rig.owners; /* unchanged, in a table of their own */
  zps_link_set_epoch(rig.at[0]->link, EPOCH);
  zps_link_set_epoch(newcomer->link, EPOCH);
  rig_do(&rig.worker, replace_run, NULL);
}

/* What the one that was replaced says is nobody's, whether the worker had heard of it or not; and it costs the one that
 * is there nothing. */
static void replaced(void **state) {
  (void)state;
  struct rig_request next = {0};
  for (unsigned had_spoken = 0; had_spoken < 2; had_spoken++) {
    open_rig(1 << 20);
    logs_allow(ZPS_LOG_WARN, "server 1 (ps-1) is lost: another server is in its place");
    logs_allow(ZPS_LOG_WARN, "no server or rank of ours");
    next = (struct rig_request){0};
    if (had_spoken) end_step();
    served_begin(&rig, &next, 2, RIG_TIMEOUT_MS);
    for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, 2);
    replace();
    fake_abort(&rig.worker.servers[1], 5, 2, ZPS_ERR_INTERNAL, "of another time");
    expect_said(1, 1, 2);
    play_again(2);
    for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, 2);
    fake_abort(&rig.worker.servers[1], 5, 2, ZPS_ERR_INTERNAL, "of another time");
    fakes_turn();
    assert_false(atomic_load(&next.over));
    for (uint32_t s = 0; s < 2; s++) served_answer(&rig, s, 2);
    rig_expect_ok(&next);
    served_check(&rig);
    fake_expect(newcomer, ZPS_FRAME_DONE, 5, 2);
    rig_do(&rig.worker, replace_run, NULL); /* again: it has been */
    served_close(&rig);                     /* before `next` goes */
  }
}

/* ------------------------------------------------------------ over */

static void given_again(void **state) {
  (void)state;
  open_rig(1 << 20);
  end_step();
  UNTIL(atomic_load(&rig.request.kept));
  map();
  expect_said(1, 0, 0);
  rig.servers[0].takes_gifts = true;
  play_again(1);
  expect_given(1);
  assert_false(atomic_load(&rig.request.released)); /* another server may be lost */
  assert_int_equal(n_held, 0);
}

/* The oldest comes first to the server that has them all now. One that is over here is as old as its step. */
static void lost_under_several(void **state) {
  (void)state;
  static float results[2][30000 * SERVED_WIDTH];
  struct rig_request next[2] = {0};
  open_rig(1 << 20);
  end_step();
  UNTIL(atomic_load(&rig.request.kept));
  for (unsigned i = 0; i < 2; i++) {
    next[i].out.values = results[i];
    served_begin(&rig, &next[i], 2 + i, RIG_TIMEOUT_MS);
    for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, 2 + i);
  }
  map();
  expect_said(1, 2, 2);
  rig.servers[0].step = rig.servers[0].n_back = 0;
  rig.servers[0].takes_gifts = rig.servers[0].answers = true;
  play_again_to(1, 3);
  for (unsigned i = 0; i < 2; i++) rig_expect_ok(&next[i]);
  assert_int_equal(rig.servers[0].n_back, 0);
  served_close(&rig); /* before `next` goes */
}

/* All ranks have the sum, so nothing is given. */
static void nobody_lacks_it(void **state) {
  (void)state;
  struct rig_request next = {0};
  open_rig(1 << 20);
  end_step();
  UNTIL(atomic_load(&rig.request.kept));
  map();
  expect_said(1, 0, 0);
  play_again(0);
  served_begin(&rig, &next, 2, RIG_TIMEOUT_MS);
  served_take(&rig, 0, 2);
  assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_GIVE, 5, 1));
  served_answer(&rig, 0, 2);
  rig_expect_ok(&next);
  served_check(&rig);
  UNTIL(atomic_load(&next.kept));
  served_close(&rig); /* before `next` goes */
}

/* Its push was too large to be kept: the ranks that lack the sum need not wait for it. */
static void let_go(void **state) {
  (void)state;
  open_rig(1000);
  end_step();
  rig_expect_released(&rig.request);
  map();
  expect_said(1, 0, 0);
  play_again(1);
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_SERVER_LOST,
                    "keeps its push of this step no longer, which it had finished");
  assert_int_equal(n_held, 1); /* so a server that drains would be missed */
}

static void look_waits(void *ctx) {
  *(bool *)ctx = rig.worker.rounds.replay.lost_ns > 0;
}

static bool waits_for_a_map(void) {
  bool waits = false;
  rig_do(&rig.worker, look_waits, &waits);
  return waits;
}

static void lose_server_0(void *ctx) {
  (void)ctx;
  zps_plane_lose(&rig.worker.rounds.plane->servers[0], "a test");
}

/* Rounds that need a server which the fabric has lost are given up when no map comes in time: a map that has it off
 * ends that time, also where the fabric had not noticed, and one that does not leaves it running. */
static void a_map_comes_in_time(void **state) {
  (void)state;
  uint64_t grace_ns = 3600 * ZPS_NS_PER_S;
  for (unsigned other_is_lost = 0; other_is_lost < 2; other_is_lost++) {
    if (other_is_lost) served_close(&rig);
    open_rig(1 << 20);
    rig_do(&rig.worker, set_grace, &grace_ns);
    logs_allow(ZPS_LOG_WARN, "is lost: a test");
    assert_false(waits_for_a_map());
    if (other_is_lost) rig_do(&rig.worker, lose_server_0, NULL);
    assert_int_equal(waits_for_a_map(), other_is_lost);
    rig_do(&rig.worker, map_run, NULL);
    assert_int_equal(waits_for_a_map(), other_is_lost);
  }
}

static void begin_and_give_up(uint64_t step) {
  served_begin(&rig, &rig.request, step, RIG_TIMEOUT_MS);
  rig_cancel(&rig.request);
  rig_expect_error(&rig.request, ZPS_ERR_CANCELED, "rank 0 canceled it");
  for (uint32_t s = 0; s < 2; s++) fake_expect_abort(&rig.worker.servers[s], 5, step, ZPS_ERR_CANCELED, "rank 0");
  for (uint32_t s = 0; s < 2; s++) fake_abort(&rig.worker.servers[s], 5, step, ZPS_ERR_CANCELED, "so be it");
  rig_expect_released(&rig.request);
}

/* The server that was lost may be the only one that had heard of it; and those that are left have forgotten it, though
 * other ranks have not begun the step. */
static void given_up(void **state) {
  (void)state;
  for (uint64_t listed = 1; listed < 3; listed++) {
    if (listed > 1) served_close(&rig);
    open_rig(1 << 20);
    begin_and_give_up(1);
    map();
    expect_said(1, 0, 0);
    play_again(listed);
    const uint32_t blamed =
        fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_CANCELED,
                          "on rank 0 this step had failed before the job's servers changed: rank 0 canceled it");
    assert_int_equal(blamed, 1u << 0);
    assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, 2)); /* this rank knows nothing of it yet */
  }
}

/* Nor has any server said that it knows, so the round is still there. */
static void given_up_just_now(void **state) {
  (void)state;
  open_rig(1 << 20);
  begin_pushed(1);
  rig_cancel(&rig.request);
  for (uint32_t s = 0; s < 2; s++) fake_expect_abort(&rig.worker.servers[s], 5, 1, ZPS_ERR_CANCELED, "rank 0");
  map();
  expect_said(1, 0, 0);
  play_again(2);
  fake_expect_abort(&rig.worker.servers[0], 5, 1, ZPS_ERR_CANCELED, "rank 0 canceled it");
}

/* All ranks have begun a step since. */
static void given_up_long_ago(void **state) {
  (void)state;
  struct rig_request next = {0};
  static float result[30000 * SERVED_WIDTH];
  open_rig(1 << 20);
  begin_and_give_up(1);
  next.out.values = result;
  rig.worker.seen_to = rig.worker.n_begun + 1;
  served_begin(&rig, &next, 2, RIG_TIMEOUT_MS);
  for (uint32_t s = 0; s < 2; s++) served_take(&rig, s, 2);
  for (uint32_t s = 0; s < 2; s++) served_answer(&rig, s, 2);
  rig_expect_ok(&next);
  for (uint32_t s = 0; s < 2; s++) fake_expect(&rig.worker.servers[s], ZPS_FRAME_DONE, 5, 2);
  UNTIL(atomic_load(&next.kept));
  map();
  expect_said(1, 0, 0);
  rig.servers[0].takes_gifts = true;
  play_again(2);
  expect_given(2);
  assert_false(fake_has(&rig.worker.servers[0], ZPS_FRAME_ABORT, 5, 1));
  served_close(&rig); /* before `next` goes */
}

static void look_landed(void *ctx) {
  const struct zps_round *round = rig.request.round;
  const struct zps_served_part *parts = ((const struct zps_served_round *)round)->parts;
  bool *has_landed = ctx;
  *has_landed = round->n_reads == 0;
  for (uint32_t p = 0; p < PARTS; p++) *has_landed &= parts[p].told;
}

/* All sums are here, and wait for a thread. */
static bool has_landed(void) {
  bool landed = false;
  rig_do(&rig.worker, look_landed, &landed);
  return landed;
}

/* The round ends while nothing may be sent. It is said to be under way, and so it is played again. */
static void ends_meanwhile(void **state) {
  (void)state;
  struct rig_block blocks[2];
  open_rig(1 << 20);
  begin_pushed(1);
  for (unsigned i = 0; i < 2; i++) rig_block(&blocks[i], rig.worker.plane.pool);
  for (uint32_t s = 0; s < 2; s++) served_answer(&rig, s, 1);
  UNTIL(has_landed());
  for (uint32_t s = 0; s < 2; s++) fake_expect(&rig.worker.servers[s], ZPS_FRAME_DONE, 5, 1);
  map();
  expect_said(1, 1, 1);
  for (unsigned i = 0; i < 2; i++) rig_unblock(&blocks[i]);
  rig_expect_ok(&rig.request);
  served_check(&rig);
  rig.servers[0].takes_gifts = true;
  play_again(1);
  expect_given(1);
}

#ifdef ZPS_HAVE_EMU
/* ------------------------------------------------------------ on a device */

struct look_uploads {
  const struct rig_request *request;
  unsigned n;
};

static void look_uploads(void *ctx) {
  struct look_uploads *look = ctx;
  look->n = zps_served_of(look->request->round)->n_uploads;
}

static unsigned n_uploads(const struct rig_request *request) {
  struct look_uploads look = {.request = request};
  rig_do(&rig.worker, look_uploads, &look);
  return look.n;
}

/* Another round is said to hold so much that one partition of the next round gets memory, or nothing any more. */
static void hold_memory(void *ctx) {
  struct zps_plane_memory *memory = &rig.worker.plane.memory;
  const bool *hold = ctx;
  const uint64_t bytes = memory->limit_bytes / 2 - (60u << 10);
  memory->used.push += *hold ? bytes : -bytes;
  memory->is_due = true;
}

/* A sum is on its way to the device while other partitions are still to be pushed. The map is not confirmed before it
 * is there. */
static void uploads_meanwhile(void **state) {
  (void)state;
  struct rig_block block;
  open_rig(1 << 20);
  rig_do(&rig.worker, hold_memory, &(bool){true});
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  UNTIL(rig.servers[0].step == 1);
  assert_int_equal(rig_state(&rig.worker, &rig.request), ZPS_MACHINE_PUSHING);
  rig_block(&block, rig.worker.device->out_pool);
  served_answer_part(&rig, 0, 1, 0);
  UNTIL(n_uploads(&rig.request) == 1);
  map();
  fakes_turn();
  assert_false(has_said());
  rig_unblock(&block);
  expect_said(1, 1, 1);
  rig_do(&rig.worker, hold_memory, &(bool){false});
  play_again(1);
  served_take(&rig, 0, 1);
  served_answer(&rig, 0, 1);
  rig_expect_ok(&rig.request);
  served_check(&rig);
}

/* A function of tests/gpu/emu/control.h. */
static void *emulation(const char *name) {
  void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  assert_non_null(library);
  void *const symbol = dlsym(library, name);
  assert_non_null(symbol);
  dlclose(library);
  return symbol;
}

/* Memory of the device, and pinned one. */
static uint64_t allocations(void) {
  return ((uint64_t(*)(void))(uintptr_t)emulation("zps_emu_allocations"))();
}

static void fail_allocation(uint64_t n) {
  ((void (*)(uint64_t))(uintptr_t)emulation("zps_emu_fail_allocation"))(n);
}

/* The device has no memory for another push beside the one that is kept, which is let go. */
static void no_room_on_the_device(void **state) {
  (void)state;
  enum { OF_THE_CALLER = 2 };
  struct rig_request next = {0};
  open_rig(1 << 20);
  end_step();
  UNTIL(atomic_load(&rig.request.kept));
  fail_allocation(OF_THE_CALLER);
  rig.servers[0].answers = rig.servers[1].answers = true;
  served_begin(&rig, &next, 2, RIG_TIMEOUT_MS);
  UNTIL(atomic_load(&next.over));
  fail_allocation(UINT64_MAX);
  rig_expect_ok(&next);
  served_check(&rig);
  rig_expect_released(&rig.request);
  assert_int_equal(n_held, 1);
  UNTIL(atomic_load(&next.kept));
  served_close(&rig); /* before `next` goes */
}

/* Rounds that are kept cost their push: none of the device's memory where it was staged, else what it lies in. */
static void kept_rounds_cost_their_push(void **state) {
  (void)state;
  enum { MORE = 3 };
  struct rig_request more[MORE] = {0};
  open_rig(8 << 20);
  rig.servers[0].answers = rig.servers[1].answers = true;
  served_begin(&rig, &rig.request, 1, RIG_TIMEOUT_MS);
  rig_expect_ok(&rig.request);
  UNTIL(atomic_load(&rig.request.kept));
  const uint64_t first = allocations() - rig.n_on_device;
  for (unsigned i = 0; i < MORE; i++) {
    const uint64_t before = atomic_load(&rig.worker.rounds.replay.kept_bytes);
    served_begin(&rig, &more[i], 2 + i, RIG_TIMEOUT_MS);
    rig_expect_ok(&more[i]);
    served_check(&rig);
    UNTIL(atomic_load(&more[i].kept));
    assert_true(atomic_load(&rig.worker.rounds.replay.kept_bytes) > before + 100000);
  }
  assert_int_equal(allocations() - rig.n_on_device, first + (device == direct ? MORE : 0));
  assert_false(atomic_load(&rig.request.released));
  map();
  expect_said(1, 0, 0);
  rig.servers[0].answers = false;
  rig.servers[0].takes_gifts = true;
  play_again(1);
  expect_given(1);
  served_close(&rig); /* before `more` go */
}
#endif

#define ON(memory, test)                                                                                \
  {                                                                                                     \
    .name = #test ", " #memory, .test_func = test, .setup_func = begin_test, .teardown_func = end_test, \
    .initial_state = (void *)(uintptr_t)(memory)                                                        \
  }
#define HOST(test) cmocka_unit_test_setup_teardown(test, begin_test, end_test)
#ifdef ZPS_HAVE_EMU
#define EVERYWHERE(test) HOST(test), ON(staged, test), ON(direct, test)
#define NOT_DIRECT(test) HOST(test), ON(staged, test)
#define ON_DEVICE(test) ON(staged, test), ON(direct, test)
#else
#define EVERYWHERE HOST
#define NOT_DIRECT HOST
#endif

int main(void) {
  const struct CMUnitTest tests[] = {
      EVERYWHERE(lost_under_way),
      NOT_DIRECT(stopped_while_it_is_read),
      EVERYWHERE(asked_twice),
      EVERYWHERE(replaced),
      EVERYWHERE(lost_at_the_end),
      EVERYWHERE(given_again),
      EVERYWHERE(lost_under_several),
      EVERYWHERE(nobody_lacks_it),
      EVERYWHERE(let_go),
      EVERYWHERE(a_map_comes_in_time),
      EVERYWHERE(given_up),
      EVERYWHERE(given_up_just_now),
      EVERYWHERE(given_up_long_ago),
      HOST(ends_meanwhile),
#ifdef ZPS_HAVE_EMU
      ON(staged, uploads_meanwhile),
      ON_DEVICE(kept_rounds_cost_their_push),
      ON(direct, no_room_on_the_device),
#endif
  };
  return cmocka_run_group_tests_name("served replay", tests, NULL, NULL);
}
