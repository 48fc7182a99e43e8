/* The server's round machine with a quorum: rounds that close without the slowest ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "server/shard/machine.h"

enum { PARTS = 2, WORLD_MAX = 5 };

static const uint32_t partitions[] = {3, 8};

struct scene {
  struct zps_shard_machine *machine;
  struct zps_shard_machine_actions actions;
  uint64_t now_ns;
  unsigned n_closed, n_aborted, n_retired, n_refused;
  zps_err_t code; /* of the last ABORT or REFUSE */
};

static void scene_open(struct scene *scene, uint32_t world, uint32_t quorum, uint64_t grace_ns) {
  memset(scene, 0, sizeof *scene);
  assert_int_equal(zps_shard_machine_create(world, PARTS, &scene->machine), ZPS_OK);
  zps_shard_machine_start(scene->machine, &(struct zps_shard_machine_config){.job = "news",
                                                                             .tensor = "emb",
                                                                             .step = 12,
                                                                             .partitions = partitions,
                                                                             .quorum = quorum,
                                                                             .grace_ns = grace_ns});
}

static void scene_close(struct scene *scene) {
  zps_shard_machine_destroy(scene->machine);
}

static void send(struct scene *scene, struct zps_shard_machine_event event) {
  event.now_ns = scene->now_ns;
  zps_shard_machine_step(scene->machine, &event, &scene->actions);
  assert_true(scene->actions.n <= ZPS_SHARD_ACTIONS_MAX);
  for (unsigned i = 0; i < scene->actions.n; i++) {
    scene->n_closed += scene->actions.list[i].type == ZPS_SHARD_CLOSE;
    scene->n_retired += scene->actions.list[i].type == ZPS_SHARD_RETIRE;
    scene->n_aborted += scene->actions.list[i].type == ZPS_SHARD_ABORT;
    scene->n_refused += scene->actions.list[i].type == ZPS_SHARD_REFUSE;
    if (scene->actions.list[i].type == ZPS_SHARD_ABORT || scene->actions.list[i].type == ZPS_SHARD_REFUSE)
      scene->code = scene->actions.abort.code;
  }
}

static void announce(struct scene *scene, uint32_t rank, uint32_t part, bool is_here, bool is_apart) {
  send(scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_ANNOUNCED,
                                               .rank = rank,
                                               .part = part,
                                               .is_here = is_here,
                                               .is_apart = is_apart,
                                               .deadline_ns = 1000});
}

static void push(struct scene *scene, uint32_t rank) {
  for (uint32_t part = 0; part < PARTS; part++) announce(scene, rank, part, true, false);
}

static void tick(struct scene *scene, uint64_t now_ns) {
  scene->now_ns = now_ns;
  send(scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_TICK});
}

static void of_rank(struct scene *scene, enum zps_shard_machine_event_type type, uint32_t rank) {
  send(scene, (struct zps_shard_machine_event){
                  .type = type, .rank = rank, .code = ZPS_ERR_CANCELED, .text = "it has had enough"});
}

static void reduce(struct scene *scene) {
  for (uint32_t part = 0; part < PARTS; part++)
    send(scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_REDUCED, .part = part});
}

static void decide(struct scene *scene, uint32_t rank, uint8_t late) {
  send(scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_DECIDED, .rank = rank, .late = &late});
}

static void test_closes_when_all_are_here(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 100);
  push(&scene, 0);
  push(&scene, 1);
  assert_int_equal(scene.n_closed, 0);
  assert_int_equal(scene.machine->close_ns, 100);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  assert_int_equal(zps_shard_machine_count_late(scene.machine), 0);
  reduce(&scene);
  for (uint32_t rank = 0; rank < 3; rank++) of_rank(&scene, ZPS_SHARD_DONE, rank);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

