/* Requests for memory: the order in which they are served, with a budget for a slab and a policy of the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/container.h"
#include "common/base/rng.h"
#include "common/session/memory.h"

enum { MOST = 32 };

struct owner;

struct request {
  struct zps_memory_wait wait;
  struct owner *owner;
  bool may_pass;  /* those behind it need not wait for it */
  unsigned again; /* how often it asks once more when it was served */
};

/* Requests of one test, the bytes that are free, and the requests that were served. A request for more than `limit` is
 * refused, and with it all of the owner's. */
struct owner {
  struct zps_memory_line memory;
  uint64_t free_bytes, limit;
  struct request requests[MOST];
  unsigned n, n_asked, n_served, n_refused;
  const struct request *served[MOST * 4];
  struct request *adds, *cancels; /* by the first that is served */
  const struct request *gives_up; /* while it is asked for */
};

static enum zps_memory_answer ask(void *ctx, struct zps_memory_wait *wait) {
  struct owner *owner = ctx;
  const struct request *request = zps_container_of(wait, struct request, wait);
  owner->n_asked++;
  if (wait->len_bytes > owner->limit) {
    for (unsigned i = 0; i < owner->n; i++) zps_memory_cancel(&owner->memory, &owner->requests[i].wait);
    owner->n_refused++;
    return ZPS_MEMORY_REFUSED;
  }
  if (owner->gives_up == request) {
    zps_memory_cancel(&owner->memory, wait);
    owner->gives_up = NULL;
  }
  if (wait->len_bytes > owner->free_bytes) return request->may_pass ? ZPS_MEMORY_PASSED : ZPS_MEMORY_LATER;
  owner->free_bytes -= wait->len_bytes;
  return ZPS_MEMORY_NOW;
}

static void granted(struct zps_memory_wait *wait) {
  struct request *request = zps_container_of(wait, struct request, wait);
  struct owner *owner = request->owner;
  assert_false(wait->is_queued);
  owner->served[owner->n_served++] = request;
  if (request->again > 0) {
    request->again--;
    zps_memory_add(&owner->memory, wait);
  }
  if (owner->cancels) zps_memory_cancel(&owner->memory, &owner->cancels->wait);
  if (owner->adds) zps_memory_add(&owner->memory, &owner->adds->wait);
  owner->adds = owner->cancels = NULL;
  zps_memory_serve(&owner->memory); /* left to the call that is under way */
}

static void owner_init(struct owner *owner, uint64_t free_bytes) {
  *owner = (struct owner){.free_bytes = free_bytes, .limit = 1000};
  zps_memory_init(&owner->memory, ask, owner);
}

static struct request *request_new(struct owner *owner, uint64_t age, uint32_t part, uint64_t len_bytes) {
  struct request *request = &owner->requests[owner->n++];
  *request =
      (struct request){.owner = owner, .wait = {.age = age, .part = part, .len_bytes = len_bytes, .granted = granted}};
  return request;
}

static struct request *request_add(struct owner *owner, uint64_t age, uint32_t part, uint64_t len_bytes) {
  struct request *request = request_new(owner, age, part, len_bytes);
  zps_memory_add(&owner->memory, &request->wait);
  return request;
}

static void free_and_serve(struct owner *owner, uint64_t bytes) {
  owner->free_bytes += bytes;
  zps_memory_serve(&owner->memory);
}

static void the_oldest_is_served_first(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 0);
  const struct request *e = request_add(&owner, 7, 1, 10), *a = request_add(&owner, 2, 5, 10),
                       *c = request_add(&owner, 7, 0, 10), *b = request_add(&owner, 2, 5, 10),
                       *d = request_add(&owner, 7, 0, 10);
  const struct request *order[] = {a, b, c, d, e};
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 0);
  assert_int_equal(owner.n_asked, 1); /* those behind the oldest are not asked for */
  for (unsigned i = 0; i < 5; i++) {
    free_and_serve(&owner, 10);
    assert_int_equal(owner.n_served, i + 1);
    assert_ptr_equal(owner.served[i], order[i]);
  }
  assert_null(owner.memory.first);
  assert_null(owner.memory.last);
}

static void one_that_waits_holds_up_those_behind_it_or_lets_them_pass(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 30);
  struct request *large = request_add(&owner, 1, 0, 100), *small = request_add(&owner, 2, 0, 20),
                 *last = request_add(&owner, 3, 0, 20);
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 0);
  large->may_pass = true;
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 1);
  assert_ptr_equal(owner.served[0], small);
  free_and_serve(&owner, 95); /* 105: the large one first, and then not enough for the last */
  assert_int_equal(owner.n_served, 2);
  assert_ptr_equal(owner.served[1], large);
  free_and_serve(&owner, 15);
  assert_ptr_equal(owner.served[2], last);
}

