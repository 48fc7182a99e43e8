/* zenpsctl plan, from its command line to its output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/ctl/plan.h"

/* The output for a command line, malloc'd. */
static char *run(const char *line, zps_err_t want, struct zps_error *error) {
  char *words = strdup(line), *argv[64], *save = NULL;
  int argc = 0;
  for (char *word = strtok_r(words, " ", &save); word && argc < 63; word = strtok_r(NULL, " ", &save))
    argv[argc++] = word;
  argv[argc] = NULL;
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  *error = (struct zps_error){.text = ""};
  const zps_err_t err = zps_ctl_plan_run(argc, argv, out, error);
  fclose(out);
  free(words);
  if (err != want) fail_msg("%s: %d, not %d: %s", line, err, want, error->text);
  return text;
}

static zps_json *report(const char *line) {
  struct zps_error error;
  char *text = run(line, ZPS_OK, &error);
  zps_json *value = NULL;
  if (zps_json_parse(text, strlen(text), &value, &error)) fail_msg("%s", error.text);
  free(text);
  return value;
}

static const zps_json *row_of(const zps_json *report_value, const char *array, const char *scheme) {
  const zps_json *rows = zps_json_get(report_value, array);
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *row = zps_json_at(rows, i);
    if (strcmp(zps_json_opt_str(row, "scheme", ""), scheme) == 0) return row;
  }
  fail_msg("no %s in %s", scheme, array);
  return NULL;
}

static double cost(const zps_json *report_value, const char *scheme, const char *key) {
  return zps_json_opt_real(row_of(report_value, "costs", scheme), key, -1);
}

#define NMT                                                                                                           \
  "plan --rows 112000000 --density 0.0247 --gamma 128:24.9 --skew 8:4.8,128:44 --run 512 --latency 0 --bandwidth 25 " \
  "--json "

/* Zen's claims (section 2.4), with its own codecs and with COO as in its equations. */
static void test_zens_own_setting(void **state) {
  (void)state;
  static const char *const rivals[] = {"recursive-doubling", "agsparse", "omnireduce", "sparse-ps", "ring"};
  for (unsigned codec = 0; codec < 2; codec++) {
    for (unsigned n = 16; n <= 128; n *= 2) {
      char line[400];
      snprintf(line, sizeof line, NMT "--codec %s --workers %u", codec ? "paper" : "coo", n);
      zps_json *zen = report(line);
      for (unsigned i = 0; i < sizeof rivals / sizeof rivals[0]; i++)
        assert_true(cost(zen, "balanced", "time_ms") < cost(zen, rivals[i], "time_ms"));
      zps_json_unref(zen);
    }
  }
  zps_json *zen = report(NMT "--codec paper");
  const zps_json *crossing = row_of(zen, "against_ring", "agsparse");
  char slower[8];
  assert_string_equal(zps_json_text(zps_json_get(crossing, "slower"), slower, sizeof slower), "true");
  const uint64_t from = zps_json_opt_u64(crossing, "from", 0);
  assert_true(from >= 38 && from <= 44);
  zps_json_unref(zen);
}

static void test_sets_that_hardly_overlap(void **state) {
  (void)state;
  zps_json *zen = report(
      "plan --rows 112000000 --density 0.0009 --gamma 8:7.39 --latency 0 --codec paper --workers 8 --workers-max 8 "
      "--schemes balanced,recursive-doubling,agsparse --json");
  assert_true(cost(zen, "recursive-doubling", "time_ms") < cost(zen, "balanced", "time_ms"));
  assert_true(cost(zen, "recursive-doubling", "time_ms") < cost(zen, "agsparse", "time_ms"));
  const zps_json *fastest = zps_json_get(zen, "fastest");
  const zps_json *last = zps_json_at(fastest, zps_json_array_len(fastest) - 1);
  assert_string_equal(zps_json_opt_str(last, "scheme", ""), "recursive-doubling");
  assert_int_equal(zps_json_opt_u64(last, "to", 0), 8);
  assert_int_equal(zps_json_array_len(zps_json_get(zen, "schemes")), 3);
  zps_json_unref(zen);
}

/* A scheme's text has its options here, too. */
static void test_options_of_schemes(void **state) {
  (void)state;
  static const char *const lines[] = {
      "plan --rows 100000 --workers 4 --schemes topka:k=100 --json",
      "plan --rows 100000 --workers 4 --schemes all,density=0.001,bits=4 --json",
      "plan --rows 100000 --workers 4 --schemes topka,dsar,k=200,bits=8 --json",
  };
  zps_json *plans[3];
  for (unsigned i = 0; i < 3; i++) plans[i] = report(lines[i]);
  assert_int_equal(zps_json_array_len(zps_json_get(plans[0], "schemes")), 1);
  assert_true(cost(plans[0], "topka", "time_ms") == cost(plans[1], "topka", "time_ms"));
  assert_true(cost(plans[0], "topka", "time_ms") < cost(plans[2], "topka", "time_ms"));
  assert_true(cost(plans[1], "dsar", "time_ms") < cost(plans[2], "dsar", "time_ms"));
  for (unsigned i = 0; i < 3; i++) zps_json_unref(plans[i]);
}

