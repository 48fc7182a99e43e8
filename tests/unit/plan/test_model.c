/* Predictions against figures worked out by hand. */
#include "tests/unit/plan/plan_rig.h"

#include <math.h>
#include <string.h>

/* 1000 rows of one float, 10% each, 1000 bytes/s, 1 s of latency: numbers that a person can follow. */
static struct zps_plan_input small(uint32_t n) {
  struct zps_plan_input input = {.cluster = {.n = n,
                                             .ranks_per_host = 1,
                                             .net = {.bandwidth = 1000, .latency_s = 1},
                                             .host = {.bandwidth = 1e9, .latency_s = 0.001}},
                                 .tensor = {.rows = 1000, .width = 1, .value_bytes = 4},
                                 .profile = {.density = 0.1, .overlap = ZPS_PLAN_MEASURED},
                                 .codec = ZPS_PLAN_CODEC_COO,
                                 .published = true};
  zps_plan_curve_set(&input.profile.gamma, 1, 1);
  zps_plan_curve_set(&input.profile.gamma, 2, 1.5);
  zps_plan_curve_set(&input.profile.gamma, 4, 2);
  return input;
}

/* Equation 1: 3/4 (2 + 1) 800 bytes. */
static void test_balanced(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  struct zps_plan_cost cost = plan_cost(&input, ZPS_PLAN_BALANCED);
  plan_near(cost.wire_s, 1.8, 1e-9, "wire");
  plan_near(cost.latency_s, 2, 1e-9, "latency");
  plan_near(cost.time_s, 3.8, 1e-9, "time");
  plan_near(cost.rank_out, 600, 1e-9, "pushed");
  plan_near(cost.rank_in, 1200, 1e-9, "pulled");
  plan_near(cost.host_in, 1800, 1e-9, "into a host, its server's too");
  plan_near(cost.host_out, 1800, 1e-9, "out of a host");
  plan_near(cost.server_in, 800, 1e-9, "into a server");
  plan_near(cost.server_out, 1600, 1e-9, "out of a server");
  input.imbalance = 1.1;
  plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).wire_s, 1.98, 1e-9, "unevenly hashed");
}

/* Two servers of their own: each gets 4 * 400 bytes and gives 4 * 800. */
static void test_servers_apart(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  input.cluster.servers = 2;
  input.cluster.servers_apart = true;
  struct zps_plan_cost cost = plan_cost(&input, ZPS_PLAN_BALANCED);
  plan_near(cost.server_in, 1600, 1e-9, "into a server");
  plan_near(cost.server_out, 3200, 1e-9, "out of a server");
  plan_near(cost.rank_out, 800, 1e-9, "out of a rank");
  plan_near(cost.wire_s, 4.8, 1e-9, "wire");
  input.calibration.overlap = 1;
  plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).wire_s, 3.2, 1e-9, "pushes under pulls");
  input.calibration.overlap = 0;
  input.cluster.servers = 8; /* more than ranks: the ranks' own links decide, 800 and 1600 bytes */
  plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).wire_s, 2.4, 1e-9, "many servers");
  /* A server receives 4/s of a rank's bytes: from four on, another one is worth nothing. */
  assert_int_equal(zps_plan_servers_worth(&input, ZPS_PLAN_BALANCED, 16, 1.0001), 4);
  assert_int_equal(zps_plan_servers_worth(&input, ZPS_PLAN_RING, 16, 1.05), 0);
}

/* One server on one of four hosts: it takes in 3 * 800 bytes. */
static void test_few_shared_servers(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  input.cluster.servers = 1;
  plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).wire_s, 2.4 + 4.8, 1e-9, "wire");
}

/* Equation 2: stages of 800 and 1200 bytes; three ranks fold: 800, 1200 of two, and the sum, gamma_3 = 1.5 * (4/3)^
 * (log2(3/2)). */
static void test_recursive_doubling(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  struct zps_plan_cost cost = plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING);
  plan_near(cost.wire_s, 2.0, 1e-9, "wire");
  plan_near(cost.latency_s, 2, 1e-9, "latency");
  input = small(3);
  cost = plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING);
  const double sum = 800 * 1.5 * pow(4.0 / 3, log2(1.5));
  plan_near(cost.wire_s, (800 + 1200 + sum) / 1000, 1e-9, "three ranks, one after another");
  plan_near(cost.rank_in, 800 + 800, 1e-9, "which gets its neighbour's, and the other's");
  plan_near(cost.rank_out, 1200 + sum, 1e-9, "and sends theirs, and the sum");
  plan_near(cost.messages, 2, 1e-9, "messages");
  plan_near(cost.latency_s, 3, 1e-9, "latency of three");
  input = small(4);
  input.cluster.ranks_per_host = 2; /* the first stage stays in the host; the second shares its link */
  cost = plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING);
  plan_near(cost.host_out, 2400, 1e-9, "two ranks' second stage");
  plan_near(cost.latency_s, 1.001, 1e-9, "one latency of each link");
  plan_near(cost.wire_s, 2.4 + 800 / 1e9, 1e-9, "wire");
}