/* The grace counts from the last rank of the quorum; what is announced and not read does not count. */
static void test_closes_after_the_grace(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 4, 2, 100);
  scene.now_ns = 10;
  push(&scene, 3);
  announce(&scene, 0, 0, true, false);
  announce(&scene, 0, 1, false, false);
  tick(&scene, 500);
  assert_int_equal(scene.n_closed, 0);
  push(&scene, 1);
  assert_int_equal(scene.machine->close_ns, 600);
  tick(&scene, 599);
  assert_int_equal(scene.n_closed, 0);
  tick(&scene, 600);
  assert_int_equal(scene.n_closed, 1);
  for (uint32_t rank = 0; rank < 4; rank++)
    assert_int_equal(zps_shard_machine_is_late(scene.machine, rank), rank == 0 || rank == 2);
  send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_LANDED, .rank = 0, .part = 1}); /* in vain */
  tick(&scene, 5000); /* no deadline holds any more: nobody is waited for */
  assert_int_equal(scene.n_aborted, 0);
  reduce(&scene);
  assert_int_equal(scene.machine->state, ZPS_SHARD_PUBLISHED);
  assert_true(zps_shard_machine_awaits(scene.machine, 0) && !zps_shard_machine_awaits(scene.machine, 2));
  of_rank(&scene, ZPS_SHARD_DONE, 1);
  of_rank(&scene, ZPS_SHARD_DONE, 3);
  assert_true(zps_shard_machine_only_keeps(scene.machine)); /* for late ranks */
  of_rank(&scene, ZPS_SHARD_NOTIFIED, 0);
  of_rank(&scene, ZPS_SHARD_NOTIFIED, 0); /* nothing is counted twice */
  assert_true(zps_shard_machine_reads(scene.machine, 0));
  announce(&scene, 2, 0, true, false);
  assert_false(zps_shard_machine_awaits(scene.machine, 2));
  announce(&scene, 2, 1, true, false);
  assert_true(zps_shard_machine_awaits(scene.machine, 2));
  of_rank(&scene, ZPS_SHARD_NOTIFIED, 2);
  of_rank(&scene, ZPS_SHARD_DONE, 2);
  assert_int_equal(scene.n_retired, 0);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

static void test_without_grace(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 0);
  push(&scene, 0);
  assert_int_equal(scene.n_closed, 1);
  assert_true(zps_shard_machine_is_late(scene.machine, 1));
  scene_close(&scene);
}

/* At the deadline a quorum is enough, however long the grace; less is too little. */
static void test_deadline(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 1u << 30);
  push(&scene, 2);
  push(&scene, 0);
  tick(&scene, 1000);
  assert_int_equal(scene.n_closed, 1);
  scene_close(&scene);
  scene_open(&scene, 3, 2, 0);
  push(&scene, 2);
  tick(&scene, 1000);
  assert_int_equal(scene.n_aborted, 1);
  assert_int_equal(scene.code, ZPS_ERR_MISSING);
  scene_close(&scene);
}

/* A round that a word ahead of all pushes has begun ends some time. The deadline of pushes takes the place of that. */
static void test_deadline_without_a_push(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  scene.machine->deadline_ns = 500;
  decide(&scene, 0, 1 << 1);
  push(&scene, 1); /* late, so that it does not count */
  assert_int_equal(scene.machine->deadline_ns, 500);
  push(&scene, 0);
  assert_int_equal(scene.machine->deadline_ns, 1000);
  tick(&scene, 999);
  assert_int_equal(scene.n_aborted, 0);
  tick(&scene, 1000);
  assert_int_equal(scene.code, ZPS_ERR_MISSING);
  scene_close(&scene);
}

