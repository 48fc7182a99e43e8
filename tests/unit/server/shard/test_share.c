/* How jobs share memory: what is granted to one leaves each other its own, and the oldest partition of all its half. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/base/rng.h"
#include "server/shard/share.h"

enum { JOBS = 5, LIMIT = 8000 };

struct jobs {
  struct zps_share share;
  struct zps_sharer sharers[JOBS];
  uint64_t used_bytes[JOBS];
};

static void jobs_open(struct jobs *jobs, unsigned n, const uint32_t *weights) {
  *jobs = (struct jobs){.share.limit_bytes = LIMIT};
  for (unsigned i = 0; i < n; i++) zps_share_add(&jobs->share, &jobs->sharers[i], weights[i], &jobs->used_bytes[i]);
}

static void take(struct jobs *jobs, unsigned i, bool is_oldest, uint64_t len_bytes) {
  jobs->used_bytes[i] += len_bytes;
  jobs->share.total_bytes += len_bytes;
  if (is_oldest) jobs->sharers[i].oldest_bytes += len_bytes;
}

static void put(struct jobs *jobs, unsigned i, bool is_oldest, uint64_t len_bytes) {
  jobs->used_bytes[i] -= len_bytes;
  jobs->share.total_bytes -= len_bytes;
  if (is_oldest) jobs->sharers[i].oldest_bytes -= len_bytes;
}

static bool fits_own(const struct jobs *jobs, unsigned i, bool is_oldest, uint64_t len_bytes) {
  return zps_share_fits_own(&jobs->share, &(struct zps_share_request){&jobs->sharers[i], is_oldest, len_bytes});
}

static bool fits_common(const struct jobs *jobs, unsigned i, bool is_oldest, uint64_t len_bytes) {
  return zps_share_fits_common(&jobs->share, &(struct zps_share_request){&jobs->sharers[i], is_oldest, len_bytes});
}

static bool may_fit(const struct jobs *jobs, unsigned i, uint64_t len_bytes) {
  return zps_share_may_fit(&jobs->share, &(struct zps_share_request){&jobs->sharers[i], false, len_bytes});
}

static void what_is_a_jobs_own_goes_by_weight(void **state) {
  (void)state;
  struct jobs jobs;
  jobs_open(&jobs, 2, (uint32_t[]){3, 1});
  assert_true(fits_own(&jobs, 0, false, 750)); /* of 8000, an eighth is 1000 */
  assert_false(fits_own(&jobs, 0, false, 751));
  assert_true(fits_own(&jobs, 1, false, 250));
  assert_false(fits_own(&jobs, 1, false, 251));
  take(&jobs, 1, false, 250);
  assert_false(fits_own(&jobs, 1, false, 1));
  assert_true(fits_own(&jobs, 1, true, 250)); /* and as much for its oldest partition */
  take(&jobs, 1, true, 250);
  assert_false(fits_own(&jobs, 1, true, 1));
  zps_share_remove(&jobs.share, &jobs.sharers[0]);
  zps_share_remove(&jobs.share, &jobs.sharers[0]); /* again: nothing to do */
  assert_true(fits_own(&jobs, 1, false, 750));     /* it is alone */
}

static void what_is_common_is_what_is_nobodys(void **state) {
  (void)state;
  struct jobs jobs;
  jobs_open(&jobs, 2, (uint32_t[]){1, 1});
  assert_true(fits_common(&jobs, 0, false, 2500)); /* half of the limit, without three times 500 */
  assert_false(fits_common(&jobs, 0, false, 2501));
  assert_true(may_fit(&jobs, 0, 2500));
  assert_false(may_fit(&jobs, 0, 2501));
  take(&jobs, 0, false, 2500);
  assert_false(fits_common(&jobs, 1, false, 501));
  assert_true(may_fit(&jobs, 1, 501));
  assert_true(fits_own(&jobs, 1, false, 500));
  jobs.share.total_bytes += 1500; /* of a job that is closed: nobody's, and there */
  assert_true(fits_own(&jobs, 1, true, 0));
  assert_false(fits_own(&jobs, 1, true, 1));
}

