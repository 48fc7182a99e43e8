/* The server's round machine under deadlines, cancels and lost ranks, and the words of its aborts.
 * tests/unit/server/shard/test_machine_explore.c has the invariants that hold for every order of events. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "server/shard/machine.h"

static const uint32_t partitions[] = {3, 8, 13, 18, 23};

struct scene {
  struct zps_shard_machine *machine;
  struct zps_shard_machine_actions actions;
};

static void scene_open(struct scene *scene, uint32_t world, uint32_t n_parts) {
  memset(&scene->actions, 0xA5, sizeof scene->actions); /* a caller's stack holds anything */
  assert_int_equal(zps_shard_machine_create(world, n_parts, &scene->machine), ZPS_OK);
  zps_shard_machine_start(scene->machine, &(struct zps_shard_machine_config){
                                              .job = "news", .tensor = "emb", .step = 12, .partitions = partitions});
}

static void scene_push(struct scene *scene, uint32_t rank, uint32_t part, uint64_t deadline_ns) {
  const struct zps_shard_machine_event event = {
      .type = ZPS_SHARD_ANNOUNCED, .rank = rank, .part = part, .is_here = true, .deadline_ns = deadline_ns};
  zps_shard_machine_step(scene->machine, &event, &scene->actions);
}

static void scene_tick(struct scene *scene, uint64_t now_ns) {
  zps_shard_machine_step(scene->machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_TICK, .now_ns = now_ns},
                         &scene->actions);
}

static void test_deadline_names_missing_ranks(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 4, 2);
  scene_push(&scene, 0, 0, 500);
  scene_push(&scene, 0, 1, 500);
  scene_push(&scene, 2, 0, 400); /* the earliest counts */
  scene_tick(&scene, 399);
  assert_int_equal(scene.actions.n, 0);
  scene_tick(&scene, 400);
  assert_int_equal(scene.actions.n, 1);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_ABORT);
  const struct zps_frame_abort *abort = &scene.actions.abort;
  assert_int_equal(abort->code, ZPS_ERR_MISSING);
  assert_int_equal(abort->seek, 0); /* the frame is refused otherwise */
  assert_int_equal(abort->n_ranks, 3);
  assert_int_equal(abort->ranks[0], 1);
  assert_int_equal(abort->ranks[1], 2);
  assert_int_equal(abort->ranks[2], 3);
  assert_string_equal(abort->text,
                      "job news, tensor emb, step 12: the deadline passed without the push of rank 1, "
                      "2 (partition 8), 3 (1 of 4 ranks are here)");
  assert_true(zps_shard_machine_wants_abort(scene.machine, 0));
  assert_true(zps_shard_machine_wants_abort(scene.machine, 2));
  assert_false(zps_shard_machine_wants_abort(scene.machine, 1));
  zps_shard_machine_destroy(scene.machine);
}

/* Ranks without a part are neither waited for nor heard nor told. */
static void test_idle_ranks(void **state) {
  (void)state;
  static const uint8_t idle[4] = {0, 1, 0, 1};
  struct scene scene;
  scene_open(&scene, 4, 1);
  const struct zps_shard_machine_config config = {
      .job = "news", .tensor = "emb", .step = 12, .partitions = partitions, .idle = idle};
  zps_shard_machine_start(scene.machine, &config);
  scene_push(&scene, 1, 0, 100);
  scene_push(&scene, 0, 0, 500);
  zps_shard_machine_step(
      scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_GONE, .rank = 3, .code = ZPS_ERR_PEER_LOST},
      &scene.actions);
  scene_tick(&scene, 499);
  assert_int_equal(scene.actions.n, 0);
  assert_true(zps_shard_machine_rank_gone(scene.machine, 1) && !zps_shard_machine_rank_gone(scene.machine, 2));
  scene_tick(&scene, 500);
  assert_string_equal(scene.actions.abort.text,
                      "job news, tensor emb, step 12: the deadline passed without the push "
                      "of rank 2 (1 of 2 ranks are here)");
  assert_int_equal(scene.actions.abort.n_ranks, 1);
  zps_shard_machine_start(scene.machine, &config);
  scene_push(&scene, 2, 0, 500);
  scene_push(&scene, 0, 0, 500);
  assert_int_equal(scene.actions.n, 1);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_REDUCE);
  zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_REDUCED, .part = 0},
                         &scene.actions);
  for (uint32_t rank = 0; rank <= 2; rank++) {
    assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED);
    zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_DONE, .rank = rank},
                           &scene.actions);
  }
  assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
  zps_shard_machine_destroy(scene.machine);
}