/* A rank that gives up does so for itself, as long as the others are a quorum. */
static void test_ranks_that_give_up(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 100);
  push(&scene, 1);
  of_rank(&scene, ZPS_SHARD_CANCEL, 1); /* it takes its contribution with it */
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_DROP);
  assert_true(zps_shard_machine_is_too_late(scene.machine, 1));
  push(&scene, 0);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1); /* at once: nobody else is awaited */
  reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  of_rank(&scene, ZPS_SHARD_DONE, 2);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
  scene_open(&scene, 3, 2, 100);
  of_rank(&scene, ZPS_SHARD_GONE, 0);
  assert_int_equal(scene.n_aborted, 0);
  of_rank(&scene, ZPS_SHARD_CANCEL, 1);
  assert_int_equal(scene.n_aborted, 1);
  assert_int_equal(scene.code, ZPS_ERR_CANCELED);
  scene_close(&scene);
}

/* A rank has left, and lives. It may have the sum of a lost server, so without a decision no other sum is made. */
static void test_left_with_a_sum(void **state) {
  (void)state;
  const struct zps_shard_machine_event left = {
      .type = ZPS_SHARD_GONE, .rank = 0, .may_have_sum = true, .code = ZPS_ERR_CLOSED, .text = "it left the job"};
  struct scene scene;
  scene_open(&scene, 3, 1, 0);
  send(&scene, left);
  assert_int_equal(scene.n_aborted, 1);
  assert_int_equal(scene.code, ZPS_ERR_CLOSED);
  scene_close(&scene);
  scene_open(&scene, 3, 1, 0);
  decide(&scene, 2, 1 << 0); /* its sum lacks its contribution */
  send(&scene, left);
  assert_int_equal(scene.n_aborted, 0);
  push(&scene, 1);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  scene_close(&scene);
  scene_open(&scene, 3, 1, 0);
  decide(&scene, 2, 1 << 1);
  send(&scene, left);
  assert_int_equal(scene.n_aborted, 1);
  scene_close(&scene);
}

/* After a server's loss the set is that of before, whoever comes first; and a rank of it cannot stay away. */
static void test_decided_by_an_earlier_epoch(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 1, 0);
  decide(&scene, 2, 1 << 0);
  push(&scene, 0); /* it would be a quorum */
  assert_int_equal(scene.n_closed, 0);
  push(&scene, 1);
  decide(&scene, 1, 1 << 0);
  tick(&scene, 900);
  assert_int_equal(scene.n_closed, 0);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  assert_true(zps_shard_machine_is_late(scene.machine, 0));
  assert_int_equal(zps_shard_machine_count_late(scene.machine), 1);
  decide(&scene, 0, 1 << 1); /* what it says now is no matter to the others */
  assert_true(scene.code == ZPS_ERR_PROTOCOL && scene.n_refused == 1 && scene.n_aborted == 0);
  scene_close(&scene);
  scene_open(&scene, 3, 1, 0);
  decide(&scene, 2, 1 << 0);
  of_rank(&scene, ZPS_SHARD_CANCEL, 0); /* late in any case */
  assert_int_equal(scene.n_aborted, 0);
  of_rank(&scene, ZPS_SHARD_CANCEL, 1);
  assert_int_equal(scene.n_aborted, 1);
  scene_close(&scene);
  scene_open(&scene, 3, 1, 0);
  of_rank(&scene, ZPS_SHARD_CANCEL, 1);
  decide(&scene, 2, 1 << 0);
  assert_int_equal(scene.code, ZPS_ERR_SERVER_LOST);
  scene_close(&scene);
}

/* Words of a rank that cannot be right end the round, and no count goes wrong. */
static void test_wrong_decisions(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  decide(&scene, 0, 7);
  assert_int_equal(scene.code, ZPS_ERR_PROTOCOL);
  scene_close(&scene);
  scene_open(&scene, 3, 2, 0);
  decide(&scene, 0, 1 << 0 | 1 << 1); /* one rank is no quorum of two */
  assert_int_equal(scene.code, ZPS_ERR_PROTOCOL);
  scene_close(&scene);
  scene_open(&scene, 3, 2, 1000);
  push(&scene, 1);
  of_rank(&scene, ZPS_SHARD_GONE, 1);
  announce(&scene, 0, 0, true, true);
  announce(&scene, 0, 1, true, true);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  assert_int_equal(scene.n_closed, 0);
  decide(&scene, 2, 1 << 1);
  assert_true(scene.machine->n_reading <= 3 && scene.machine->n_awaited <= 3 && scene.machine->n_late == 0);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 2);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

