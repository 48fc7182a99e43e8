/* Options of schemes that contradict each other, or the scheme: refused before any rank is asked, with an
 * error that names the option. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/choice/scheme_ask.h"

static zps_err_t ask_for(const zenps_tensor_options_t *given, struct zps_scheme_ask *ask, struct zps_error *error) {
  static char name[] = "run";
  const struct zps_worker_options job = {.job = name, .world = 12, .local_world = 1};
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  const size_t size = options.struct_size;
  options = *given;
  options.struct_size = size;
  *error = (struct zps_error){.text = ""};
  return zps_scheme_ask_init(ask, &options, &job, "t", 3000, 2, ZPS_DTYPE_F32, ZPS_VALUES_RAW, error);
}

static void refuses(void **state) {
  (void)state;
  static const struct {
    zenps_tensor_options_t given;
    const char *text;
  } cases[] = {
      {{.scheme = "split-allgather:allgather=tree"}, "allgather is 'tree'; want auto, direct or doubling"},
      {{.scheme = "ring:allgather=direct"}, "allgather is for split-allgather, dsar, topkdsa, not for scheme ring"},
      {{.scheme = "balanced:allgather=direct"}, "not for scheme balanced"},
      {{.scheme = "dsar:bits=4,allgather=doubling"}, "levels go straight to every rank"},
      {{.scheme = "dsar:bits=3"}, "bits is '3'; want 0, 2, 4 or 8"},
      {{.scheme = "ring:bits=4"}, "bits is for dsar, topkdsa, not for scheme ring"},
      {{.scheme = "split-allgather:bits=4"}, "bits is for dsar, topkdsa, not for scheme split-allgather"},
      {{.scheme = "agsparse:delta=1.5"}, "delta is '1.5'; want a share of the rows, 0 to 1"},
      {{.scheme = "agsparse:delta=-0.1"}, "delta is '-0.1'"},
      {{.scheme = "auto:delta=nan"}, "delta is 'nan'"},
      {{.scheme = "ring:delta=0.1"}, "not for scheme ring"},
      {{.scheme = "agsparse:delta=0.1", .keep_zero_rows = 1}, "streams that keep rows of zeros never become dense"},
      {{.scheme = "agsparse:delta=0.1", .op = ZENPS_OP_MAX}, "streams of a max or min never become dense"},
      {{.scheme = "two-level:levels=4rx3rx1"}, "letters in levels are for blueconnect"},
      {{.scheme = "blueconnect:levels=4x3dx1"}, "levels has 3d, but doubling needs a power of two; take 3r"},
      {{.scheme = "blueconnect:levels=4zx3x1"}, "levels is '4zx3x1'; want 1 to 16 numbers of ranks such as 4x2"},
      {{.scheme = "blueconnect:levels=5x2"}, "product of the levels is not the number of ranks, 12"},
      {{.scheme = "split-allgather:levels=4x3"}, "levels is for two-level, blueconnect, hierarchical, not for scheme"},
      {{.scheme = "oktopk"}, "say how many, by k or density"},
      {{.scheme = "oktopk:k=3,density=0.1"}, "by k or density, not by both"},
      {{.scheme = "oktopk:k=3001"}, "k is 3001, more than the 3000 rows"},
      {{.scheme = "gaussiank:k=3,without=steering"}, "scheme gaussiank can do without no more than correction"},
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
      {{.scheme = "split-allgather:delta=0.50,allgather=doubling"}, "split-allgather:allgather=doubling,delta=0.5"},
      {{.scheme = "hierarchical:split-allgather,allgather=direct"}, "hierarchical:split-allgather,allgather=direct"},
      {{.scheme = "dsar:bits=4"}, "dsar:bits=4"},
      {{.scheme = "blueconnect:levels=4rx3rx1"}, "blueconnect:levels=4rx3rx1"},
      {{.scheme = "hierarchical:levels=4rx3rx1,blueconnect"}, "hierarchical:blueconnect,levels=4rx3rx1"},
      /* Defaults are the same however they are given; what a rank does for itself is not agreed on. */
      {{.scheme = "oktopk:tau=64,tau_threshold=32,density=0.01,contributed=1,chunks=1"}, "oktopk:k=30"},
      {{.scheme = "balanced:partitioner=hierarchical,hash_k=2"}, "balanced"},
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
