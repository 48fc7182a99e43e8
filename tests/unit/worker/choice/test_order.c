/* The order of sums that a tensor asks for: which schemes it leaves to the choice, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/choice/scheme_ask.h"

static const struct zps_worker_options job = {.world = 4};

static zps_err_t ask_for(const char *scheme, int order, zenps_op_t op, bool narrow, unsigned *choices_p,
                         struct zps_error *error) {
  zenps_tensor_options_t options;
  struct zps_scheme_ask ask;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.scheme = scheme;
  options.order = (zenps_order_t)order;
  options.op = op;
  error->text[0] = '\0';
  const zps_err_t err = zps_scheme_ask_init(&ask, &options, &job, "t", 1000, 1, ZPS_DTYPE_F32,
                                            narrow ? ZPS_VALUES_BF16 : ZPS_VALUES_RAW, error);
  *choices_p = ask.choices;
  return err;
}

static unsigned choices(const char *scheme, int order, zenps_op_t op, bool narrow) {
  struct zps_error error;
  unsigned bits;
  if (ask_for(scheme, order, op, narrow, &bits, &error) != ZPS_OK) fail_msg("%s: %s", scheme, error.text);
  return bits;
}

static void refused(const char *scheme, int order, zps_err_t code, const char *says) {
  struct zps_error error;
  unsigned bits;
  assert_int_equal(ask_for(scheme, order, ZENPS_OP_SUM, false, &bits, &error), code);
  if (!strstr(error.text, says)) fail_msg("%s, order %d: '%s' does not say '%s'", scheme, order, error.text, says);
}

static bool has(unsigned schemes, enum zps_plan_scheme scheme) {
  return schemes >> scheme & 1;
}

static void test_auto_is_in_rank_order(void **state) {
  (void)state;
  const unsigned plain = choices("auto", 0, ZENPS_OP_SUM, false);
  assert_int_equal(plain, choices("auto", ZENPS_ORDER_RANKS, ZENPS_OP_SUM, false));
  assert_int_equal(plain, choices("auto:ranks", 0, ZENPS_OP_SUM, false));
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    assert_int_equal(has(plain, (enum zps_plan_scheme)i), zps_plan_scheme_alike((enum zps_plan_scheme)i));
}

static void test_any_order_adds_what_loses_nothing(void **state) {
  (void)state;
  const unsigned any = choices("auto:any", 0, ZENPS_OP_SUM, false), plain = choices("auto", 0, ZENPS_OP_SUM, false);
  assert_int_equal(any, choices("auto", ZENPS_ORDER_ANY, ZENPS_OP_SUM, false));
  assert_int_equal(any, choices("auto:any", ZENPS_ORDER_ANY, ZENPS_OP_SUM, false));
  assert_int_equal(any & plain, plain);
  static const enum zps_plan_scheme more[] = {ZPS_PLAN_RECURSIVE_DOUBLING, ZPS_PLAN_RING,        ZPS_PLAN_RABENSEIFNER,
                                              ZPS_PLAN_TWO_LEVEL,          ZPS_PLAN_BLUECONNECT, ZPS_PLAN_HIERARCHICAL};
  for (unsigned i = 0; i < sizeof more / sizeof more[0]; i++) assert_true(has(any, more[i]) && !has(plain, more[i]));
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (has(any, (enum zps_plan_scheme)i)) assert_false(zps_plan_scheme_lossy((enum zps_plan_scheme)i));
  assert_false(has(any, ZPS_PLAN_OMNIREDUCE));
}

/* What a max or narrowed values leave out, any order leaves out as well. */
static void test_other_options_still_limit(void **state) {
  (void)state;
  const unsigned max = choices("auto:any", 0, ZENPS_OP_MAX, false), narrow = choices("auto:any", 0, ZENPS_OP_SUM, true);
  assert_true(has(max, ZPS_PLAN_RECURSIVE_DOUBLING) && has(max, ZPS_PLAN_HIERARCHICAL));
  assert_false(has(max, ZPS_PLAN_RING) || has(max, ZPS_PLAN_DSAR));
  assert_int_equal(narrow, 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_SPARSE_PS);
}

static void test_an_order_is_demanded_of_named_schemes(void **state) {
  (void)state;
  const unsigned both = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_AGSPARSE;
  assert_int_equal(choices("auto:balanced,agsparse", ZENPS_ORDER_RANKS, ZENPS_OP_SUM, false), both);
  choices("balanced", ZENPS_ORDER_RANKS, ZENPS_OP_SUM, false);
  choices("dense-split", ZENPS_ORDER_RANKS, ZENPS_OP_SUM, false);
  choices("ring", ZENPS_ORDER_ANY, ZENPS_OP_SUM, false);
  choices("auto:balanced,ring", ZENPS_ORDER_ANY, ZENPS_OP_SUM, false);
  refused("ring", ZENPS_ORDER_RANKS, ZPS_ERR_UNSUPPORTED, "scheme ring adds in an order of its own");
  refused("hierarchical:balanced", ZENPS_ORDER_RANKS, ZPS_ERR_UNSUPPORTED, "scheme hierarchical adds in an order");
  refused("auto:balanced,ring", ZENPS_ORDER_RANKS, ZPS_ERR_UNSUPPORTED, "scheme ring adds in an order of its own");
}

static void test_what_contradicts_itself(void **state) {
  (void)state;
  refused("auto:any", ZENPS_ORDER_RANKS, ZPS_ERR_INVALID, "auto:any and option order contradict each other");
  refused("auto:ranks", ZENPS_ORDER_ANY, ZPS_ERR_INVALID, "auto:ranks and option order contradict each other");
  refused("auto", 3, ZPS_ERR_INVALID, "order 3 is none of ZENPS_ORDER_RANKS, ZENPS_ORDER_ANY");
  refused("balanced", -1, ZPS_ERR_INVALID, "order -1 is none of");
  refused("auto:any,ring", 0, ZPS_ERR_INVALID, "there is no scheme 'any'");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_auto_is_in_rank_order),     cmocka_unit_test(test_any_order_adds_what_loses_nothing),
      cmocka_unit_test(test_other_options_still_limit), cmocka_unit_test(test_an_order_is_demanded_of_named_schemes),
      cmocka_unit_test(test_what_contradicts_itself),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
