/* Metrics of a coordinator's answers, in Prometheus' text format. tests/integration/export.sh has promtool read those
 * of a cluster. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/ctl/metrics.h"

static zps_json *parse(const char *text) {
  zps_json *value = NULL;
  struct zps_error error = {.text = ""};
  if (text && zps_json_parse(text, strlen(text), &value, &error)) fail_msg("%s", error.text);
  return value;
}

struct answers {
  const char *status, *members, *jobs, *stats; /* JSON; NULL: none */
};

static char *print(const struct answers *answers) {
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  zps_json *const status = parse(answers->status), *const members = parse(answers->members),
                  *const jobs = parse(answers->jobs), *const stats = parse(answers->stats),
                  *const scrape = zps_ctl_metrics_scrape(status, 0.25, 3);
  const struct zps_ctl_metrics_answers got = {status, members, jobs, stats, scrape};
  assert_int_equal(zps_ctl_metrics_print(out, &got), ZPS_OK);
  fclose(out);
  zps_json_unref(status);
  zps_json_unref(members);
  zps_json_unref(jobs);
  zps_json_unref(stats);
  zps_json_unref(scrape);
  return text;
}

/* The samples of one metric, or of several whose names begin alike. */
static void holds(const struct answers *answers, const char *name, const char *samples) {
  char *text = print(answers), *rest = NULL, got[4096] = "";
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
    if (strncmp(line, name, strlen(name)) == 0) strcat(strcat(got, line), "\n");
  assert_string_equal(got, samples);
  free(text);
}

static void test_a_coordinator_that_is_away(void **state) {
  (void)state;
  char *text = print(&(struct answers){.status = NULL});
  assert_string_equal(text,
                      "# HELP zenps_up 1: the coordinator answered this scrape. 0: it did not, and all other metrics "
                      "of the cluster are missing.\n# TYPE zenps_up gauge\nzenps_up 0\n");
  free(text);
}

static void test_the_coordinator(void **state) {
  (void)state;
  static const struct answers answers = {
      .status =
          "{\"coordinator\": [{\"version\": \"1.2\", \"protocol\": 7, \"uptime_s\": 12.5, "
          "\"certificate_ends\": 1790000000, \"state_size_bytes\": 9007199254740993}]}"};
  holds(&answers, "zenps_up", "zenps_up 1\n");
  holds(&answers, "zenps_scrape", "zenps_scrape_seconds 0.25\nzenps_scrape_rows_left_out 3\n");
  holds(&answers, "zenps_coordinator_info", "zenps_coordinator_info{version=\"1.2\",protocol=\"7\"} 1\n");
  holds(&answers, "zenps_coordinator_uptime", "zenps_coordinator_uptime_seconds 12.5\n");
  holds(&answers, "zenps_coordinator_cert", "zenps_coordinator_certificate_end_timestamp_seconds 1790000000\n");
  holds(&answers, "zenps_coordinator_state_free", "");
}

static void test_states_are_counted(void **state) {
  (void)state;
  static const struct answers answers = {
      .members =
          "{\"servers\": [{\"name\": \"b\", \"state\": \"in\"}, {\"name\": \"a\", \"state\": \"in\", "
          "\"silent_ms\": 1500}], \"ranks\": [{\"job\": \"j\", \"rank\": 1, \"state\": \"lost\"}, "
          "{\"job\": \"j\", \"rank\": 0, \"state\": \"in\"}, {\"job\": \"j\", \"rank\": 2, \"state\": \"in\"}]}"};
  holds(&answers, "zenps_servers",
        "zenps_servers{state=\"away\"} 0\nzenps_servers{state=\"draining\"} 0\nzenps_servers{state=\"in\"} 2\n"
        "zenps_servers{state=\"stopping\"} 0\n");
  holds(&answers, "zenps_server_silent", "zenps_server_silent_seconds{server=\"a\"} 1.5\n");
  holds(&answers, "zenps_job_ranks",
        "zenps_job_ranks{zenps_job=\"j\",state=\"in\"} 2\nzenps_job_ranks{zenps_job=\"j\",state=\"lost\"} 1\n");
}

static void test_a_server_that_does_not_answer(void **state) {
  (void)state;
  static const struct answers answers = {
      .stats =
          "{\"servers\": [{\"server\": \"a\", \"answer\": \"ok\", \"forged\": 2}, {\"server\": \"b\", "
          "\"answer\": \"is away\"}]}"};
  holds(&answers, "zenps_server_up", "zenps_server_up{server=\"a\"} 1\nzenps_server_up{server=\"b\"} 0\n");
  holds(&answers, "zenps_server_forged", "zenps_server_forged_messages_total{server=\"a\"} 2\n");
}

static void test_names_are_quoted(void **state) {
  (void)state;
  static const struct answers answers = {
      .jobs = "{\"jobs\": [{\"job\": \"a\\\"} 1\\nb\\\\\", \"state\": \"running\", \"servers\": 2}]}"};
  holds(&answers, "zenps_job_servers_begun", "zenps_job_servers_begun{zenps_job=\"a\\\"} 1\\nb\\\\\"} 2\n");
}