static void test_cancel_names_who_is_to_blame(void **state) {
  (void)state;
  static const uint32_t lost[] = {3, 1};
  struct scene scene;
  struct zps_shard_machine_event event = {
      .type = ZPS_SHARD_CANCEL, .rank = 2, .code = ZPS_ERR_PEER_LOST, .text = "why"};
  const struct zps_frame_abort *abort = &scene.actions.abort;
  scene_open(&scene, 4, 2);
  zps_shard_machine_step(scene.machine, &event, &scene.actions);
  assert_int_equal(abort->n_ranks, 1);
  assert_int_equal(abort->ranks[0], 2);
  zps_shard_machine_destroy(scene.machine);
  scene_open(&scene, 4, 2);
  event.blamed = lost;
  event.n_blamed = 2;
  zps_shard_machine_step(scene.machine, &event, &scene.actions);
  assert_string_equal(abort->text, "job news, tensor emb, step 12: rank 2 gave it up: why");
  assert_int_equal(abort->n_ranks, 2);
  assert_int_equal(abort->ranks[0], 3);
  assert_int_equal(abort->ranks[1], 1);
  zps_shard_machine_destroy(scene.machine);
}

static void test_deadline_with_thousands_missing(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 4096, 1);
  scene_push(&scene, 4095, 0, 1);
  scene_tick(&scene, 1);
  assert_int_equal(scene.actions.abort.n_ranks, ZPS_WIRE_RANKS_MAX);
  assert_non_null(strstr(scene.actions.abort.text,
                         "rank 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 4083 more (1 of 4096 ranks are here)"));
  zps_shard_machine_destroy(scene.machine);
}

static void test_deadline_while_reading_is_a_timeout(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 2, 2);
  for (uint32_t part = 0; part < 2; part++) scene_push(&scene, 0, part, 100);
  scene_push(&scene, 1, 0, 100);
  zps_shard_machine_step(
      scene.machine,
      &(struct zps_shard_machine_event){.type = ZPS_SHARD_ANNOUNCED, .rank = 1, .part = 1, .deadline_ns = 100},
      &scene.actions);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_READ);
  scene_tick(&scene, 100);
  assert_int_equal(scene.actions.abort.code, ZPS_ERR_TIMEOUT);
  assert_non_null(strstr(scene.actions.abort.text,
                         "3 of 4 contributions read and 0 of 2 partitions summed; not all are "
                         "read of rank 1"));
  assert_int_equal(scene.actions.abort.n_ranks, 1);
  assert_int_equal(scene.actions.abort.ranks[0], 1);
  zps_shard_machine_destroy(scene.machine);
}

static void test_gone_rank_is_needed_or_not(void **state) {
  (void)state;
  const struct zps_shard_machine_event gone = {
      .type = ZPS_SHARD_GONE, .rank = 1, .code = ZPS_ERR_PEER_LOST, .text = "no heartbeat for 5 s"};
  struct scene scene;
  scene_open(&scene, 2, 1);
  scene_push(&scene, 0, 0, 100);
  zps_shard_machine_step(scene.machine, &gone, &scene.actions);
  assert_int_equal(scene.actions.abort.code, ZPS_ERR_PEER_LOST);
  assert_string_equal(scene.actions.abort.text,
                      "job news, tensor emb, step 12: rank 1 is needed and gone: no heartbeat for 5 s");
  zps_shard_machine_destroy(scene.machine);

  scene_open(&scene, 2, 1);
  scene_push(&scene, 0, 0, 100);
  scene_push(&scene, 1, 0, 100);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_REDUCE);
  zps_shard_machine_step(scene.machine, &gone, &scene.actions);
  assert_int_equal(scene.actions.n, 0);
  assert_true(zps_shard_machine_rank_gone(scene.machine, 1));
  zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_REDUCED}, &scene.actions);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_PUBLISH);
  assert_int_equal(scene.actions.n, 1);
  zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_DONE}, &scene.actions);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_RETIRE);
  assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
  zps_shard_machine_destroy(scene.machine);
}