/* A push that is given again, of a rank that had its sum: in time or late. */
static void test_ranks_that_only_give(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  decide(&scene, 0, 1 << 1);
  announce(&scene, 1, 0, true, true);
  announce(&scene, 1, 1, true, true);
  assert_true(zps_shard_machine_awaits(scene.machine, 1) && zps_shard_machine_only_gives(scene.machine, 1));
  of_rank(&scene, ZPS_SHARD_NOTIFIED, 1);
  of_rank(&scene, ZPS_SHARD_DONE, 1);
  announce(&scene, 0, 0, true, true);
  announce(&scene, 0, 1, true, true);
  assert_int_equal(scene.actions.list[0].type, ZPS_SHARD_TAKEN);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 2);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

/* After the loss of a server the rank may have a sum already, with its contribution in it: no other sum may be made. */
static void test_pushes_that_are_lost_with_a_server(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 1, 100);
  push(&scene, 1);
  send(&scene, (struct zps_shard_machine_event){
                   .type = ZPS_SHARD_CANCEL, .rank = 0, .code = ZPS_ERR_SERVER_LOST, .text = "it is kept no longer"});
  assert_true(scene.n_aborted == 1 && scene.code == ZPS_ERR_SERVER_LOST);
  scene_close(&scene);
  scene_open(&scene, 3, 1, 0); /* the decision says that the sum was made without it */
  decide(&scene, 0, 1 << 0);
  send(&scene, (struct zps_shard_machine_event){
                   .type = ZPS_SHARD_CANCEL, .rank = 0, .code = ZPS_ERR_SERVER_LOST, .text = "it is kept no longer"});
  assert_int_equal(scene.n_aborted, 0);
  push(&scene, 1);
  push(&scene, 2);
  assert_int_equal(scene.n_closed, 1);
  reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 1);
  of_rank(&scene, ZPS_SHARD_DONE, 2);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

/* The faults of a late rank: `fault` is made when the round is closed, once before the sums are there and once after.
 */
static void blame(void (*fault)(struct scene *), unsigned is_published) {
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  push(&scene, 0);
  push(&scene, 1);
  assert_int_equal(scene.n_closed, 1);
  if (is_published) reduce(&scene);
  fault(&scene);
  assert_int_equal(scene.n_aborted, 0);
  assert_int_equal(scene.n_refused, 1);
  assert_int_equal(scene.code, ZPS_ERR_PROTOCOL);
  assert_non_null(strstr(scene.actions.abort.text, "job news, tensor emb, step 12: "));
  assert_true(scene.actions.abort.n_ranks == 1 && scene.actions.abort.ranks[0] == 2);
  assert_true(zps_shard_machine_is_too_late(scene.machine, 2));
  announce(&scene, 2, 1, true, false); /* what it says from here on changes nothing */
  announce(&scene, 2, 1, true, false);
  assert_int_equal(scene.actions.n, 0);
  if (!is_published) reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  of_rank(&scene, ZPS_SHARD_DONE, 1);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

static void push_twice(struct scene *scene) {
  announce(scene, 2, 0, true, false);
  announce(scene, 2, 0, true, false);
}
static void push_in_both_ways(struct scene *scene) {
  announce(scene, 2, 0, true, false);
  announce(scene, 2, 1, true, true);
}
static void push_bad_bytes(struct scene *scene) {
  send(scene, (struct zps_shard_machine_event){
                  .type = ZPS_SHARD_FAIL, .rank = 2, .code = ZPS_ERR_PROTOCOL, .text = "its sizes are wrong"});
}
static void decide_otherwise(struct scene *scene) {
  decide(scene, 2, 1 << 0);
}
static void say_that_it_has_read(struct scene *scene) {
  of_rank(scene, ZPS_SHARD_DONE, 2);
}
static void test_faults_of_late_ranks(void **state) {
  (void)state;
  for (unsigned is_published = 0; is_published < 2; is_published++) {
    blame(push_twice, is_published);
    blame(push_in_both_ways, is_published);
    blame(push_bad_bytes, is_published);
    blame(decide_otherwise, is_published);
  }
  blame(say_that_it_has_read, false);
}

/* A fault of the server's ends the round for all, closed or not; so does one that is found in a contribution. */
static void test_faults_that_end_the_round(void **state) {
  (void)state;
  for (uint32_t i = 0; i < 2; i++) {
    struct scene scene;
    scene_open(&scene, 3, 2, 0);
    push(&scene, 0);
    push(&scene, 1);
    send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_FAIL,
                                                  .rank = i == 0 ? ZPS_SHARD_NO_RANK : 1,
                                                  .code = ZPS_ERR_NOMEM,
                                                  .text = "there is no memory"});
    assert_true(scene.n_aborted == 1 && scene.n_refused == 0 && scene.code == ZPS_ERR_NOMEM);
    scene_close(&scene);
  }
}

