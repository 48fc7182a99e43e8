/* The text of a scheme with its options: read, refused by name, and written in the one form that ranks agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/plan/scheme_options.h"

static void refuses(void **state) {
  (void)state;
  static const struct {
    const char *text, *error;
  } cases[] = {
      {"oktopk:tua=5",
       "scheme oktopk has no option 'tua'; it has: k density chunks tau tau_threshold without contributed; "
       "did you mean 'tau'?"},
      {"balanced:fast=1",
       "scheme balanced has no option 'fast'; it has: partitioner block_bits hash_k hash_r1 hash_r2"},
      {"recursive-doubling:detla=1", "scheme recursive-doubling has no option 'detla'; it has: delta; did you mean"},
      {"ring:tau=5", "tau is for oktopk, not for scheme ring"},
      {"auto:ring,k=5", "k is for oktopk, gtopk, topka, topkdsa, gaussiank, not for scheme auto:ring"},
      {"auto:any,density=0.5", "not for scheme auto:any"},
      {"oktopk:k=1,k=1", "scheme oktopk: k is given twice; leave one out"},
      {"oktopk:k=", "k is ''; want 0 to 1099511627776"},
      {"oktopk:k=-1", "k is '-1'; want 0 to"},
      {"oktopk:k=5x", "k is '5x'; want 0 to"},
      {"oktopk:k=99999999999999999999", "want 0 to 1099511627776"},
      {"oktopk:tau=4294967296", "tau is '4294967296'; want 0 to 4294967295"},
      {"oktopk:density=1.01", "density is '1.01'; want a share of the rows, 0 to 1"},
      {"oktopk:density=-0", "density is '-0'"},
      {"oktopk:contributed=yes", "contributed is 'yes'; want 0 to 1"},
      {"oktopk:without=balance", "without: no scheme has a part 'balance' that it can do without"},
      {"oktopk:without=correction", "scheme oktopk can do without no more than rotation+bucketing+repartition"},
      {"balanced:partitioner=murmer", "want stratified, murmur or hierarchical; did you mean 'murmur'?"},
      {"blueconnect:levels=0x2", "levels is '0x2'; want 1 to 16 numbers of ranks"},
      {"blueconnect:levels=2x", "levels is '2x'"},
      {"blueconnect:levels=1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1", "levels is '1x1"},
      {":k=5", "k is for oktopk, gtopk, topka, topkdsa, gaussiank, not for scheme ring"},
      {":chunks=5", "chunks is given twice"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_text scheme;
    struct zps_error error = {.text = ""};
    assert_int_equal(zps_scheme_text_parse(cases[i].text, "ring:chunks=2", &scheme, &error), ZPS_ERR_INVALID);
    if (!strstr(error.text, cases[i].error)) fail_msg("'%s': '%s'", cases[i].text, error.text);
  }
  char large[ZPS_SCHEME_TEXT_MAX + 2];
  struct zps_scheme_text scheme;
  struct zps_error error;
  memset(large, 'a', sizeof large);
  large[sizeof large - 1] = '\0';
  assert_int_equal(zps_scheme_text_parse(large, "", &scheme, &error), ZPS_ERR_INVALID);
  large[sizeof large - 2] = '\0';
  assert_int_equal(zps_scheme_text_parse(large, "", &scheme, &error), ZPS_OK);
}

/* What is read is written in the order of the table, and reads back as the same. */
static void writes(void **state) {
  (void)state;
  static const struct {
    const char *text, *scheme, *written;
  } cases[] = {
      {"ring", "ring", "ring"},
      {"no-such:tau=5", "no-such", "no-such:tau=5"},
      {"balanced:", "balanced:", "balanced:"},
      {"auto:any", "auto:any", "auto:any"},
      {"auto:ring,chunks=3,balanced", "auto:ring,balanced", "auto:ring,balanced,chunks=3"},
      {"auto:bits=4", "auto", "auto:bits=4"},
      {"hierarchical:partitioner=murmur", "hierarchical", "hierarchical:partitioner=murmur"},
      {"hierarchical:ring,levels=4x2,chunks=2", "hierarchical:ring", "hierarchical:ring,levels=4x2,chunks=2"},
      {"oktopk:without=steering+rotation,tau=64,k=5", "oktopk", "oktopk:k=5,tau=64,without=rotation+steering"},
      {"topkdsa:density=.1,allgather=auto,delta=0.30000000000000004", "topkdsa",
       "topkdsa:density=0.1,delta=0.30000000000000004"},
      {"blueconnect:levels=4rx2d", "blueconnect", "blueconnect:levels=4rx2d"},
      {":delta=0.5", "auto:ring,agsparse", "auto:ring,agsparse,chunks=2,delta=0.5"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_text scheme, again;
    struct zps_error error = {.text = ""};
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    if (zps_scheme_text_parse(cases[i].text, "auto:ring,agsparse,chunks=2", &scheme, &error) != ZPS_OK)
      fail_msg("'%s': '%s'", cases[i].text, error.text);
    assert_string_equal(scheme.scheme, cases[i].scheme);
    snprintf(text, sizeof text, "%s", scheme.scheme);
    assert_string_equal(zps_scheme_options_add(&scheme.options, text), cases[i].written);
    assert_int_equal(zps_scheme_text_parse(text, "", &again, &error), ZPS_OK);
    assert_memory_equal(&again, &scheme, sizeof scheme);
  }
}

/* Each scheme of auto's gets the options that it takes; ranks agree on one form. */
static void divides(void **state) {
  (void)state;
  struct zps_scheme_text all, want;
  struct zps_error error;
  assert_int_equal(
      zps_scheme_text_parse("auto:oktopk,ring,gaussiank,k=5,tau=64,tau_threshold=8,chunks=2,without=steering+"
                            "correction,contributed=1",
                            "", &all, &error),
      ZPS_OK);
  static const struct {
    enum zps_plan_scheme scheme;
    const char *text;
  } cases[] = {{ZPS_PLAN_RING, "ring:chunks=2"},
               {ZPS_PLAN_GAUSSIANK, "gaussiank:k=5,without=correction,contributed=1"},
               {ZPS_PLAN_OKTOPK, "oktopk:k=5,chunks=2,tau=64,tau_threshold=8,without=steering,contributed=1"},
               {ZPS_PLAN_BALANCED, "balanced"}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_options own = all.options;
    zps_scheme_options_keep(&own, 1u << cases[i].scheme);
    assert_int_equal(zps_scheme_text_parse(cases[i].text, "", &want, &error), ZPS_OK);
    assert_memory_equal(&own, &want.options, sizeof own);
  }
  struct zps_scheme_options shared = all.options;
  zps_scheme_options_share(&shared);
  assert_true(shared.boundary_period == 0 && shared.threshold_period == 8 && shared.contributed == 0);
  assert_false(zps_scheme_options_same(&shared, &all.options));
  all.options.boundary_period = 0;
  assert_true(zps_scheme_options_same(&shared, &all.options));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refuses), cmocka_unit_test(writes), cmocka_unit_test(divides)};
  return cmocka_run_group_tests_name("options of schemes in texts", tests, NULL, NULL);
}