static void test_the_last_failure_counts(void **state) {
  (void)state;
  static const struct answers answers = {
      .jobs =
          "{\"jobs\": [], \"ended\": ["
          "{\"job\": \"j\", \"state\": \"failed\", \"code\": \"ERR_IO\", \"ended_at\": \"2024-06-01T03:00:12Z\"},"
          "{\"job\": \"j\", \"state\": \"failed\", \"code\": \"ERR_IO\", \"ended_at\": \"2024-06-01T02:00:12Z\"},"
          "{\"job\": \"k\", \"state\": \"closed\", \"code\": \"\", \"ended_at\": \"2024-06-01T04:00:12Z\"}]}"};
  holds(&answers, "zenps_job_failed",
        "zenps_job_failed_timestamp_seconds{zenps_job=\"j\",code=\"ERR_IO\"} 1717210812\n");
}

/* Two groups may have a tensor of the same name: one series. */
static void test_times_of_rounds(void **state) {
  (void)state;
  static const struct answers answers = {
      .stats =
          "{\"tensors\": [{\"job\": \"j\", \"name\": \"t\", \"rounds\": 3, \"total_ns\": 3000000, \"took_1ms\": 2, "
          "\"took_4ms\": 1}, {\"job\": \"j\", \"name\": \"t\", \"rounds\": 1, \"total_ns\": 70000000000, "
          "\"took_longer\": 1}, {\"job\": \"j\", \"name\": \"@barrier\", \"rounds\": 1, \"total_ns\": 5}]}"};
  holds(&answers, "zenps_rounds_total", "zenps_rounds_total{zenps_job=\"j\",tensor=\"t\"} 4\n");
  holds(&answers, "zenps_round_seconds_sum", "zenps_round_seconds_sum{zenps_job=\"j\",tensor=\"t\"} 70.003\n");
  holds(&answers, "zenps_round_seconds_count", "zenps_round_seconds_count{zenps_job=\"j\",tensor=\"t\"} 4\n");
#define LE(limit, n) "zenps_round_seconds_bucket{zenps_job=\"j\",tensor=\"t\",le=\"" limit "\"} " n "\n"
  holds(&answers, "zenps_round_seconds_bucket",
        LE("0.001", "2") LE("0.002", "2") LE("0.004", "3") LE("0.008", "3") LE("0.016", "3") LE("0.032", "3")
            LE("0.064", "3") LE("0.128", "3") LE("0.256", "3") LE("0.512", "3") LE("1.024", "3") LE("2.048", "3") LE(
                "4.096", "3") LE("8.192", "3") LE("16.384", "3") LE("32.768", "3") LE("65.536", "3") LE("+Inf", "4"));
#undef LE
}

static void test_lags_are_summed_by_server(void **state) {
  (void)state;
  static const struct answers answers = {
      .stats =
          "{\"lags\": [{\"job\": \"j\", \"server\": \"s\", \"tensor\": 1, \"rank\": 0, \"lag_ns\": 1500000000}, "
          "{\"job\": \"j\", \"server\": \"s\", \"tensor\": 2, \"rank\": 0, \"lag_ns\": 500000000}], "
          "\"rounds\": [{\"job\": \"j\", \"age_ms\": 20}, {\"job\": \"j\", \"age_ms\": 3000}]}"};
  holds(&answers, "zenps_rank_lag", "zenps_rank_lag_seconds_total{zenps_job=\"j\",rank=\"0\",server=\"s\"} 2\n");
  holds(&answers, "zenps_job_oldest_round", "zenps_job_oldest_round_age_seconds{zenps_job=\"j\"} 3\n");
}

/* promtool asks for it, too; here for every metric, also those that a test's cluster has none of. */
static void look_at_name(void *ctx, const char *name, const char *type, const char *help) {
  unsigned *const n = ctx;
  const size_t len = strlen(name);
  const bool is_total = len > 6 && strcmp(name + len - 6, "_total") == 0;
  assert_int_equal(strncmp(name, "zenps_", 6), 0);
  assert_int_equal(is_total, strcmp(type, "counter") == 0);
  assert_int_equal(help[strlen(help) - 1], '.');
  (*n)++;
}

static void test_names_follow_the_conventions(void **state) {
  (void)state;
  unsigned n = 0;
  zps_ctl_metrics_each(look_at_name, &n);
  assert_true(n > 25);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_coordinator_that_is_away),
      cmocka_unit_test(test_the_coordinator),
      cmocka_unit_test(test_states_are_counted),
      cmocka_unit_test(test_a_server_that_does_not_answer),
      cmocka_unit_test(test_names_are_quoted),
      cmocka_unit_test(test_the_last_failure_counts),
      cmocka_unit_test(test_times_of_rounds),
      cmocka_unit_test(test_lags_are_summed_by_server),
      cmocka_unit_test(test_names_follow_the_conventions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