static void one_that_asks_again_keeps_its_place(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 20);
  struct request *first = request_add(&owner, 1, 0, 10), *second = request_add(&owner, 2, 0, 10);
  first->again = 2;
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 2);
  assert_ptr_equal(owner.served[1], first);
  free_and_serve(&owner, 20);
  assert_ptr_equal(owner.served[2], first);
  assert_ptr_equal(owner.served[3], second);
}

static void who_is_served_may_add_and_cancel(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 1000);
  struct request *first = request_add(&owner, 5, 0, 10), *second = request_add(&owner, 6, 0, 10),
                 *third = request_add(&owner, 7, 0, 10);
  owner.cancels = second;
  owner.adds = request_new(&owner, 1, 0, 10);
  const struct request *added = owner.adds;
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 3);
  assert_ptr_equal(owner.served[0], first);
  assert_ptr_equal(owner.served[1], added); /* the oldest by now */
  assert_ptr_equal(owner.served[2], third);
  zps_memory_cancel(&owner.memory, &second->wait); /* again: nothing to do */
  assert_null(owner.memory.first);
}

static void one_that_gives_up_when_asked_lets_the_others_pass(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 10);
  struct request *first = request_add(&owner, 1, 0, 100), *second = request_add(&owner, 2, 0, 100),
                 *third = request_add(&owner, 3, 0, 10);
  first->may_pass = second->may_pass = true;
  owner.gives_up = second;
  zps_memory_serve(&owner.memory);
  assert_false(second->wait.is_queued);
  assert_int_equal(owner.n_served, 1);
  assert_ptr_equal(owner.served[0], third);
  assert_ptr_equal(owner.memory.first, &first->wait);
  assert_ptr_equal(owner.memory.last, &first->wait);
}

static void who_is_refused_takes_its_requests_along(void **state) {
  (void)state;
  struct owner owner;
  owner_init(&owner, 1000);
  request_add(&owner, 1, 0, 2000);
  request_add(&owner, 2, 0, 10);
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_refused, 1);
  assert_int_equal(owner.n_served, 0);
  assert_null(owner.memory.first);
  assert_null(owner.memory.last);
  request_add(&owner, 3, 0, 10);
  zps_memory_serve(&owner.memory);
  assert_int_equal(owner.n_served, 1);
}

/* Under any requests that come and go, the line is in order, both ways, and the oldest request that waits lacks memory.
 * */
static void the_line_stays_in_order(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 11};
  struct owner owner;
  owner_init(&owner, 0);
  for (unsigned i = 0; i < MOST; i++) request_new(&owner, 0, 0, 1);
  for (unsigned step = 0; step < 20000; step++) {
    struct request *request = &owner.requests[zps_rng_below(&rng, MOST)];
    owner.n_served = 0;
    if (request->wait.is_queued) {
      zps_memory_cancel(&owner.memory, &request->wait);
    } else {
      request->wait.age = zps_rng_below(&rng, 6);
      request->wait.part = (uint32_t)zps_rng_below(&rng, 4);
      request->wait.len_bytes = 1 + zps_rng_below(&rng, 50);
      request->may_pass = zps_rng_below(&rng, 4) == 0;
      zps_memory_add(&owner.memory, &request->wait);
    }
    free_and_serve(&owner, zps_rng_below(&rng, 30));
    unsigned n = 0, n_queued = 0;
    const struct zps_memory_wait *before = NULL;
    bool held_up = false;
    for (const struct zps_memory_wait *wait = owner.memory.first; wait; before = wait, wait = wait->next, n++) {
      assert_ptr_equal(wait->prev, before);
      if (before) assert_true(before->age < wait->age || (before->age == wait->age && before->part <= wait->part));
      if (!held_up) assert_true(wait->len_bytes > owner.free_bytes);
      held_up |= !((const struct request *)wait)->may_pass;
    }
    assert_ptr_equal(owner.memory.last, before);
    for (unsigned i = 0; i < MOST; i++) n_queued += owner.requests[i].wait.is_queued;
    assert_int_equal(n, n_queued);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_oldest_is_served_first),
      cmocka_unit_test(one_that_waits_holds_up_those_behind_it_or_lets_them_pass),
      cmocka_unit_test(one_that_asks_again_keeps_its_place),
      cmocka_unit_test(who_is_served_may_add_and_cancel),
      cmocka_unit_test(one_that_gives_up_when_asked_lets_the_others_pass),
      cmocka_unit_test(who_is_refused_takes_its_requests_along),
      cmocka_unit_test(the_line_stays_in_order),
  };
  return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