/* A closed round may wait for memory. It has a deadline of the caller's, and blames no rank: none is waited for. */
static void test_deadline_of_a_closed_round(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  announce(&scene, 2, 0, false, false); /* late, and being read */
  push(&scene, 0);
  push(&scene, 1);
  assert_int_equal(scene.n_closed, 1);
  scene.machine->deadline_ns = 7000;
  tick(&scene, 6999);
  assert_int_equal(scene.n_aborted, 0);
  tick(&scene, 7000);
  assert_true(scene.n_aborted == 1 && scene.code == ZPS_ERR_TIMEOUT && scene.actions.abort.n_ranks == 0);
  assert_non_null(strstr(scene.actions.abort.text, "and 0 of 2 partitions summed"));
  assert_null(strstr(scene.actions.abort.text, "rank"));
  scene_close(&scene);
}

static void test_sums_that_are_forgotten(void **state) {
  (void)state;
  struct scene scene;
  scene_open(&scene, 3, 2, 0);
  push(&scene, 0);
  push(&scene, 1);
  reduce(&scene);
  of_rank(&scene, ZPS_SHARD_DONE, 0);
  send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_FORGET});
  assert_true(zps_shard_machine_is_too_late(scene.machine, 2));
  assert_int_equal(scene.n_retired, 0);
  of_rank(&scene, ZPS_SHARD_DONE, 1);
  assert_int_equal(scene.n_retired, 1);
  scene_close(&scene);
}

