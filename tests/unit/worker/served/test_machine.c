/* The balanced machine's state machine, without a network: every order of events of a small round, and every failure at
 * every point of every order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/worker/served/balanced_model.h"

static const struct kind one_by_one = {&model_plan, 1, false, false};

struct walk {
  struct zps_round_machine *machine;
  const struct kind *kind;
  struct zps_round_machine_event path[MAX_EVENTS];
  unsigned long complete, faults;
};

static void replay(const struct walk *walk, unsigned depth, struct model *model) {
  model_begin(model, walk->machine, walk->kind);
  for (unsigned i = 0; i < depth; i++) model_feed(model, walk->path[i], 1);
}

static void expect_failure(const struct model *model, zps_err_t code, uint32_t silent_server) {
  assert_int_equal(model->machine->state, ZPS_MACHINE_FAILED);
  assert_int_equal(model->machine->code, code);
  assert_int_equal(model->completes, 1);
  for (uint32_t s = 0; s < N_SERVERS; s++) {
    const bool tell = s != 2 && s != silent_server && model->retired[s] == 0;
    assert_int_equal(model->aborted[s], tell);
  }
}

/* Every failure that can strike the round at this point. */
static void strike(struct walk *walk, unsigned depth) {
  const struct {
    struct zps_round_machine_event event;
    uint64_t now;
    zps_err_t code;
    uint32_t silent;
  } faults[] = {
      {{.type = ZPS_MACHINE_FAIL, .code = ZPS_ERR_CANCELED}, 1, ZPS_ERR_CANCELED, ZPS_MACHINE_ALL},
      {{.type = ZPS_MACHINE_ABORTED, .server = 1, .code = ZPS_ERR_MISSING}, 1, ZPS_ERR_MISSING, 1},
      {{.type = ZPS_MACHINE_TICK}, DEADLINE, ZPS_ERR_TIMEOUT, ZPS_MACHINE_ALL},
      {{.type = ZPS_MACHINE_RESULT, .partition = walk->kind->plan->n_parts, .server = 0},
       1,
       ZPS_ERR_PROTOCOL,
       ZPS_MACHINE_ALL},
  };
  struct model model;
  for (unsigned i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    replay(walk, depth, &model);
    zps_round_machine_step(model.machine, &faults[i].event, faults[i].now);
    model_check_actions(&model);
    expect_failure(&model, faults[i].code, faults[i].silent);
    /* Late frames change nothing. */
    struct zps_round_machine_event events[MAX_EVENTS];
    const unsigned n = model_enabled(&model, events);
    for (unsigned e = 0; e < n; e++) {
      zps_round_machine_step(model.machine, &events[e], 2);
      assert_int_equal(model.machine->n_actions, 0);
    }
    walk->faults++;
  }
  /* A result twice, or before the partition was announced. */
  for (uint32_t p = 0; p < walk->kind->plan->n_parts; p++) {
    replay(walk, depth, &model);
    if (model.announce[p] && model.progress[p] == 1) continue;
    zps_round_machine_step(
        model.machine,
        &(struct zps_round_machine_event){.type = ZPS_MACHINE_RESULT, .partition = p, .server = model_owners[p]}, 1);
    model_check_actions(&model);
    expect_failure(&model, ZPS_ERR_PROTOCOL, ZPS_MACHINE_ALL);
    assert_int_equal(model.machine->blame, model_owners[p]);
  }
  /* A lost server matters as long as its sums are needed. */
  for (uint32_t s = 0; s < N_SERVERS; s++) {
    replay(walk, depth, &model);
    const bool needed = zps_round_machine_needs(model.machine, s);
    assert_int_equal(needed, s != 2 && model.retired[s] == 0);
    zps_round_machine_step(model.machine,
                           &(struct zps_round_machine_event){.type = ZPS_MACHINE_SERVER_LOST, .server = s}, 1);
    model_check_actions(&model);
    if (needed) {
      expect_failure(&model, ZPS_ERR_SERVER_LOST, s);
      assert_int_equal(model.machine->blame, s);
    } else {
      assert_false(zps_round_machine_over(model.machine));
    }
  }
  /* Time that passes before the deadline. */
  replay(walk, depth, &model);
  zps_round_machine_step(model.machine, &(struct zps_round_machine_event){.type = ZPS_MACHINE_TICK}, DEADLINE - 1);
  assert_int_equal(model.machine->n_actions, 0);
  assert_false(zps_round_machine_over(model.machine));
}

