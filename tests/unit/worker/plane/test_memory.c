/* The order in which rounds between ranks, sums and pushes get registered memory, under a limit of eight buffers. */
#include <stdio.h>

#include "tests/support/net_pair.h"

#include "common/base/container.h"
#include "worker/plane/memory.h"

enum { MIB = 1 << 20, LIMIT = 8 * MIB, MOST = 8 };

/* A round that wants some buffers of 1 MiB, all from one line. */
struct round {
  struct zps_plane_wait wait;
  struct scene *scene;
  enum zps_plane_line line;
  struct zps_plane_use used;
  bool is_busy; /* work of it is under way */
  unsigned n_wanted, n_got;
  struct zps_buf bufs[MOST];
  zps_err_t refused;
  char text[200];
};

struct scene {
  struct end end;
  struct zps_slab *slab;
  struct zps_plane_memory memory;
};

static zps_err_t take(struct zps_plane_wait *wait) {
  struct round *round = zps_container_of(wait, struct round, wait);
  for (; round->n_got < round->n_wanted; round->n_got++) {
    const zps_err_t err = zps_plane_memory_get(&round->scene->memory, round->line, &round->used, !round->is_busy, MIB,
                                               &round->bufs[round->n_got]);
    if (err != ZPS_OK) return err;
  }
  return ZPS_OK;
}

static void refused(struct zps_plane_wait *wait, zps_err_t err, const char *text) {
  struct round *round = zps_container_of(wait, struct round, wait);
  round->refused = err;
  snprintf(round->text, sizeof round->text, "%s", text);
}

static struct round round_of(struct scene *scene, enum zps_plane_line line, unsigned n_wanted) {
  return (struct round){.wait = {.take = take, .refused = refused}, .scene = scene, .line = line, .n_wanted = n_wanted};
}

/* As a round does that wants memory: rounds between ranks try for themselves before they wait. */
static void want(struct round *round) {
  if (round->line == ZPS_LINE_PEER && take(&round->wait) != ZPS_ERR_AGAIN) return;
  zps_plane_memory_want(&round->scene->memory, round->line, &round->wait);
  zps_plane_memory_serve(&round->scene->memory);
}

static void give_back(struct round *round, unsigned n) {
  for (; n > 0; n--)
    zps_plane_memory_put(&round->scene->memory, round->line, &round->used, &round->bufs[--round->n_got]);
  round->n_wanted = round->n_got;
  zps_plane_memory_serve(&round->scene->memory);
}

static void scene_open(struct scene *scene) {
  end_open(&scene->end, "loop", NULL, 0);
  assert_int_equal(zps_slab_create(scene->end.net, LIMIT, 0, &scene->slab), ZPS_OK);
  zps_plane_memory_init(&scene->memory, scene->slab, LIMIT);
}

static void scene_close(struct scene *scene, struct round *rounds[], unsigned n) {
  for (unsigned i = 0; i < n; i++) {
    zps_plane_memory_forget(&scene->memory, &rounds[i]->wait);
    give_back(rounds[i], rounds[i]->n_got);
    assert_int_equal(rounds[i]->used.push + rounds[i]->used.pull, 0);
  }
  assert_int_equal(scene->memory.used.push + scene->memory.used.pull, 0);
  zps_slab_destroy(scene->slab);
  zps_net_close(scene->end.net);
}

static void pushes_stop_at_half_of_the_limit_unless_they_are_alone(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PUSH, 6), b = round_of(&scene, ZPS_LINE_PUSH, 3);
  want(&a);
  assert_int_equal(a.n_got, 6); /* of eight */
  want(&b);
  assert_int_equal(b.n_got, 0);
  give_back(&a, 3);
  assert_int_equal(b.n_got, 1); /* four in all */
  give_back(&a, 1);
  assert_int_equal(b.n_got, 2);
  give_back(&a, 2);
  assert_int_equal(b.n_got, 3);
  assert_false(zps_plane_memory_waits(&b.wait));
  scene_close(&scene, (struct round *[]){&a, &b}, 2);
}