/* ---- push and pull apart ---- */

static void scene_event(struct scene *scene, enum zps_shard_machine_event_type type, uint32_t rank) {
  const struct zps_shard_machine_event event = {
      .type = type, .rank = rank, .is_here = type == ZPS_SHARD_ANNOUNCED, .is_apart = true, .deadline_ns = 1000};
  zps_shard_machine_step(scene->machine, &event, &scene->actions);
}

/* Sums stay until each rank that gave has pulled, and has what it pulled. */
static void test_sums_wait_for_pulls(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 1);
  scene_event(&scene, ZPS_SHARD_PULL, 1); /* ahead of its contribution */
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 0);
  assert_int_equal(scene.actions.n, 1);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_TAKEN);
  assert_int_equal(scene.actions.list[0].rank, 0);
  assert_false(zps_shard_machine_wants_abort(scene.machine, 0));
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 1);
  scene_push(&scene, 2, 0, 1000);
  assert_true(zps_shard_machine_gets_all(scene.machine, 2) && !zps_shard_machine_gets_all(scene.machine, 0));
  scene_event(&scene, ZPS_SHARD_REDUCED, 0);
  assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED);
  scene_event(&scene, ZPS_SHARD_DONE, 2); /* all that it gets */
  assert_false(zps_shard_machine_only_keeps(scene.machine));
  scene_event(&scene, ZPS_SHARD_PULLED, 1);
  assert_true(zps_shard_machine_only_keeps(scene.machine));
  scene_event(&scene, ZPS_SHARD_DONE, 1); /* it has pulled: means nothing */
  scene_event(&scene, ZPS_SHARD_PULL, 0);
  assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED);
  scene_event(&scene, ZPS_SHARD_PULLED, 0);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_RETIRE);
  zps_shard_machine_destroy(scene.machine);
}

/* A rank that has its sum gives to those that have not: it says DONE, at any time, for it will not pull. */
static void test_done_of_a_rank_that_will_not_pull(void **state) {
  (void)state;
  for (unsigned when = 0; when < 4; when++) {
    struct scene scene;
    scene_open(&scene, 2, 2);
    scene_push(&scene, 1, 0, 1000);
    zps_shard_machine_step(scene.machine,
                           &(struct zps_shard_machine_event){
                               .type = ZPS_SHARD_ANNOUNCED, .part = 0, .is_apart = true, .deadline_ns = 1000},
                           &scene.actions);
    assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_READ);
    if (when == 0) scene_event(&scene, ZPS_SHARD_DONE, 0); /* before all of it is here */
    zps_shard_machine_step(
        scene.machine,
        &(struct zps_shard_machine_event){.type = ZPS_SHARD_ANNOUNCED, .part = 1, .is_apart = true, .is_here = true},
        &scene.actions);
    zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_LANDED, .part = 0},
                           &scene.actions);
    assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_TAKEN);
    if (when == 1) scene_event(&scene, ZPS_SHARD_DONE, 0);
    assert_int_equal(scene.actions.n, when == 1 ? 0 : 2);
    scene_push(&scene, 1, 1, 1000);
    assert_int_equal(scene.machine->state, ZPS_SHARD_REDUCING);
    if (when == 2) scene_event(&scene, ZPS_SHARD_DONE, 0);
    for (uint32_t part = 0; part < 2; part++)
      zps_shard_machine_step(scene.machine, &(struct zps_shard_machine_event){.type = ZPS_SHARD_REDUCED, .part = part},
                             &scene.actions);
    assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED);
    scene_event(&scene, ZPS_SHARD_DONE, 1);
    assert_int_equal(scene.machine->state, when == 3 ? ZPS_SHARD_PUBLISHED : ZPS_SHARD_RETIRED);
    if (when == 3) scene_event(&scene, ZPS_SHARD_DONE, 0);
    assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
    zps_shard_machine_destroy(scene.machine);
  }
}