/* A server is lost at this point, the others forget the round; in the end all is as it should be. */
static void lose(const struct walk *walk, unsigned depth) {
  struct model model;
  for (unsigned last = 0; last < 2; last++) { /* the first event that may come next, or the last one, each time */
    struct zps_round_machine_event events[MAX_EVENTS];
    bool twice = last;
    replay(walk, depth, &model);
    model_remap(&model);
    for (unsigned n; (n = model_enabled(&model, events)) > 0;) {
      model_feed(&model, events[last ? n - 1 : 0], 1);
      if (!twice && model.progress[0] == 3) {
        model_remap(&model);
        twice = true;
      }
    }
    assert_int_equal(model.machine->state, ZPS_MACHINE_DONE);
    assert_int_equal(model.completes, 1);
    assert_int_equal(model.retired[0], 0);
    assert_int_equal(model.retired[1], 1);
    assert_int_equal(model.retired[2], walk->kind->plan->n_parts > 1);
  }
}

/* Depth first over all orders; failures strike once per set of events seen, since the machine remembers that set alone.
 * */
static void explore(struct walk *walk, unsigned depth, bool *seen, size_t n_seen) {
  struct model model;
  replay(walk, depth, &model);
  if (zps_round_machine_over(walk->machine)) {
    assert_int_equal(walk->machine->state, ZPS_MACHINE_DONE);
    assert_int_equal(model.completes, 1);
    assert_int_equal(model.writes, walk->kind->n_scans);
    for (uint32_t s = 0; s < N_SERVERS; s++) assert_int_equal(model.retired[s], s != 2);
    walk->complete++;
    return;
  }
  size_t key = model.n_scanned;
  for (unsigned p = 0; p < N_PARTS; p++) key = key * 5 + model.progress[p];
  key = key * 2 + (model.whole ? model.decode_all : model.cleared);
  assert_true(key < n_seen);
  if (!seen[key]) strike(walk, depth);
  if (!seen[key]) lose(walk, depth);
  seen[key] = true;

  replay(walk, depth, &model);
  struct zps_round_machine_event events[MAX_EVENTS];
  const unsigned n = model_enabled(&model, events);
  assert_true(n > 0); /* a round never gets stuck */
  for (unsigned i = 0; i < n; i++) {
    walk->path[depth] = events[i];
    explore(walk, depth + 1, seen, n_seen);
  }
}

static void explore_all(const struct kind *kind, unsigned long n_orders) {
  static bool seen[3 * 125 * 2];
  memset(seen, 0, sizeof seen);
  struct walk walk = {.kind = kind};
  assert_int_equal(zps_round_machine_create(&zps_served_machine, kind->plan, &walk.machine), ZPS_OK);
  explore(&walk, 0, seen, sizeof seen / sizeof seen[0]);
  zps_round_machine_destroy(walk.machine);
  assert_true(walk.faults > 0);
  assert_int_equal(walk.complete, n_orders);
}

/* Three chains of written, result, landed, decoded, and one `cleared` after the last written and before the first
 * decoded: counted here without the machine. */
static unsigned long count_orders(unsigned at[N_PARTS], bool cleared) {
  unsigned long orders = 0;
  unsigned written = 0, done = 0;
  for (unsigned p = 0; p < N_PARTS; p++) {
    written += at[p] >= 1;
    done += at[p] == 4;
    if (at[p] == 4 || (at[p] == 3 && !cleared)) continue;
    at[p]++;
    orders += count_orders(at, cleared);
    at[p]--;
  }
  if (written == N_PARTS && !cleared) orders += count_orders(at, true);
  return done == N_PARTS ? 1 : orders;
}

static void test_orders_by_partition(void **state) {
  (void)state;
  explore_all(&one_by_one, count_orders((unsigned[N_PARTS]){0}, false));
}

/* Two chains of scanned (in their order), written, result, landed, decoded; the result's memory is written when all is
 * encoded, or at once, where it is not the gradient's. `n_scans` 1: both are scanned together. */