/* 1000 rows of one float, 10% each, no overlap, 8 Gbit/s = 1e9 bytes/s: equation 1 is 3/4 (4 + 1) 800 bytes. */
static void test_a_figure_by_hand(void **state) {
  (void)state;
  zps_json *plan = report(
      "plan -n 4 --workers-max 5 --rows 1000 --density 0.1 --overlap disjoint --bandwidth 8 --latency 0 --codec coo "
      "-j");
  assert_true(cost(plan, "balanced", "time_ms") > 2.999e-3 && cost(plan, "balanced", "time_ms") < 3.001e-3);
  assert_true(cost(plan, "balanced", "rank_out_bytes") == 600);
  assert_true(cost(plan, "balanced", "server_in_bytes") == 800);
  assert_true(cost(plan, "ring", "speedup") == 1);
  assert_int_equal(zps_json_array_len(zps_json_get(plan, "n")), 3); /* 2, 4, 5 */
  zps_json_unref(plan);
}

static void test_tables(void **state) {
  (void)state;
  struct zps_error error;
  char *text = run("plan --rows 100000 --servers-apart --ranks-per-host 4", ZPS_OK, &error);
  assert_non_null(strstr(text, "\nRANKS "));
  assert_non_null(strstr(text, "servers worth having"));
  assert_non_null(strstr(text, "\nfastest exact scheme: "));
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    char line[64];
    snprintf(line, sizeof line, "\n%s ", zps_plan_scheme_name((enum zps_plan_scheme)s));
    assert_non_null(strstr(text, line));
  }
  assert_null(strstr(text, "nan"));
  assert_null(strstr(text, "inf "));
  free(text);
}

static void test_trace(void **state) {
  (void)state;
  char path[] = "/tmp/zenps-plan-XXXXXX", line[200];
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  FILE *file = fdopen(fd, "w");
  for (unsigned i = 0; i < 64; i++) fprintf(file, "%u %u\n", i, 99 - i % 4);
  fclose(file);
  snprintf(line, sizeof line, "plan --trace %s --batch 1 --width 16 --json", path);
  zps_json *plan = report(line);
  const zps_json *profile = zps_json_get(plan, "profile");
  assert_int_equal(zps_json_opt_u64(profile, "rows", 0), 100);
  assert_true(zps_json_opt_real(profile, "density", 0) == 0.02);
  zps_json_unref(plan);
  struct zps_error error;
  snprintf(line, sizeof line, "plan --trace %s --batch 65", path);
  free(run(line, ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "batch of 65"));
  unlink(path);
  free(run(line, ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "cannot open"));
}

static void test_what_cannot_be(void **state) {
  (void)state;
  struct zps_error error;
  free(run("plan --schemes balanced,fast", ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "'fast'"));
  free(run("plan --schemes auto", ZPS_ERR_INVALID, &error));
  free(run("plan --schemes balanced,k=5", ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "k is for oktopk, gtopk"));
  free(run("plan --schemes oktopk:k=5,tau=9", ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "k, density and bits alone, not tau=9"));
  free(run("plan --gamma 2", ZPS_ERR_INVALID, &error));
  free(run("plan --density 1.5", ZPS_ERR_INVALID, &error));
  free(run("plan status", ZPS_ERR_INVALID, &error));
  free(run("plan --svg /nowhere/plan.svg", ZPS_ERR_INVALID, &error));
  assert_non_null(strstr(error.text, "cannot write"));
}

/* With gnuplot: a drawing. Without: a sentence that says so. */
static void test_svg(void **state) {
  (void)state;
  char path[] = "/tmp/zenps-plan-XXXXXX.svg", line[200];
  const int fd = mkstemps(path, 4);
  assert_true(fd >= 0);
  close(fd);
  snprintf(line, sizeof line, "plan --schemes lossless --svg %s", path);
  struct zps_error error;
  if (system("gnuplot --version >/dev/null 2>&1") != 0) {
    free(run(line, ZPS_ERR_UNSUPPORTED, &error));
    assert_non_null(strstr(error.text, "not installed"));
    unlink(path);
    skip();
  }
  free(run(line, ZPS_OK, &error));
  FILE *file = fopen(path, "r");
  static char svg[1 << 20];
  const size_t len = fread(svg, 1, sizeof svg - 1, file);
  fclose(file);
  unlink(path);
  svg[len] = '\0';
  assert_non_null(strstr(svg, "<svg"));
  assert_non_null(strstr(svg, "recursive-doubling"));
  assert_null(strstr(svg, "oktopk"));
}

static void test_svg_without_gnuplot(void **state) {
  (void)state;
  char path[] = "/tmp/zenps-plan-XXXXXX.svg", line[200];
  const int fd = mkstemps(path, 4);
  assert_true(fd >= 0);
  close(fd);
  char *const before = strdup(getenv("PATH") ? getenv("PATH") : "");
  setenv("PATH", "/nonexistent", 1);
  struct zps_error error;
  snprintf(line, sizeof line, "plan --svg %s", path);
  free(run(line, ZPS_ERR_UNSUPPORTED, &error));
  setenv("PATH", before, 1);
  free(before);
  unlink(path);
  assert_non_null(strstr(error.text, "needs gnuplot"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_zens_own_setting),
      cmocka_unit_test(test_sets_that_hardly_overlap),
      cmocka_unit_test(test_options_of_schemes),
      cmocka_unit_test(test_a_figure_by_hand),
      cmocka_unit_test(test_tables),
      cmocka_unit_test(test_trace),
      cmocka_unit_test(test_what_cannot_be),
      cmocka_unit_test(test_svg),
      cmocka_unit_test(test_svg_without_gnuplot),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