static void test_agsparse(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  plan_near(plan_cost(&input, ZPS_PLAN_AGSPARSE).wire_s, 2.4, 1e-9, "3 * 800 bytes");
  input = small(5);
  struct zps_plan_cost cost = plan_cost(&input, ZPS_PLAN_AGSPARSE);
  plan_near(cost.rank_in, 3200, 1e-9, "any number of ranks");
  plan_near(cost.latency_s, 3, 1e-9, "ceil(log2(5))");
}

/* All rows in one quarter: the rank that has it receives 3 * 800 and its sum, 1600 bytes, is in both stages. */
static void test_split_with_skew(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  plan_near(plan_cost(&input, ZPS_PLAN_SPLIT_ALLGATHER).wire_s, 0.6 + 1.2, 1e-9, "even");
  zps_plan_curve_set(&input.profile.skew, 4, 4);
  plan_near(plan_cost(&input, ZPS_PLAN_SPLIT_ALLGATHER).wire_s, 2.4 + 3.2, 1e-9, "skewed");
  plan_near(plan_cost(&input, ZPS_PLAN_SPARSE_PS).wire_s, 2.4 + 4.8, 1e-9, "at servers");
  plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).wire_s, 1.8, 1e-9, "hashed: no skew");
}

static void test_dense(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  struct zps_plan_cost cost = plan_cost(&input, ZPS_PLAN_RING);
  plan_near(cost.wire_s, 6, 1e-9, "2 * 3/4 * 4000 bytes");
  plan_near(cost.latency_s, 6, 1e-9, "2 * 3 steps");
  cost = plan_cost(&input, ZPS_PLAN_RABENSEIFNER);
  plan_near(cost.wire_s, 6, 1e-9, "2 * 3/4 * 4000 bytes");
  plan_near(cost.latency_s, 4, 1e-9, "2 * log2(4) steps");
  plan_near(plan_cost(&input, ZPS_PLAN_DENSE_PS).wire_s, 6, 1e-9, "as many at servers");
  plan_near(plan_cost(&input, ZPS_PLAN_BLUECONNECT).wire_s, 6, 1e-9, "one level");
  input = small(6);
  plan_near(plan_cost(&input, ZPS_PLAN_RABENSEIFNER).rank_out, 4000 + 6000, 1e-9, "six fold to four");
}

/* A bit for each of 1000 rows, and 100 of them; as many bits and the 200 of the sum, or all 1000 where most are in it.
 */
static void test_bitmap_split(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  plan_near(plan_cost(&input, ZPS_PLAN_BITMAP_SPLIT).wire_s, 0.75 * (0.525 + 0.925), 1e-9, "few");
  plan_near(plan_cost(&input, ZPS_PLAN_BITMAP_SPLIT).latency_s, 6, 1e-9, "twice 3 messages");
  input.profile.density = 0.4;
  plan_near(plan_cost(&input, ZPS_PLAN_BITMAP_SPLIT).wire_s, 0.75 * (1.725 + 4), 1e-9, "most in the sum");
  input.profile.density = 0.1;
  zps_plan_curve_set(&input.profile.skew, 4, 4); /* all in one quarter, of which the sum has most */
  plan_near(plan_cost(&input, ZPS_PLAN_BITMAP_SPLIT).wire_s, 3 * (0.03125 + 0.4) + 3 * 1, 1e-9, "skewed");
}

/* Blocks: 1000 rows of 256 values, each block one row; 10% of them, 1024 bytes each. */
static void test_omnireduce(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  input.tensor.width = 256;
  plan_near(plan_cost(&input, ZPS_PLAN_OMNIREDUCE).wire_s, 0.75 * 3 * 102.4, 1e-9, "a block a row");
  input.tensor.width = 128; /* two rows a block: 1 - 0.9^2 of 500, and 1 - 0.8^2 of them in the sum */
  plan_near(plan_cost(&input, ZPS_PLAN_OMNIREDUCE).wire_s, 0.75 * (0.19 + 0.36) * 512, 1e-9, "two rows a block");
  input.profile.block_density = 0.1;
  plan_near(plan_cost(&input, ZPS_PLAN_OMNIREDUCE).wire_s, 0.75 * (0.1 + 0.2) * 512, 1e-9, "measured");
}