static void a_round_keeps_its_place_until_it_has_all(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PUSH, 3), b = round_of(&scene, ZPS_LINE_PUSH, 3),
               c = round_of(&scene, ZPS_LINE_PUSH, 1);
  want(&a);
  want(&b);
  want(&c);
  want(&b); /* a second request keeps its position */
  assert_int_equal(b.n_got, 1);
  assert_int_equal(c.n_got, 0);
  give_back(&a, 1);
  assert_int_equal(b.n_got, 2);
  assert_int_equal(c.n_got, 0);
  give_back(&a, 2);
  assert_int_equal(b.n_got, 3);
  assert_int_equal(c.n_got, 1);
  scene_close(&scene, (struct round *[]){&a, &b, &c}, 3);
}

static void sums_come_before_pushes_and_may_take_all(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PUSH, 4), push = round_of(&scene, ZPS_LINE_PUSH, 1),
               pull = round_of(&scene, ZPS_LINE_PULL, 4), more = round_of(&scene, ZPS_LINE_PULL, 1);
  want(&a);
  want(&push);
  assert_int_equal(push.n_got, 0);
  want(&pull);
  assert_int_equal(pull.n_got, 4);
  want(&more);
  assert_int_equal(more.n_got, 0);
  give_back(&a, 1); /* the push has waited longer, and would be within its half */
  assert_int_equal(more.n_got, 1);
  assert_int_equal(push.n_got, 0);
  give_back(&pull, 1);
  assert_int_equal(push.n_got, 1);
  scene_close(&scene, (struct round *[]){&a, &push, &pull, &more}, 4);
}

static void rounds_between_ranks_share_half_but_for_the_first(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PEER, 3), b = round_of(&scene, ZPS_LINE_PEER, 1),
               c = round_of(&scene, ZPS_LINE_PEER, 1), pull = round_of(&scene, ZPS_LINE_PULL, 1);
  a.used.is_first = true;
  want(&a);
  want(&b);
  assert_int_equal(b.n_got, 1);
  want(&c);
  assert_int_equal(c.n_got, 0); /* half is taken */
  want(&pull);
  assert_int_equal(pull.n_got, 1); /* a sum does not wait for it */
  a.n_wanted = 6;
  want(&a);
  assert_int_equal(a.n_got, 6); /* the round that began first may take all */
  b.n_wanted = 2;
  want(&b);
  assert_int_equal(b.n_got, 1);
  give_back(&pull, 1); /* what is left is kept for the first, so that it does not wait for those who wait for it */
  assert_int_equal(c.n_got, 0);
  assert_int_equal(b.n_got, 1);
  give_back(&a, 2);
  c.used.is_first = true; /* it is first, and holds nothing yet */
  scene.memory.is_due = true;
  zps_plane_memory_serve(&scene.memory);
  assert_int_equal(c.n_got, 1);
  assert_int_equal(b.n_got, 1);
  give_back(&a, 4);
  assert_int_equal(b.n_got, 2);
  scene_close(&scene, (struct round *[]){&a, &b, &c, &pull}, 4);
}

static void check_refused(enum zps_plane_line line) {
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, line, 8), b = round_of(&scene, line, 1);
  want(&a);
  assert_int_equal(a.n_got, 8);
  b.is_busy = true;
  b.used = a.used; /* one round that holds all there is */
  want(&b);
  assert_int_equal(b.refused, ZPS_OK); /* its own work may free some */
  assert_true(zps_plane_memory_waits(&b.wait));
  b.is_busy = false;
  if (line != ZPS_LINE_PEER) want(&b);
  scene.memory.is_due = true;
  zps_plane_memory_serve(&scene.memory);
  assert_int_equal(b.refused, ZPS_ERR_NOMEM);
  assert_non_null(strstr(b.text, "the limit is 8388608 bytes, 8388608 are in use; raise ZENPS_MEMORY_LIMIT"));
  assert_false(zps_plane_memory_waits(&b.wait));
  scene_close(&scene, (struct round *[]){&a}, 1);
}