static unsigned long count_striped(const unsigned at[2], const struct kind *kind) {
  unsigned long orders = 0;
  for (unsigned p = 0; p < 2; p++) {
    if (at[p] == 5 || (at[p] == 4 && !kind->apart && (at[0] < 2 || at[1] < 2))) continue;
    if (at[p] == 0 && p == 1 && (kind->n_scans == 1 || at[0] == 0)) continue;
    unsigned next[2] = {at[0], at[1]};
    next[p]++;
    if (at[p] == 0 && kind->n_scans == 1) next[1]++;
    orders += count_striped(next, kind);
  }
  return at[0] == 5 && at[1] == 5 ? 1 : orders;
}

static void test_orders_of_stripes(void **state) {
  (void)state;
  for (unsigned i = 0; i < 4; i++) {
    const struct kind kind = {&model_striped_plan, 1 + i % 2, false, i / 2};
    explore_all(&kind, count_striped((unsigned[2]){0}, &kind));
  }
  const struct kind whole = {&model_striped_plan, 2, true, false};
  explore_all(&whole, 35); /* 7! / (3! 4!): the first is scanned first, then the second some time */
}

static void test_orders_whole(void **state) {
  (void)state;
  const struct kind whole = {&model_plan, 1, true, false};
  explore_all(&whole, 1680); /* 9! / (3! 3! 3!) */
}

static void test_driver_bugs(void **state) {
  (void)state;
  struct zps_round_machine *machine;
  struct model model;
  assert_int_equal(zps_round_machine_create(&zps_served_machine, &model_plan, &machine), ZPS_OK);
  const struct zps_round_machine_event wrong[] = {
      {.type = ZPS_MACHINE_WRITTEN, .partition = 0}, /* before the scan */
      {.type = ZPS_MACHINE_CLEARED},                 /* before the gradient is encoded */
      {.type = ZPS_MACHINE_LANDED, .partition = 0},
      {.type = ZPS_MACHINE_DECODED, .partition = 0},
      {.type = ZPS_MACHINE_DECODED, .partition = ZPS_MACHINE_ALL},
  };
  for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    model_begin(&model, machine, &one_by_one);
    zps_round_machine_step(machine, &wrong[i], 1);
    assert_int_equal(machine->state, ZPS_MACHINE_FAILED);
    assert_int_equal(machine->code, ZPS_ERR_INTERNAL);
  }
  model_begin(&model, machine, &one_by_one);
  model_feed(&model, (struct zps_round_machine_event){.type = ZPS_MACHINE_SCANNED}, 1);
  model_feed(&model, (struct zps_round_machine_event){.type = ZPS_MACHINE_SCANNED}, 1);
  assert_int_equal(model.writes, 1);
  zps_round_machine_destroy(machine);
  zps_round_machine_destroy(NULL);
  const struct kind striped = {&model_striped_plan, 2, false, true};
  assert_int_equal(zps_round_machine_create(&zps_served_machine, &model_striped_plan, &machine), ZPS_OK);
  model_begin(&model, machine, &striped);
  model_feed(&model, (struct zps_round_machine_event){.type = ZPS_MACHINE_SCANNED}, 1);
  zps_round_machine_step(machine, &(struct zps_round_machine_event){.type = ZPS_MACHINE_WRITTEN, .partition = 1},
                         1); /* not scanned */
  assert_int_equal(machine->code, ZPS_ERR_INTERNAL);
  zps_round_machine_destroy(machine);
}

static void test_events_before_start(void **state) {
  (void)state;
  struct zps_round_machine *machine;
  assert_int_equal(zps_round_machine_create(&zps_served_machine, &model_plan, &machine), ZPS_OK);
  zps_round_machine_reset(machine, &(struct zps_round_machine_start){.deadline_ns = DEADLINE, .n_scans = 1});
  zps_round_machine_step(machine, &(struct zps_round_machine_event){.type = ZPS_MACHINE_TICK}, 2 * DEADLINE);
  assert_int_equal(machine->state, ZPS_MACHINE_IDLE);
  assert_int_equal(machine->n_actions, 0);
  zps_round_machine_destroy(machine);
}

/* ---- push and pull apart ---- */

static void feed(struct zps_round_machine *machine, enum zps_round_machine_event_type type, uint32_t partition,
                 uint32_t server) {
  zps_round_machine_step(machine,
                         &(struct zps_round_machine_event){.type = type, .partition = partition, .server = server}, 1);
}