/* Two ranks a host, gamma_2 = 1.5: each host pushes 1200 bytes to two servers, and gets 1600. */
static void test_hierarchical(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  plan_near(plan_time(&input, ZPS_PLAN_HIERARCHICAL), plan_time(&input, ZPS_PLAN_BALANCED), 1e-9, "one rank a host");
  input.cluster.ranks_per_host = 2;
  plan_near(plan_cost(&input, ZPS_PLAN_HIERARCHICAL).wire_s, 0.5 * (1.2 + 1.6), 1e-5, "between two hosts");
  assert_true(plan_time(&input, ZPS_PLAN_HIERARCHICAL) < plan_time(&input, ZPS_PLAN_BALANCED));
  input.cluster.ranks_per_host = 4; /* one host: nothing leaves it */
  assert_true(plan_cost(&input, ZPS_PLAN_HIERARCHICAL).wire_s < 1e-4);
}

/* Independent rows of single floats, a server on each host, codes at their entropy: bytes out of a host's link over
 * those of the tensor. Ranks that push and pull each for themselves send more than a dense ring does as soon as hosts
 * have several of them; merged first, they send a fraction. By hand for 16 ranks of which 4 share a host, 1%: a rank
 * pushes 0.0125, 3/4 of it out; the sum, of 0.149 of the rows, takes 0.167, a quarter of which each host serves to 12
 * ranks: 4 * 0.0125 * 3/4 + 12/4 * 0.167 = 0.54. Merged, 0.0469 * 3/4 + 3/4 * 0.167 = 0.16. */
static void test_hosts_with_several_ranks(void **state) {
  (void)state;
  static const struct {
    uint32_t n, per_host;
    double density, flat, merged, ring;
  } cases[] = {{16, 4, 0.001, 0.063, 0.019, 1.88}, {16, 4, 0.01, 0.54, 0.16, 1.88}, {16, 4, 0.05, 1.95, 0.60, 1.88},
               {64, 4, 0.001, 0.277, 0.073, 1.97}, {64, 4, 0.01, 1.94, 0.52, 1.97}, {64, 4, 0.05, 3.86, 1.10, 1.97},
               {64, 8, 0.001, 0.517, 0.072, 1.97}, {64, 8, 0.01, 3.63, 0.52, 1.97}, {64, 8, 0.05, 7.20, 1.17, 1.97}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_plan_input input = small(cases[i].n);
    input.tensor.rows = 1 << 24;
    input.codec = ZPS_PLAN_CODEC_AUTO;
    input.profile = (struct zps_plan_profile){.density = cases[i].density, .overlap = ZPS_PLAN_INDEPENDENT};
    input.cluster.ranks_per_host = cases[i].per_host;
    const double whole = 4.0 * (1 << 24);
    plan_near(plan_cost(&input, ZPS_PLAN_BALANCED).host_out / whole, cases[i].flat, 0.02, "each for itself");
    plan_near(plan_cost(&input, ZPS_PLAN_HIERARCHICAL).host_out / whole, cases[i].merged, 0.04, "merged by host");
    plan_near(plan_cost(&input, ZPS_PLAN_RING).host_out / whole, cases[i].ring, 0.01, "a dense ring");
  }
}

static void test_codecs(void **state) {
  (void)state;
  struct zps_plan_input input = small(4);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PULL, 1000, 100) == 800);
  input.codec = ZPS_PLAN_CODEC_PAPER;
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PUSH, 1000, 100) == 800);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PULL, 1000, 100) == 525);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_STREAM, 1000, 500) == 4000); /* delta: half */
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_STREAM, 1000, 501) == 4000);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_STREAM, 1000, 499) == 3992);
  input.codec = ZPS_PLAN_CODEC_AUTO; /* H(1/2) = 1 bit */
  plan_near(zps_plan_message_bytes(&input, ZPS_PLAN_PUSH, 1000, 500), 2000 + 125, 1e-12, "entropy");
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PUSH, 1000, 1000) == 4000);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PUSH, 1000, 0) == 0);
  input.tensor.served_bytes = 2; /* bf16 to servers alone */
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_PUSH, 1000, 1000) == 2000);
  assert_true(zps_plan_message_bytes(&input, ZPS_PLAN_STREAM, 1000, 1000) == 4000);
}

/* With every scheme: no NaN, nothing negative, nothing to do for one rank on the wire, and more ranks' sums cost no
 * less where the links are the same. */
static void test_every_scheme_everywhere(void **state) {
  (void)state;
  static const double densities[] = {0, 1e-4, 0.01, 0.3, 1};
  static const uint32_t counts[] = {1, 2, 3, 4, 5, 7, 8, 12, 16, 100, 4096};
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    for (unsigned d = 0; d < sizeof densities / sizeof densities[0]; d++) {
      for (unsigned c = 0; c < 3 * sizeof counts / sizeof counts[0]; c++) {
        struct zps_plan_input input = small(counts[c / 3]);
        input.profile.density = densities[d];
        input.codec = (enum zps_plan_codec)(c % 3);
        input.cluster.ranks_per_host = 1 + c % 3;
        if (c % 3 == 2) zps_plan_calibration_default(&input.calibration);
        const struct zps_plan_cost cost = plan_cost(&input, (enum zps_plan_scheme)s);
        const double *numbers = &cost.time_s;
        for (unsigned i = 0; i < sizeof cost / sizeof(double); i++) {
          if (!isfinite(numbers[i]) || numbers[i] < 0)
            fail_msg("%s, %u ranks, density %g: number %u is %g", zps_plan_scheme_name((enum zps_plan_scheme)s),
                     input.cluster.n, densities[d], i, numbers[i]);
        }
        if (input.cluster.n == 1) assert_true(cost.host_out == 0 && cost.host_in == 0);
      }
    }
  }
}