static void the_oldest_partition_of_all_keeps_nobody_out(void **state) {
  (void)state;
  struct jobs jobs;
  jobs_open(&jobs, 2, (uint32_t[]){1, 1});
  jobs.share.eldest = &jobs.sharers[0];
  take(&jobs, 0, true, 7000);
  assert_true(fits_own(&jobs, 1, false, 500));
  assert_true(fits_common(&jobs, 1, false, 2500));
  assert_true(fits_common(&jobs, 0, false, 2500));
  jobs.share.eldest = NULL;
  assert_false(fits_own(&jobs, 1, false, 500));
  assert_false(fits_common(&jobs, 1, false, 2500));
}

static void who_has_least_by_weight_is_first(void **state) {
  (void)state;
  struct jobs jobs;
  jobs_open(&jobs, 2, (uint32_t[]){3, 1});
  assert_false(zps_share_is_before(&jobs.sharers[0], &jobs.sharers[1]));
  assert_false(zps_share_is_before(&jobs.sharers[1], &jobs.sharers[0]));
  take(&jobs, 0, false, 299);
  take(&jobs, 1, false, 100);
  assert_true(zps_share_is_before(&jobs.sharers[0], &jobs.sharers[1]));
  take(&jobs, 0, false, 2);
  assert_true(zps_share_is_before(&jobs.sharers[1], &jobs.sharers[0]));
}

/* Whatever is asked for and comes back, in any order: the oldest partition of all finds half of the limit, and each job
 * its own. */
static void no_grant_takes_what_is_anothers(void **state) {
  (void)state;
  struct zps_rng rng = {.state = 5};
  for (unsigned turn = 0; turn < 200; turn++) {
    const unsigned n = 1 + (unsigned)zps_rng_below(&rng, JOBS);
    uint32_t weights[JOBS];
    uint64_t weights_sum = 0, n_granted = 0;
    struct jobs jobs;
    for (unsigned i = 0; i < n; i++) weights_sum += weights[i] = 1 + (uint32_t)zps_rng_below(&rng, 9);
    jobs_open(&jobs, n, weights);
    if (turn % 2) jobs.share.eldest = &jobs.sharers[0];
    for (unsigned step = 0; step < 500; step++) {
      const unsigned i = (unsigned)zps_rng_below(&rng, n);
      const bool is_oldest = zps_rng_below(&rng, 2), is_eldest = is_oldest && jobs.share.eldest == &jobs.sharers[i];
      const uint64_t oldest_bytes = jobs.sharers[i].oldest_bytes;
      const uint64_t has = is_oldest ? oldest_bytes : jobs.used_bytes[i] - oldest_bytes;
      const uint64_t len_bytes = 1 + zps_rng_below(&rng, 900);
      if (zps_rng_below(&rng, 3) == 0) {
        put(&jobs, i, is_oldest, zps_rng_below(&rng, has + 1));
      } else if (is_eldest) {
        if (jobs.share.total_bytes + len_bytes <= LIMIT) take(&jobs, i, true, len_bytes);
      } else if (fits_own(&jobs, i, is_oldest, len_bytes) || fits_common(&jobs, i, is_oldest, len_bytes)) {
        assert_true(is_oldest || has > 0 || may_fit(&jobs, i, len_bytes));
        take(&jobs, i, is_oldest, len_bytes);
        n_granted++;
      }
      const uint64_t eldest_bytes = jobs.share.eldest ? jobs.share.eldest->oldest_bytes : 0;
      assert_true(jobs.share.total_bytes - eldest_bytes <= LIMIT / 2);
      for (unsigned j = 0; j < n; j++) {
        const uint64_t half = LIMIT / 8 / weights_sum * weights[j], oldest = jobs.sharers[j].oldest_bytes;
        if (oldest < half && jobs.share.eldest != &jobs.sharers[j])
          assert_true(fits_own(&jobs, j, true, half - oldest));
        const uint64_t others = jobs.used_bytes[j] - oldest;
        if (others < half) assert_true(fits_own(&jobs, j, false, half - others));
      }
    }
    assert_true(n_granted > 20);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_a_jobs_own_goes_by_weight),
      cmocka_unit_test(what_is_common_is_what_is_nobodys),
      cmocka_unit_test(the_oldest_partition_of_all_keeps_nobody_out),
      cmocka_unit_test(who_has_least_by_weight_is_first),
      cmocka_unit_test(no_grant_takes_what_is_anothers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