static struct zps_round_machine *begin_apart(bool only_gives) {
  struct zps_round_machine *machine;
  assert_int_equal(zps_round_machine_create(&zps_served_machine, &model_plan, &machine), ZPS_OK);
  zps_round_machine_reset(
      machine, &(struct zps_round_machine_start){
                   .deadline_ns = DEADLINE, .n_scans = 1, .only_gives = only_gives, .only_takes = !only_gives});
  feed(machine, ZPS_MACHINE_START, 0, 0);
  feed(machine, ZPS_MACHINE_SCANNED, 0, 0);
  return machine;
}

/* Done when each server has said that it has everything: servers 0 and 1 own partitions. */
static void test_giving_only(void **state) {
  (void)state;
  struct zps_round_machine *machine = begin_apart(true);
  for (uint32_t p = 0; p < 3; p++) feed(machine, ZPS_MACHINE_WRITTEN, p, 0);
  assert_int_equal(machine->state, ZPS_MACHINE_WAITING);
  feed(machine, ZPS_MACHINE_TAKEN, 0, 1);
  assert_int_equal(machine->state, ZPS_MACHINE_WAITING);
  assert_true(zps_round_machine_needs(machine, 0) && !zps_round_machine_needs(machine, 1));
  feed(machine, ZPS_MACHINE_TAKEN, 0, 0);
  assert_int_equal(machine->state, ZPS_MACHINE_DONE);
  assert_int_equal(machine->n_actions, 1);
  assert_int_equal(machine->actions[0].type, ZPS_MACHINE_DO_COMPLETE);
  zps_round_machine_destroy(machine);
}

/* A server that says it too early, twice, or without owning anything is to blame. */
static void test_taken_of_strangers(void **state) {
  (void)state;
  for (unsigned n = 0; n < 3; n++) {
    struct zps_round_machine *machine = begin_apart(true);
    feed(machine, ZPS_MACHINE_WRITTEN, 0, 0);
    if (n > 0) feed(machine, ZPS_MACHINE_WRITTEN, 2, 0);
    if (n == 1) feed(machine, ZPS_MACHINE_TAKEN, 0, 0);
    assert_int_equal(machine->state, ZPS_MACHINE_PUSHING);
    feed(machine, ZPS_MACHINE_TAKEN, 0, n == 2 ? 2 : 0);
    assert_int_equal(machine->state, ZPS_MACHINE_FAILED);
    assert_int_equal(machine->code, ZPS_ERR_PROTOCOL);
    assert_int_equal(machine->blame, n == 2 ? 2 : 0);
    zps_round_machine_destroy(machine);
  }
}

static void test_taking_only(void **state) {
  (void)state;
  struct zps_round_machine *machine = begin_apart(false);
  assert_int_equal(machine->state, ZPS_MACHINE_WAITING);
  assert_int_equal(machine->n_actions, 1);
  assert_int_equal(machine->actions[0].type, ZPS_MACHINE_DO_CLEAR);
  feed(machine, ZPS_MACHINE_CLEARED, 0, 0);
  for (uint32_t p = 0; p < 3; p++) {
    feed(machine, ZPS_MACHINE_RESULT, p, model_owners[p]);
    assert_int_equal(machine->actions[0].type, ZPS_MACHINE_DO_READ);
    feed(machine, ZPS_MACHINE_LANDED, p, 0);
  }
  for (uint32_t p = 0; p < 3; p++) feed(machine, ZPS_MACHINE_DECODED, p, 0);
  assert_int_equal(machine->state, ZPS_MACHINE_DONE);
  zps_round_machine_destroy(machine);
  machine = begin_apart(false);
  feed(machine, ZPS_MACHINE_WRITTEN, 0, 0); /* there is nothing to write */
  assert_int_equal(machine->code, ZPS_ERR_INTERNAL);
  zps_round_machine_destroy(machine);
}

static void test_names(void **state) {
  (void)state;
  assert_string_equal(zps_round_machine_state_name(ZPS_MACHINE_PULLING), "pulling");
  assert_string_equal(zps_round_machine_state_name((enum zps_round_machine_state)99), "?");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_orders_by_partition), cmocka_unit_test(test_orders_whole),
      cmocka_unit_test(test_orders_of_stripes),   cmocka_unit_test(test_driver_bugs),
      cmocka_unit_test(test_events_before_start), cmocka_unit_test(test_names),
      cmocka_unit_test(test_giving_only),         cmocka_unit_test(test_taken_of_strangers),
      cmocka_unit_test(test_taking_only),
  };
  return cmocka_run_group_tests_name("scheme balanced", tests, NULL, NULL);
}