static void test_schemes_have_names(void **state) {
  (void)state;
  enum zps_plan_scheme scheme;
  for (unsigned i = 0; i <= ZPS_PLAN_AUTO; i++) {
    assert_true(zps_plan_scheme_parse(zps_plan_scheme_name((enum zps_plan_scheme)i), &scheme));
    assert_int_equal(scheme, i);
  }
  assert_false(zps_plan_scheme_parse("ok-topk", &scheme));
  assert_string_equal(zps_plan_scheme_name((enum zps_plan_scheme)77), "?");
  assert_true(zps_plan_scheme_lossy(ZPS_PLAN_OKTOPK) && zps_plan_scheme_lossy(ZPS_PLAN_GAUSSIANK));
  assert_false(zps_plan_scheme_lossy(ZPS_PLAN_HIERARCHICAL) || zps_plan_scheme_lossy(ZPS_PLAN_BLUECONNECT));
  assert_true(zps_plan_scheme_all_values(ZPS_PLAN_DENSE_PS) && zps_plan_scheme_all_values(ZPS_PLAN_BLUECONNECT));
  assert_false(zps_plan_scheme_all_values(ZPS_PLAN_SPARSE_PS) || zps_plan_scheme_all_values(ZPS_PLAN_OKTOPK));
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme one = (enum zps_plan_scheme)i;
    assert_false(zps_plan_scheme_alike(one) && zps_plan_scheme_lossy(one));
    assert_false(zps_plan_scheme_all_values(one) &&
                 (zps_plan_scheme_shows_union(one) || zps_plan_scheme_finds_rows(one)));
  }
  assert_int_equal(zps_plan_lossless() >> ZPS_PLAN_OKTOPK & 0x1f, 0);
}

static void test_what_cannot_be(void **state) {
  (void)state;
  struct zps_error error;
  struct zps_plan_input input = small(4);
  assert_int_equal(zps_plan_check(&input, &error), ZPS_OK);
  input.profile.density = NAN;
  assert_int_equal(zps_plan_check(&input, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "between 0 and 1"));
  input = small(0);
  assert_int_equal(zps_plan_check(&input, &error), ZPS_ERR_INVALID);
  input = small(4);
  input.cluster.net.bandwidth = 0;
  assert_int_equal(zps_plan_check(&input, &error), ZPS_ERR_INVALID);
  input = small(4);
  input.tensor.rows = 0;
  assert_int_equal(zps_plan_check(&input, &error), ZPS_ERR_INVALID);
}

/* 1e6 values scanned at 1 ns, 1e5 rows at 10 + 5 ns: 2.5 ms; half as much on two threads. */
static void test_computing(void **state) {
  (void)state;
  struct zps_plan_input input = small(1);
  input.tensor.rows = 1000000;
  input.calibration = (struct zps_plan_calibration){.scan_value_ns = 1, .encode_row_ns = 10, .encode_value_ns = 5};
  plan_near(plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING).compute_s, 2.5e-3, 1e-9, "encoding");
  zps_plan_calibration_scale(&input.calibration, 2);
  plan_near(plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING).compute_s, 5e-3, 1e-9, "a slower machine");
  input.calibration.threads = 2;
  plan_near(plan_cost(&input, ZPS_PLAN_RECURSIVE_DOUBLING).compute_s, 2.5e-3, 1e-9, "two threads");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_balanced),
      cmocka_unit_test(test_servers_apart),
      cmocka_unit_test(test_few_shared_servers),
      cmocka_unit_test(test_recursive_doubling),
      cmocka_unit_test(test_agsparse),
      cmocka_unit_test(test_split_with_skew),
      cmocka_unit_test(test_dense),
      cmocka_unit_test(test_bitmap_split),
      cmocka_unit_test(test_omnireduce),
      cmocka_unit_test(test_hierarchical),
      cmocka_unit_test(test_hosts_with_several_ranks),
      cmocka_unit_test(test_codecs),
      cmocka_unit_test(test_computing),
      cmocka_unit_test(test_every_scheme_everywhere),
      cmocka_unit_test(test_schemes_have_names),
      cmocka_unit_test(test_what_cannot_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