static void test_kept_sums_are_forgotten(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 2, 1);
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 0);
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 1);
  scene_event(&scene, ZPS_SHARD_REDUCED, 0);
  scene_event(&scene, ZPS_SHARD_PULL, 1);
  scene_event(&scene, ZPS_SHARD_FORGET, 0);
  assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED); /* rank 1 is at it */
  scene_event(&scene, ZPS_SHARD_GONE, 0);
  scene_event(&scene, ZPS_SHARD_PULLED, 1);
  assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
  zps_shard_machine_destroy(scene.machine);
  scene_open(&scene, 2, 1); /* a rank that is gone will not pull */
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 0);
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 1);
  scene_event(&scene, ZPS_SHARD_REDUCED, 0);
  scene_event(&scene, ZPS_SHARD_GONE, 0);
  scene_event(&scene, ZPS_SHARD_GONE, 1);
  assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
  zps_shard_machine_destroy(scene.machine);
}

/* Of a tensor whose sums are sought: whoever has them, and however often. */
static void test_sums_are_kept_for_seeks(void **state) {
  (void)state;
  struct scene scene;
  assert_int_equal(zps_shard_machine_create(2, 1, &scene.machine), ZPS_OK);
  zps_shard_machine_start(scene.machine,
                          &(struct zps_shard_machine_config){
                              .job = "news", .tensor = "emb", .step = 12, .partitions = partitions, .is_kept = true});
  const struct zps_shard_machine_event seek = {
      .type = ZPS_SHARD_PULL, .rank = 1, .deadline_ns = 1000, .may_repeat = true};
  zps_shard_machine_step(scene.machine, &seek, &scene.actions); /* ahead of a push for all of the sum */
  scene_push(&scene, 1, 0, 1000);
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 0);
  scene_event(&scene, ZPS_SHARD_REDUCED, 0);
  assert_true(zps_shard_machine_gets_all(scene.machine, 1));
  scene_event(&scene, ZPS_SHARD_DONE, 1);
  scene_event(&scene, ZPS_SHARD_PULLED, 1);
  for (int i = 0; i < 2; i++) {
    struct zps_shard_machine_event again = seek;
    again.rank = 0;
    zps_shard_machine_step(scene.machine, &again, &scene.actions);
    assert_false(zps_shard_machine_only_keeps(scene.machine));
    scene_event(&scene, ZPS_SHARD_PULLED, 0);
    assert_true(zps_shard_machine_only_keeps(scene.machine));
  }
  assert_true(zps_shard_machine_keeps(scene.machine));
  scene_event(&scene, ZPS_SHARD_FORGET, 0);
  assert_int_equal(scene.machine->state, ZPS_SHARD_RETIRED);
  zps_shard_machine_destroy(scene.machine);
}

static void test_a_rank_pushes_in_one_way(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 2, 2);
  scene_push(&scene, 1, 0, 1000);
  scene_event(&scene, ZPS_SHARD_ANNOUNCED, 1); /* once more this part, and apart */
  assert_int_equal(scene.actions.abort.code, ZPS_ERR_PROTOCOL);
  zps_shard_machine_destroy(scene.machine);
  scene_open(&scene, 2, 1);
  scene_event(&scene, ZPS_SHARD_PULL, 1);
  scene_push(&scene, 1, 0, 1000);
  assert_string_equal(scene.actions.abort.text,
                      "job news, tensor emb, step 12: rank 1 asks for all sums with its push, and for some apart");
  assert_int_equal(scene.actions.abort.ranks[0], 1);
  zps_shard_machine_destroy(scene.machine);
}

