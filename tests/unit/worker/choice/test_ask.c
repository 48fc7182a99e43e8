/* Options of schemes between ranks that contradict each other, or the scheme: refused before any rank is asked, with an
 * error that names the option. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/choice/ask.h"

static const uint32_t levels[] = {4, 3, 1}, zero[] = {0, 12};
static const zenps_level_algorithm_t rings[] = {ZENPS_LEVEL_RING, ZENPS_LEVEL_RING, ZENPS_LEVEL_AUTO};
static const zenps_level_algorithm_t doubles[] = {ZENPS_LEVEL_AUTO, ZENPS_LEVEL_DOUBLING, ZENPS_LEVEL_AUTO};
static const zenps_level_algorithm_t strange[] = {ZENPS_LEVEL_RING, (zenps_level_algorithm_t)7, ZENPS_LEVEL_AUTO};

static zps_err_t ask_for(const zenps_tensor_options_t *given, struct zps_scheme_ask *ask, struct zps_error *error) {
  static char name[] = "run";
  const struct zps_worker_options job = {.job = name, .world = 12, .local_world = 1};
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  const size_t size = options.struct_size;
  const int block_bits = options.block_bits;
  options = *given;
  options.struct_size = size;
  options.block_bits = block_bits;
  *error = (struct zps_error){.text = ""};
  return zps_scheme_ask_init(ask, &options, &job, "t", 3000, 2, ZPS_DTYPE_F32, ZPS_VALUES_RAW, error);
}

static void refuses(void **state) {
  (void)state;
  static const struct {
    zenps_tensor_options_t given;
    const char *text;
  } cases[] = {
      {{.scheme = "split-allgather", .allgather = (zenps_allgather_t)3}, "allgather is 3; 0 (auto), 1 (direct) or 2"},
      {{.scheme = "balanced", .allgather = (zenps_allgather_t)3}, "allgather is 3"},
      {{.scheme = "ring", .allgather = ZENPS_ALLGATHER_DIRECT}, "allgather is for split-allgather, dsar and topkdsa"},
      {{.scheme = "balanced", .allgather = ZENPS_ALLGATHER_DIRECT},
       "allgather and delta are for schemes between ranks"},
      {{.scheme = "dsar", .bits = 4, .allgather = ZENPS_ALLGATHER_DOUBLING}, "levels go straight to every rank"},
      {{.scheme = "ring", .bits = 4}, "bits are for the dense halves of dsar and topkdsa, not for scheme ring"},
      {{.scheme = "split-allgather", .bits = 4}, "bits are for the dense halves of dsar and topkdsa"},
      {{.scheme = "agsparse", .delta = 1.5}, "delta is 1.5; a share of the rows, 0 to 1"},
      {{.scheme = "agsparse", .delta = -0.1}, "delta is -0.1"},
      {{.scheme = "auto", .delta = -0.1}, "delta is -0.1"},
      {{.scheme = "ring", .delta = 0.1}, "delta is for schemes that send sparse streams"},
      {{.scheme = "agsparse", .keep_zero_rows = 1, .delta = 0.1}, "streams that keep rows of zeros never become dense"},
      {{.scheme = "agsparse", .op = ZENPS_OP_MAX, .delta = 0.1}, "streams of a max or min never become dense"},
      {{.scheme = "blueconnect", .level_algorithms = rings}, "scheme blueconnect has no levels given"},
      {{.scheme = "two-level", .levels = levels, .n_levels = 3, .level_algorithms = rings}, "levels of blueconnect"},
      {{.scheme = "blueconnect", .levels = levels, .n_levels = 3, .level_algorithms = doubles},
       "level_algorithms[1] is doubling, but level 1 has 3 ranks, no power of two"},
      {{.scheme = "blueconnect", .levels = levels, .n_levels = 3, .level_algorithms = strange},
       "level_algorithms[1] is 7; 0 (auto), 1 (ring) or 2 (doubling)"},
      {{.scheme = "blueconnect", .levels = zero, .n_levels = 2},
       "product of the levels is not the number of ranks, 12"},
      {{.scheme = "blueconnect", .n_levels = 2}, "2 levels"},
      {{.scheme = "split-allgather", .levels = levels, .n_levels = 3}, "levels are for blueconnect, two-level and"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_ask ask;
    struct zps_error error;
    const zps_err_t err = ask_for(&cases[i].given, &ask, &error);
    if (err != ZPS_ERR_INVALID || !strstr(error.text, cases[i].text))
      fail_msg("case %u: %d, '%s' instead of '%s'", i, (int)err, error.text, cases[i].text);
  }
}

/* Rows of zeros can be kept where results tell which rows were sent. */
static void keeps_zero_rows(void **state) {
  (void)state;
  static const struct {
    const char *scheme;
    bool takes;
  } cases[] = {
      {"balanced", true},
      {"sparse-ps", true},
      {"recursive-doubling", true},
      {"split-allgather", true},
      {"agsparse", true},
      {"hierarchical", true},
      {"hierarchical:agsparse", true},
      {"auto", true},
      {"auto:any", true},
      {"auto:balanced,agsparse", true},
      {"auto:balanced,ring", false},
      {"auto:balanced,dsar", false},
      {"hierarchical:ring", false},
      {"hierarchical:dense-ps", false},
      {"dense-ps", false},
      {"omnireduce", false},
      {"ring", false},
      {"dsar", false},
      {"bitmap-split", false},
      {"oktopk", false},
      {"topka", false},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const zenps_tensor_options_t given = {.scheme = cases[i].scheme, .keep_zero_rows = 1};
    struct zps_scheme_ask ask;
    struct zps_error error;
    const zps_err_t err = ask_for(&given, &ask, &error);
    if (err != (cases[i].takes ? ZPS_OK : ZPS_ERR_UNSUPPORTED))
      fail_msg("%s: %d '%s'", cases[i].scheme, err, error.text);
    if (!cases[i].takes) assert_non_null(strstr(error.text, "keep_zero_rows is 1, but results of scheme"));
    for (unsigned s = 0; cases[i].takes && s < ZPS_PLAN_SCHEMES; s++)
      if (ask.choices >> s & 1) assert_true(zps_plan_scheme_shows_union((enum zps_plan_scheme)s));
  }
}

