/* The server's round machine, driven by a model of ranks, fabric and pool: every order of events for small rounds,
 * random orders for larger ones, with and without trouble. tests/unit/server/shard/test_machine.c tests the words of
 * its aborts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "server/shard/machine.h"

enum { RANKS = 5, PARTS = 5, DEPTH = 80, DEADLINE = 1000 };

/* Where the next choice comes from: a generator, or an odometer that runs through all of them. */
struct chooser {
  struct zps_rng *rng;
  unsigned depth, used[DEPTH], limit[DEPTH];
};

static unsigned choose(struct chooser *chooser, unsigned n) {
  if (chooser->rng) return (unsigned)zps_rng_below(chooser->rng, n);
  assert_true(chooser->depth < DEPTH);
  chooser->limit[chooser->depth] = n;
  return chooser->used[chooser->depth++];
}

/* On to the next sequence of choices; false after the last. */
static bool choose_next(struct chooser *chooser) {
  while (chooser->depth > 0) {
    const unsigned last = --chooser->depth;
    if (++chooser->used[last] < chooser->limit[last]) {
      chooser->depth = 0;
      return true;
    }
    chooser->used[last] = 0;
  }
  return false;
}

enum progress { NONE, READING, HERE };

struct model {
  struct zps_shard_machine *machine;
  uint32_t world, n_parts;
  unsigned trouble; /* events of trouble still to come */
  unsigned apart;   /* bit by rank: it gives apart, and says DONE at any time after it began to, as it will not pull */
  unsigned remote;  /* bit (part * world + rank): the contribution has to be read; of rank 0: the sum has, too */
  enum progress slots[PARTS][RANKS];
  bool reducing[PARTS], published[PARTS], done[RANKS], gone[RANKS];
  bool retired, aborted;
  zps_err_t expected; /* of the abort that must come now */
  zps_err_t code;
};

static const uint32_t partitions[PARTS] = {3, 8, 13, 18, 23};

static bool all_published(const struct model *model) {
  for (uint32_t part = 0; part < model->n_parts; part++)
    if (!model->published[part]) return false;
  return true;
}

static bool sum_is_here(const struct model *model, uint32_t part) {
  return !(model->remote >> (part * model->world) & 1);
}

/* No rank has anything to read, so no rank says DONE. */
static bool all_sums_here(const struct model *model) {
  for (uint32_t part = 0; part < model->n_parts; part++)
    if (!sum_is_here(model, part)) return false;
  return true;
}

static bool all_here(const struct model *model, uint32_t rank) {
  for (uint32_t part = 0; part < model->n_parts; part++)
    if (model->slots[part][rank] != HERE) return false;
  return true;
}

static bool gives_apart(const struct model *model, uint32_t rank) {
  return model->apart >> rank & 1;
}

static bool has_begun(const struct model *model, uint32_t rank) {
  for (uint32_t part = 0; part < model->n_parts; part++)
    if (model->slots[part][rank] != NONE) return true;
  return false;
}

/* Some rank has sums to read, or may yet pull. */
static bool is_awaited(const struct model *model) {
  for (uint32_t rank = 0; rank < model->world; rank++)
    if (gives_apart(model, rank) && !model->done[rank] && !model->gone[rank]) return true;
  return false;
}

static void act(struct model *model, const struct zps_shard_machine_action *action,
                const struct zps_frame_abort *abort) {
  assert_false(model->retired || model->aborted);
  switch (action->type) {
    case ZPS_SHARD_TAKEN:
      assert_true(gives_apart(model, action->rank) && all_here(model, action->rank));
      break;
    case ZPS_SHARD_READ:
      assert_int_equal(model->slots[action->part][action->rank], NONE);
      model->slots[action->part][action->rank] = READING;
      break;
    case ZPS_SHARD_REDUCE:
      assert_false(model->reducing[action->part] || model->published[action->part]);
      for (uint32_t rank = 0; rank < model->world; rank++) assert_int_equal(model->slots[action->part][rank], HERE);
      model->reducing[action->part] = true;
      break;
    case ZPS_SHARD_PUBLISH:
      assert_true(model->reducing[action->part]);
      assert_false(model->published[action->part]);
      model->published[action->part] = true;
      break;
    case ZPS_SHARD_RETIRE:
      assert_true(all_published(model));
      for (uint32_t rank = 0; rank < model->world; rank++)
        assert_true(model->done[rank] || model->gone[rank] || (all_sums_here(model) && !gives_apart(model, rank)));
      model->retired = true;
      break;
    case ZPS_SHARD_DROP:
    case ZPS_SHARD_CLOSE:
    case ZPS_SHARD_REFUSE:
      fail(); /* without a quorum */
      break;
    case ZPS_SHARD_ABORT:
      model->aborted = true;
      model->code = abort->code;
      assert_true(abort->step == 7);
      assert_non_null(strstr(abort->text, "job j, tensor t, step 7: "));
      assert_true(strlen(abort->text) > strlen("job j, tensor t, step 7: "));
      break;
  }
}