static void a_round_that_alone_needs_more_than_there_is_is_refused(void **state) {
  (void)state;
  check_refused(ZPS_LINE_PEER);
  check_refused(ZPS_LINE_PULL);
  check_refused(ZPS_LINE_PUSH);
}

static void sums_spare_what_pushes_need(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PUSH, 1);
  want(&a);
  assert_true(zps_plane_memory_spares(&scene.memory, 2 * MIB, MIB));
  assert_false(zps_plane_memory_spares(&scene.memory, 2 * MIB, MIB + 1));
  scene_close(&scene, (struct round *[]){&a}, 1);
}

static void leave(struct round *round) {
  struct zps_buf *const buf = &round->bufs[--round->n_got];
  round->n_wanted = round->n_got;
  zps_plane_memory_leave(&round->scene->memory, round->line, &round->used, buf);
  zps_plane_memory_serve(&round->scene->memory);
}

/* Reads of lost peers still have six buffers of eight. */
static void what_reads_of_lost_peers_have_is_no_rounds_share(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PULL, 6), pull = round_of(&scene, ZPS_LINE_PULL, 1),
               peer = round_of(&scene, ZPS_LINE_PEER, 1), push = round_of(&scene, ZPS_LINE_PUSH, 1);
  want(&a);
  while (a.n_got > 0) leave(&a);
  assert_int_equal(a.used.pull + scene.memory.used.pull, 0);
  assert_int_equal(scene.memory.left_bytes, 6 * MIB);
  want(&peer); /* alone, it may begin */
  assert_int_equal(peer.n_got, 1);
  want(&push); /* it would take from the half that is kept for sums: of two buffers */
  assert_int_equal(push.n_got, 0);
  want(&pull);
  assert_int_equal(pull.n_got, 1);
  for (unsigned i = 0; i < 6; i++) zps_plane_memory_return(&scene.memory, &a.bufs[i]);
  zps_plane_memory_serve(&scene.memory);
  assert_int_equal(scene.memory.left_bytes, 0);
  assert_int_equal(push.n_got, 1);
  scene_close(&scene, (struct round *[]){&a, &pull, &peer, &push}, 4);
}

/* They end some time: so long, and until its deadline, it waits. */
static void nothing_is_refused_while_reads_of_lost_peers_may_end(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene);
  struct round a = round_of(&scene, ZPS_LINE_PULL, 1), b = round_of(&scene, ZPS_LINE_PUSH, 8);
  want(&a);
  leave(&a);
  want(&b);
  assert_int_equal(b.n_got, 7);
  assert_int_equal(b.refused, ZPS_OK);
  assert_true(zps_plane_memory_waits(&b.wait));
  zps_plane_memory_return(&scene.memory, &a.bufs[0]);
  zps_plane_memory_serve(&scene.memory);
  assert_int_equal(b.n_got, 8);
  scene_close(&scene, (struct round *[]){&a, &b}, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(pushes_stop_at_half_of_the_limit_unless_they_are_alone),
      cmocka_unit_test(a_round_keeps_its_place_until_it_has_all),
      cmocka_unit_test(sums_come_before_pushes_and_may_take_all),
      cmocka_unit_test(rounds_between_ranks_share_half_but_for_the_first),
      cmocka_unit_test(a_round_that_alone_needs_more_than_there_is_is_refused),
      cmocka_unit_test(sums_spare_what_pushes_need),
      cmocka_unit_test(what_reads_of_lost_peers_have_is_no_rounds_share),
      cmocka_unit_test(nothing_is_refused_while_reads_of_lost_peers_may_end),
  };
  return cmocka_run_group_tests_name("plane_memory", tests, NULL, NULL);
}