/* Servers alone know who contributes. */
static void counts_contributors(void **state) {
  (void)state;
  static const struct {
    const char *scheme;
    bool takes;
  } cases[] = {{"balanced", true},
               {"sparse-ps", true},
               {"dense-ps", true},
               {"omnireduce", true},
               {"auto", true},
               {"auto:balanced,sparse-ps", true},
               {"auto:any", true},
               {"agsparse", false},
               {"ring", false},
               {"hierarchical", false},
               {"auto:balanced,ring", false},
               {"auto:hierarchical", false}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const zenps_tensor_options_t given = {.scheme = cases[i].scheme, .op = ZENPS_OP_MEAN_PRESENT};
    struct zps_scheme_ask ask;
    struct zps_error error;
    const zps_err_t err = ask_for(&given, &ask, &error);
    if (err != (cases[i].takes ? ZPS_OK : ZPS_ERR_UNSUPPORTED))
      fail_msg("%s: %d '%s'", cases[i].scheme, err, error.text);
    if (!cases[i].takes) assert_non_null(strstr(error.text, "ranks count who contributes over servers alone"));
  }
}

static void takes(void **state) {
  (void)state;
  static const struct {
    zenps_tensor_options_t given;
    const char *text;
  } cases[] = {
      {{.scheme = "split-allgather", .allgather = ZENPS_ALLGATHER_DOUBLING, .delta = 0.5},
       "split-allgather allgather=doubling delta=0.5"},
      {{.scheme = "hierarchical:split-allgather", .allgather = ZENPS_ALLGATHER_DIRECT},
       "hierarchical:split-allgather allgather=direct"},
      {{.scheme = "dsar", .bits = 4}, "dsar bits=4"},
      {{.scheme = "blueconnect", .levels = levels, .n_levels = 3, .level_algorithms = rings},
       "blueconnect levels=4rx3rx1"},
      {{.scheme = "hierarchical:blueconnect", .levels = levels, .n_levels = 3, .level_algorithms = rings},
       "hierarchical:blueconnect levels=4rx3rx1"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct zps_scheme_ask ask;
    struct zps_error error;
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    if (ask_for(&cases[i].given, &ask, &error) != ZPS_OK) fail_msg("case %u: %s", i, error.text);
    assert_string_equal(zps_scheme_spec_text(&ask.spec, text), cases[i].text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(refuses), cmocka_unit_test(keeps_zero_rows),
                                     cmocka_unit_test(counts_contributors), cmocka_unit_test(takes)};
  return cmocka_run_group_tests_name("options of schemes", tests, NULL, NULL);
}