static void step(struct model *model, const struct zps_shard_machine_event *event) {
  struct zps_shard_machine_actions actions;
  zps_shard_machine_step(model->machine, event, &actions);
  assert_true(actions.n <= ZPS_SHARD_ACTIONS_MAX);
  for (unsigned i = 0; i < actions.n; i++) act(model, &actions.list[i], &actions.abort);
  if (model->n_parts > 0 && all_published(model) && all_sums_here(model) && !is_awaited(model))
    assert_true(model->retired);
  assert_int_equal(model->retired, model->machine->state == ZPS_SHARD_RETIRED);
  assert_int_equal(model->aborted, model->machine->state == ZPS_SHARD_ABORTED);
  if (model->expected != ZPS_OK) {
    assert_true(model->aborted);
    assert_int_equal(model->code, model->expected);
  }
}

static void do_event(struct model *model, const struct zps_shard_machine_event *event) {
  if (event->type == ZPS_SHARD_LANDED || (event->type == ZPS_SHARD_ANNOUNCED && event->is_here))
    model->slots[event->part][event->rank] = HERE;
  if (event->type == ZPS_SHARD_DONE) model->done[event->rank] = true;
  if (event->type == ZPS_SHARD_GONE) {
    model->gone[event->rank] = true;
    if (!all_here(model, event->rank)) model->expected = event->code;
  }
  if (event->type == ZPS_SHARD_CANCEL) {
    if (all_published(model))
      model->done[event->rank] = true;
    else
      model->expected = event->code;
  }
  step(model, event);
  if (event->type == ZPS_SHARD_ANNOUNCED && !event->is_here)
    assert_int_equal(model->slots[event->part][event->rank], READING);
}

static zps_err_t expected_at_deadline(const struct model *model) {
  bool any = false, missing = false;
  for (uint32_t part = 0; part < model->n_parts; part++)
    for (uint32_t rank = 0; rank < model->world; rank++) {
      any |= model->slots[part][rank] != NONE;
      missing |= model->slots[part][rank] == NONE;
    }
  if (!any || all_published(model)) return ZPS_OK;
  return missing ? ZPS_ERR_MISSING : ZPS_ERR_TIMEOUT;
}

/* One event of trouble. */
static void make_trouble(struct model *model, struct chooser *chooser) {
  const uint32_t rank = choose(chooser, model->world);
  struct zps_shard_machine_event event = {
      .rank = rank, .code = ZPS_ERR_PEER_LOST, .text = "why", .deadline_ns = DEADLINE};
  model->trouble--;
  switch (choose(chooser, 6)) {
    case 0:
      event.type = ZPS_SHARD_GONE;
      if (!model->gone[rank]) do_event(model, &event);
      break;
    case 1:
      event.type = ZPS_SHARD_CANCEL;
      event.code = ZPS_ERR_CANCELED;
      if (!model->gone[rank] && !model->done[rank]) do_event(model, &event);
      break;
    case 2:
      event.type = ZPS_SHARD_FAIL;
      event.rank = choose(chooser, 2) ? rank : ZPS_SHARD_NO_RANK;
      event.code = model->expected = ZPS_ERR_NOMEM;
      do_event(model, &event);
      break;
    case 3:
      event.type = ZPS_SHARD_TICK;
      event.now_ns = DEADLINE + RANKS;
      model->expected = expected_at_deadline(model);
      do_event(model, &event);
      break;
    case 4: /* a second push */
      if (model->n_parts == 0 || model->gone[rank] || model->slots[0][rank] == NONE) break;
      event.type = ZPS_SHARD_ANNOUNCED;
      event.is_apart = gives_apart(model, rank);
      model->expected = ZPS_ERR_PROTOCOL;
      step(model, &event);
      break;
    case 5: /* done before there was anything to read */
      if (all_published(model) || model->gone[rank] || (gives_apart(model, rank) && has_begun(model, rank))) break;
      event.type = ZPS_SHARD_DONE;
      model->expected = ZPS_ERR_PROTOCOL;
      step(model, &event);
      break;
  }
}

/* Everything that may happen next, in a fixed order; runs the one chosen. False: nothing is left to happen. */
static bool advance(struct model *model, struct chooser *chooser) {
  struct zps_shard_machine_event options[RANKS * PARTS + PARTS + RANKS];
  unsigned n = 0;
  for (uint32_t part = 0; part < model->n_parts; part++) {
    if (model->reducing[part] && !model->published[part])
      options[n++] = (struct zps_shard_machine_event){
          .type = ZPS_SHARD_REDUCED, .part = part, .is_here = sum_is_here(model, part)};
    for (uint32_t rank = 0; rank < model->world; rank++) {
      const bool is_here = !(model->remote >> (part * model->world + rank) & 1);
      if (model->gone[rank] || model->slots[part][rank] == HERE) continue;
      options[n++] = (struct zps_shard_machine_event){
          .type = model->slots[part][rank] == READING ? ZPS_SHARD_LANDED : ZPS_SHARD_ANNOUNCED,
          .rank = rank,
          .part = part,
          .is_here = is_here,
          .is_apart = gives_apart(model, rank),
          .deadline_ns = DEADLINE + rank};
    }
  }
  for (uint32_t rank = 0; rank < model->world; rank++)
    if ((all_published(model) || (gives_apart(model, rank) && has_begun(model, rank))) && !model->done[rank] &&
        !model->gone[rank])
      options[n++] = (struct zps_shard_machine_event){.type = ZPS_SHARD_DONE, .rank = rank};
  if (n == 0) return false;
  const unsigned chosen = choose(chooser, n + (model->trouble > 0));
  if (chosen == n)
    make_trouble(model, chooser);
  else
    do_event(model, &options[chosen]);
  return true;
}