/* Whatever the order of events, a round ends when nobody needs it, counts come out even, and TAKEN comes once. */
static void test_any_order_of_pushes_and_pulls(void **state) {
  (void)state;
  enum { WORLD = 3, PARTS = 2, TRIES = 20000 };
  struct zps_rng rng = {.state = 5};
  for (unsigned n = 0; n < TRIES; n++) {
    struct scene scene;
    unsigned taken[WORLD] = {0}, pulls[WORLD] = {0}, reducing = 0, reduced = 0, pushed[WORLD] = {0};
    bool apart[WORLD], pulled[WORLD] = {false}, done[WORLD] = {false};
    scene_open(&scene, WORLD, PARTS);
    for (unsigned r = 0; r < WORLD; r++) apart[r] = zps_rng_below(&rng, 2);
    for (unsigned i = 0; i < 200 && !zps_shard_machine_over(scene.machine); i++) {
      const uint32_t rank = (uint32_t)zps_rng_below(&rng, WORLD);
      struct zps_shard_machine_event event = {.rank = rank, .is_apart = apart[rank], .is_here = true};
      event.deadline_ns = 1000;
      switch (zps_rng_below(&rng, 5)) {
        case 0:
          if (pushed[rank] == PARTS) continue;
          event.type = ZPS_SHARD_ANNOUNCED;
          event.part = pushed[rank]++;
          break;
        case 1:
          if (!apart[rank] || pulled[rank]) continue;
          pulled[rank] = true;
          pulls[rank]++;
          event.type = ZPS_SHARD_PULL;
          break;
        case 2:
          if (pulls[rank] == 0) continue;
          pulls[rank]--;
          event.type = ZPS_SHARD_PULLED;
          break;
        case 3:
          if (reduced == reducing) continue;
          event.type = ZPS_SHARD_REDUCED;
          event.part = reduced++;
          break;
        default:
          if (scene.machine->state != ZPS_SHARD_PUBLISHED && (!apart[rank] || pushed[rank] == 0)) continue;
          if (apart[rank] && zps_rng_below(&rng, 4) > 0) continue; /* others pull */
          done[rank] = pushed[rank] > 0;
          event.type = ZPS_SHARD_DONE;
      }
      zps_shard_machine_step(scene.machine, &event, &scene.actions);
      for (unsigned a = 0; a < scene.actions.n; a++) {
        assert_int_not_equal(scene.actions.list[a].type, ZPS_SHARD_ABORT);
        if (scene.actions.list[a].type == ZPS_SHARD_TAKEN) taken[scene.actions.list[a].rank]++;
        if (scene.actions.list[a].type == ZPS_SHARD_REDUCE) reducing++;
      }
    }
    for (unsigned r = 0; r < WORLD; r++) {
      assert_int_equal(taken[r], apart[r] && pushed[r] == PARTS);
      if (scene.machine->state == ZPS_SHARD_RETIRED) assert_int_equal(pulls[r], 0);
      if (scene.machine->state == ZPS_SHARD_RETIRED) assert_true(!apart[r] || pulled[r] || done[r]);
    }
    zps_shard_machine_destroy(scene.machine);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_deadline_names_missing_ranks),
      cmocka_unit_test(test_idle_ranks),
      cmocka_unit_test(test_cancel_names_who_is_to_blame),
      cmocka_unit_test(test_deadline_with_thousands_missing),
      cmocka_unit_test(test_deadline_while_reading_is_a_timeout),
      cmocka_unit_test(test_gone_rank_is_needed_or_not),
      cmocka_unit_test(test_sums_wait_for_pulls),
      cmocka_unit_test(test_done_of_a_rank_that_will_not_pull),
      cmocka_unit_test(test_kept_sums_are_forgotten),
      cmocka_unit_test(test_sums_are_kept_for_seeks),
      cmocka_unit_test(test_a_rank_pushes_in_one_way),
      cmocka_unit_test(test_any_order_of_pushes_and_pulls),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