/* Random orders: each round ends, closed by the rule or aborted, and nothing is counted twice. */
static void explore(struct zps_rng *rng) {
  struct scene scene;
  const uint32_t world = 1 + (uint32_t)(zps_rng_u64(rng) % WORLD_MAX),
                 quorum = 1 + (uint32_t)(zps_rng_u64(rng) % world);
  uint8_t said[WORLD_MAX] = {0}, unread[WORLD_MAX] = {0}, done[WORLD_MAX] = {0}, left[WORLD_MAX] = {0};
  scene_open(&scene, world, quorum, zps_rng_u64(rng) % 40);
  for (unsigned i = 0; i < 400 && !zps_shard_machine_over(scene.machine); i++) {
    const uint32_t rank = (uint32_t)(zps_rng_u64(rng) % world), part = (uint32_t)(zps_rng_u64(rng) % PARTS);
    const bool is_late = zps_shard_machine_is_late(scene.machine, rank);
    switch (zps_rng_u64(rng) % 8) {
      case 0:
      case 1:
        if (left[rank] || (said[rank] >> part & 1)) break;
        said[rank] |= (uint8_t)(1u << part);
        if (zps_rng_u64(rng) % 2 == 0) unread[rank] |= (uint8_t)(1u << part);
        announce(&scene, rank, part, !(unread[rank] >> part & 1), false);
        break;
      case 2:
        if (!(unread[rank] >> part & 1)) break;
        unread[rank] &= (uint8_t) ~(1u << part);
        send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_LANDED, .rank = rank, .part = part});
        break;
      case 3:
        tick(&scene, scene.now_ns + zps_rng_u64(rng) % 10);
        break;
      case 4:
        if (scene.machine->is_closed)
          send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_REDUCED, .part = part});
        break;
      case 5:
        if (scene.machine->state == ZPS_SHARD_PUBLISHED) of_rank(&scene, ZPS_SHARD_NOTIFIED, rank);
        break;
      case 6:
        if (zps_shard_machine_reads(scene.machine, rank) && !done[rank]) {
          done[rank] = 1;
          of_rank(&scene, ZPS_SHARD_DONE, rank);
        }
        break;
      default:
        if (zps_rng_u64(rng) % 20 > 0 || left[rank]) break;
        left[rank] = 1;
        of_rank(&scene, zps_rng_u64(rng) % 2 ? ZPS_SHARD_CANCEL : ZPS_SHARD_GONE, rank);
    }
    assert_true(scene.machine->n_reading <= world && scene.machine->n_late <= world && scene.machine->n_full <= world);
    assert_true(!is_late || zps_shard_machine_is_late(scene.machine, rank)); /* for good */
    if (scene.machine->is_closed) assert_true(world - zps_shard_machine_count_late(scene.machine) >= quorum);
  }
  /* All that can still happen does. */
  for (unsigned turn = 0; turn < 3 && !zps_shard_machine_over(scene.machine); turn++) {
    for (uint32_t rank = 0; rank < world; rank++)
      for (uint32_t part = 0; part < PARTS; part++) {
        if (left[rank]) continue;
        if (!(said[rank] >> part & 1)) announce(&scene, rank, part, true, false);
        if (unread[rank] >> part & 1)
          send(&scene, (struct zps_shard_machine_event){.type = ZPS_SHARD_LANDED, .rank = rank, .part = part});
        said[rank] |= (uint8_t)(1u << part);
        unread[rank] &= (uint8_t) ~(1u << part);
      }
    tick(&scene, scene.now_ns + 2000);
    if (scene.machine->is_closed) reduce(&scene);
    for (uint32_t rank = 0; rank < world; rank++) {
      of_rank(&scene, ZPS_SHARD_NOTIFIED, rank);
      if (zps_shard_machine_reads(scene.machine, rank)) of_rank(&scene, ZPS_SHARD_DONE, rank);
    }
  }
  assert_int_equal(scene.n_retired + scene.n_aborted, 1);
  assert_int_equal(scene.n_closed, scene.n_retired);
  scene_close(&scene);
}

static void test_every_order(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20000; seed++) {
    struct zps_rng rng = {seed};
    explore(&rng);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_closes_when_all_are_here),
      cmocka_unit_test(test_closes_after_the_grace),
      cmocka_unit_test(test_without_grace),
      cmocka_unit_test(test_deadline),
      cmocka_unit_test(test_deadline_without_a_push),
      cmocka_unit_test(test_ranks_that_give_up),
      cmocka_unit_test(test_left_with_a_sum),
      cmocka_unit_test(test_decided_by_an_earlier_epoch),
      cmocka_unit_test(test_wrong_decisions),
      cmocka_unit_test(test_ranks_that_only_give),
      cmocka_unit_test(test_pushes_that_are_lost_with_a_server),
      cmocka_unit_test(test_faults_of_late_ranks),
      cmocka_unit_test(test_faults_that_end_the_round),
      cmocka_unit_test(test_deadline_of_a_closed_round),
      cmocka_unit_test(test_sums_that_are_forgotten),
      cmocka_unit_test(test_every_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