/* After the end nothing happens any more. */
static void check_quiet(struct model *model) {
  for (int type = ZPS_SHARD_ANNOUNCED; type <= (model->n_parts ? (int)ZPS_SHARD_TICK : -1); type++) {
    const struct zps_shard_machine_event event = {.type = (enum zps_shard_machine_event_type)type,
                                                  .code = ZPS_ERR_CANCELED,
                                                  .text = "late",
                                                  .now_ns = UINT64_MAX};
    struct zps_shard_machine_actions actions;
    zps_shard_machine_step(model->machine, &event, &actions);
    assert_int_equal(actions.n, 0);
  }
}

static void play(struct zps_shard_machine *machine, unsigned remote, unsigned apart, unsigned trouble,
                 struct chooser *chooser) {
  struct model model = {.machine = machine,
                        .world = machine->world,
                        .n_parts = machine->n_parts,
                        .remote = remote,
                        .apart = apart,
                        .trouble = trouble};
  zps_shard_machine_start(
      machine, &(struct zps_shard_machine_config){.job = "j", .tensor = "t", .step = 7, .partitions = partitions});
  while (!model.retired && !model.aborted) assert_true(advance(&model, chooser));
  if (trouble == 0) assert_true(model.retired);
  check_quiet(&model);
}

static unsigned play_all(uint32_t world, uint32_t n_parts, unsigned apart, unsigned trouble) {
  struct zps_shard_machine *machine;
  unsigned n = 0;
  assert_int_equal(zps_shard_machine_create(world, n_parts, &machine), ZPS_OK);
  for (unsigned remote = 0; remote < 1u << (world * n_parts); remote++) {
    struct chooser chooser = {0};
    do {
      play(machine, remote, apart, trouble, &chooser);
      n++;
    } while (choose_next(&chooser));
  }
  zps_shard_machine_destroy(machine);
  return n;
}

static void test_every_order(void **state) {
  (void)state;
  assert_int_equal(play_all(1, 0, 0, 0), 1);
  assert_int_equal(play_all(1, 1, 0, 0), 2);
  assert_int_equal(play_all(3, 0, 0, 0), 3); /* nothing to read: the first that says something ends it */
  assert_true(play_all(2, 1, 0, 0) > 10);
  assert_true(play_all(1, 2, 0, 0) > 10);
  assert_true(play_all(3, 1, 0, 0) > 1000);
  assert_true(play_all(2, 2, 0, 0) > 10000);
}

static void test_every_order_with_trouble(void **state) {
  (void)state;
  assert_true(play_all(1, 1, 0, 2) > 100);
  assert_true(play_all(2, 0, 0, 2) > 100);
  assert_true(play_all(2, 1, 0, 2) > 1000);
  assert_true(play_all(1, 2, 0, 1) > 100);
  assert_true(play_all(3, 1, 0, 1) > 10000);
}

/* Ranks that give apart and will not pull. */
static void test_every_order_of_gifts(void **state) {
  (void)state;
  for (unsigned apart = 1; apart < 4; apart++) {
    assert_true(play_all(2, 1, apart, 0) > 10);
    assert_true(play_all(2, 1, apart, 2) > 1000);
    assert_true(play_all(2, 2, apart, 0) > 10000);
  }
  for (unsigned apart = 1; apart < 8; apart++) assert_true(play_all(3, 1, apart, 0) > 1000);
}

static void test_random_orders(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 42};
  struct chooser chooser = {.rng = &rng};
  for (uint32_t world = 1; world <= RANKS; world++) {
    for (uint32_t n_parts = 0; n_parts <= PARTS; n_parts++) {
      struct zps_shard_machine *machine;
      assert_int_equal(zps_shard_machine_create(world, n_parts, &machine), ZPS_OK);
      for (unsigned trial = 0; trial < 1000; trial++)
        play(machine, (unsigned)zps_rng_u64(&rng), n_parts ? (unsigned)zps_rng_below(&rng, 2u << world) >> 1 : 0,
             trial % 4, &chooser);
      zps_shard_machine_destroy(machine);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_order),
      cmocka_unit_test(test_every_order_with_trouble),
      cmocka_unit_test(test_every_order_of_gifts),
      cmocka_unit_test(test_random_orders),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
