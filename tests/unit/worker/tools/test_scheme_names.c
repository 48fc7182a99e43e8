/* Every name of the planner's list is taken by zenps-perf and means something to the library, alone and behind auto. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/plan/schemes.h"
#include "worker/choice/scheme_ask.h"
#include "worker/tools/perf.h"

static const struct zps_worker_options job = {.world = 4};

static zps_err_t ask_for(const char *name, const char *option, struct zps_scheme_ask *ask, struct zps_error *error) {
  char scheme[96];
  char program[] = "zenps-perf", *args[] = {program, scheme, NULL};
  struct perf_options options;
  zenps_tensor_options_t tensor;
  bool exit_now;
  snprintf(scheme, sizeof scheme, "--scheme=%s%s", name, option);
  zps_err_t err = perf_options_load(2, args, &options, &exit_now, error);
  if (err != ZPS_OK) return err;
  perf_options_tensor(&options, &tensor);
  err = zps_scheme_ask_init(ask, &tensor, &job, "t", 1000, 1, ZPS_DTYPE_F32, ZPS_VALUES_RAW, error);
  perf_options_fini(&options);
  return err;
}

static void every_name_is_accepted(void **state) {
  (void)state;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    const char *const name = zps_plan_scheme_name(scheme);
    struct zps_scheme_ask ask;
    struct zps_error error = {.text = ""};
    if (ask_for(name, zps_plan_scheme_lossy(scheme) ? ":density=0.1" : "", &ask, &error) != ZPS_OK)
      fail_msg("%s", error.text);
    assert_string_equal(ask.spec.name, name);
    /* Over servers by themselves, or between their hosts. */
    assert_int_equal(ask.served || ask.between, zps_plan_scheme_served(scheme));
    char choice[64];
    snprintf(choice, sizeof choice, "auto:%s", name);
    if (ask_for(choice, "", &ask, &error) != ZPS_OK) fail_msg("%s", error.text);
    assert_int_equal(ask.choices, 1u << i);
  }
}

static void texts_hold_every_name_once(void **state) {
  (void)state;
  size_t all = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    char word[64];
    snprintf(word, sizeof word, " %s", zps_plan_scheme_name(scheme));
    all += strlen(word);
    assert_non_null(strstr(zps_plan_scheme_served(scheme) ? ZPS_PLAN_SERVED_TEXT : ZPS_PLAN_BETWEEN_TEXT, word));
  }
  assert_int_equal(strlen(ZPS_PLAN_ALL_TEXT), all);
  assert_int_equal(strlen(ZPS_PLAN_SERVED_TEXT) + strlen(ZPS_PLAN_BETWEEN_TEXT), all);
}

static void the_readme_has_every_scheme_and_its_paper(void **state) {
  (void)state;
  char path[4096];
  snprintf(path, sizeof path, "%s/worker/schemes/README.md", getenv("ZPS_TOP_SRCDIR") ? getenv("ZPS_TOP_SRCDIR") : ".");
  static char text[1 << 16];
  FILE *const file = fopen(path, "r");
  assert_non_null(file);
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    char row[128];
    snprintf(row, sizeof row, "\n| %s | %s |", zps_plan_scheme_name(scheme), zps_plan_scheme_paper(scheme));
    if (!strstr(text, row)) fail_msg("%s has no row '%s'", path, row + 1);
  }
}

static void others_are_refused_with_the_names(void **state) {
  (void)state;
  static const char *const others[] = {"fast", "Balanced", "auto:fast", "hierarchical:fast", "balanced:ring"};
  for (unsigned i = 0; i < sizeof others / sizeof others[0]; i++) {
    struct zps_scheme_ask ask;
    struct zps_error error = {.text = ""};
    assert_int_not_equal(ask_for(others[i], "", &ask, &error), ZPS_OK);
    if (i == 3) continue; /* names the schemes allowed between hosts */
    if (!strstr(error.text, "there are:" ZPS_PLAN_ALL_TEXT)) fail_msg("%s", error.text);
  }
}

static void a_name_that_is_nearly_one_is_recognised(void **state) {
  (void)state;
  static const struct {
    const char *typed, *end;
  } cases[] = {{"Balanced", "; did you mean 'balanced'?"},
               {"rnig", "; did you mean 'ring'?"},
               {"auto:ring,blueconect", "; did you mean 'blueconnect'?"},
               {"hierarchial:ring", "; did you mean 'hierarchical'?"},
               {"balanced:ring", " hierarchical:NAME"},
               {"fast", " hierarchical:NAME"}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_ask ask;
    struct zps_error error = {.text = ""};
    assert_int_not_equal(ask_for(cases[i].typed, "", &ask, &error), ZPS_OK);
    const size_t len = strlen(error.text), end = strlen(cases[i].end);
    assert_true(len > end);
    assert_string_equal(error.text + len - end, cases[i].end);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_name_is_accepted),
      cmocka_unit_test(texts_hold_every_name_once),
      cmocka_unit_test(the_readme_has_every_scheme_and_its_paper),
      cmocka_unit_test(others_are_refused_with_the_names),
      cmocka_unit_test(a_name_that_is_nearly_one_is_recognised),
  };
  return cmocka_run_group_tests_name("names of schemes", tests, NULL, NULL);
}
