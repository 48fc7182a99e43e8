/* The output of zenpsctl, and the figures that it derives from counters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/ctl/ctl.h"
#include "server/ctl/derive.h"

static zps_json *parse(const char *text) {
  zps_json *value = NULL;
  struct zps_error error = {.text = ""};
  if (zps_json_parse(text, strlen(text), &value, &error)) fail_msg("%s", error.text);
  return value;
}

static char *print(const char *noun, const char *result) {
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  zps_json *value = parse(result);
  assert_int_equal(zps_ctl_table_print(out, noun, value), ZPS_OK);
  fclose(out);
  zps_json_unref(value);
  return text;
}

static void test_columns_are_aligned(void **state) {
  (void)state;
  char *text =
      print("jobs",
            "{\"jobs\": [{\"job\": \"a\", \"job_id\": \"0x01\", \"state\": \"running\", \"world\": 16, \"joined\": 16, "
            "\"left\": 0, \"lost\": 0, \"servers\": 4, \"lost_servers\": \"s1, s3\", \"epoch\": 12, "
            "\"generation\": 3, \"weight\": 4, \"tensors\": 2, "
            "\"rounds\": 7, \"servers_in\": 3, \"places\": 6, \"age_s\": 12.3456, "
            "\"started_at\": \"2024-06-01T03:00:00Z\", \"code\": \"\", \"failure\": \"\"},"
            "{\"job\": \"größer\", \"job_id\": \"0x02\", \"state\": \"closing\", \"world\": 2, \"joined\": 1, "
            "\"left\": 0, \"lost\": 1, \"servers\": 4, \"lost_servers\": \"\", \"epoch\": 3, \"tensors\": 2, "
            "\"age_s\": 2, \"failure\": \"rank 1\"}]}");
  assert_string_equal(text,
                      "JOB     ID    STATE    WORLD  JOINED  LEFT  LOST  SERVERS  LOST-SERVERS  EPOCH  GENERATION  "
                      "WEIGHT  TENSORS  ROUNDS  SERVERS-IN  PLACES  "
                      "AGE/s  STARTED               CODE  FAILURE\n"
                      "a       0x01  running     16      16     0     0        4  s1, s3           12           3      "
                      " 4        2       7           3       6  "
                      "12.35  2024-06-01T03:00:00Z  -     -\n"
                      "größer  0x02  closing      2       1     0     1        4  -                 3           -      "
                      " -        2       -           -       -  "
                      "    2  -                     -     rank 1\n");
  free(text);
}

static void test_empty_tables_have_titles(void **state) {
  (void)state;
  char *text = print("members", "{\"servers\": [], \"ranks\": [], \"left_out\": 7}");
  assert_string_equal(
      text,
      "SERVER  NAME  STATE  HOST  PID  PROVIDER  KEYS  RAILS  ADDRESS  JOBS  SILENT/ms  CLOCK/ms  ERROR/ms  VERSION\n\n"
      "JOB  RANK  STATE  HOST  PID  PROVIDER  KEYS  RAILS  ADDRESS  MEMORY  SILENT/ms  CLOCK/ms  ERROR/ms  "
      "VERSION\n\n(7 more "
      "rows are left out)\n");
  free(text);
}

/* The table of servers that ranks cannot reach is there only while it has a row. */
static void test_unreachable_servers(void **state) {
  (void)state;
  char *text =
      print("members",
            "{\"servers\": [], \"ranks\": [], \"unreachable\": [{\"job\": \"x\", \"server\": 3, \"name\": \"s3\", "
            "\"rank\": 0, \"ranks\": 1, \"out_s\": 1.25, \"again_s\": 3.75, \"reason\": \"no frame has come\"}]}");
  assert_non_null(strstr(text,
                         "\n\nJOB  SERVER  NAME  RANK  RANKS  OUT/s  AGAIN/s  REASON\n"
                         "x         3  s3       0      1   1.25     3.75  no frame has come\n"));
  free(text);
}

static void test_hostile_cells(void **state) {
  (void)state;
  char *text = print("jobs", "{\"jobs\": [{\"job\": \"a\\u001b[31m\\nb\", \"world\": {\"x\": 1}}, 5, null]}");
  assert_null(strchr(text, '\033'));
  unsigned lines = 0;
  for (const char *c = text; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, 4);
  free(text);
}

static void test_bytes_are_short(void **state) {
  (void)state;
  char *text =
      print("stats",
            "{\"servers\": [{\"server\": \"s\", \"memory_in_use_bytes\": 1023, \"memory_high_water_bytes\": 1536, "
            "\"read_bytes\": 5368709120}], \"tensors\": [], \"lags\": []}");
  assert_non_null(strstr(text, " 1023 "));
  assert_non_null(strstr(text, " 1.5K "));
  assert_non_null(strstr(text, " 5.0G "));
  free(text);
}

#define SHARD(server, rounds, bytes, push, union_, max, imbalance, collect)                                          \
  "{\"server\": \"" server                                                                                           \
  "\", \"job_id\": \"0x1\", \"name\": \"w\", \"rows\": 1000, \"world\": 2, \"partitions\": 4, \"partitions_here\": " \
  "2, "                                                                                                              \
  "\"age_s\": 10, \"rounds\": " #rounds ", \"bytes_in\": " #bytes ", \"bytes_out\": 0, \"push_rows\": " #push        \
  ", \"union_rows\": " #union_ ", \"union_rows_max_part\": " #max ", \"step_loads\": " #imbalance                    \
  "e1, \"imbalance_push\": " #imbalance ", \"collect_ns\": " #collect ", \"reduce_ns\": 0, \"publish_ns\": 0}"

static double of(const zps_json *result, const char *array, size_t index, const char *key) {
  return zps_json_opt_real(zps_json_at(zps_json_get(result, array), index), key, -1);
}

/* One number for push and one for pull, over all servers; none where no server has the tensor. */
static void test_imbalance_over_servers(void **state) {
  (void)state;
#define TENSORS "\"tensors\": [{\"job_id\": \"0x1\", \"name\": \"w\"}, {\"job_id\": \"0x1\", \"name\": \"between\"}]"
  zps_json *before = parse("{" TENSORS ", \"shards\": [" SHARD("a", 20, 4000, 2000, 1800, 1000, 2.2, 0) "," SHARD(
      "b", 20, 4000, 2000, 2200, 1200, 3, 0) "]}");
  zps_json *derived = zps_ctl_derive(before, NULL, 0);
  assert_float_equal(of(derived, "tensors", 0, "imbalance_push"), 1.5, 1e-9); /* 30 of 20 rounds, at b */
  assert_float_equal(of(derived, "tensors", 0, "imbalance_pull"), 1.1, 1e-9); /* 2200 of 4000, with half of the rows */
  assert_float_equal(of(derived, "tensors", 1, "imbalance_push"), -1, 1e-9);
  assert_float_equal(of(derived, "tensors", 1, "imbalance_pull"), -1, 1e-9);
  zps_json_unref(derived);
  /* A single step between the samples: definition 8 of that one. */
  zps_json *now = parse("{" TENSORS ", \"shards\": [" SHARD("a", 21, 4000, 2000, 1860, 1000, 2.32, 0) "," SHARD(
      "b", 21, 4000, 2000, 2240, 1200, 3.08, 0) "]}");
  derived = zps_ctl_derive(now, before, 1);
  assert_float_equal(of(derived, "tensors", 0, "imbalance_push"), 1.2, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "imbalance_pull"), 1.2, 1e-9);
  zps_json_unref(derived);
  zps_json_unref(now);
  zps_json_unref(before);
}

static void test_since_open(void **state) {
  (void)state;
  zps_json
      *now = parse("{\"servers\": [], \"shards\": [" SHARD("a", 20, 4000, 2000, 1800, 1000, 1.1, 40000000) "," SHARD(
          "b", 20, 4000, 2000, 2200, 1200, 22,
          40000000) "], \"lags\": ["
                    "{\"server\": \"a\", \"job_id\": \"0x1\", \"name\": \"w\", \"rank\": 1, \"rounds\": 20, "
                    "\"lag_ns\": 60000000}]}");
  zps_json *derived = zps_ctl_derive(now, NULL, 0);
  assert_float_equal(of(derived, "shards", 0, "rounds_per_s"), 2, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "bytes_in_per_s"), 400, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "density"), 0.1, 1e-9); /* 2000 of 20 x 2 x 500 */
  assert_float_equal(of(derived, "shards", 0, "union_density"), 0.18, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "imbalance_push"), 1.1, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "imbalance_pull"), 1.2, 1e-9); /* 4 x 1200 of 4000, at both servers */
  assert_float_equal(of(derived, "shards", 1, "imbalance_pull"), 1.2, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "imbalance_step"), 0.55, 1e-9); /* 11 of 20 rounds */
  assert_float_equal(of(derived, "shards", 0, "collect_ms"), 2, 1e-9);
  assert_float_equal(of(derived, "lags", 0, "lag_ms"), 3, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "rounds"), 20, 1e-9); /* the old rows stay */
  zps_json_unref(derived);
  zps_json_unref(now);
}

static void test_between_samples(void **state) {
  (void)state;
  zps_json *before = parse("{\"shards\": [" SHARD("a", 20, 4000, 2000, 1800, 1000, 1.1, 40000000) "]}");
  zps_json *now = parse("{\"shards\": [" SHARD("a", 30, 9000, 12000, 6800, 2250, 1.5, 50000000) "]}");
  zps_json *derived = zps_ctl_derive(now, before, 2);
  assert_float_equal(of(derived, "shards", 0, "rounds_per_s"), 5, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "bytes_in_per_s"), 2500, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "density"), 1, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "union_density"), 1, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "imbalance_push"), 1.5, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "imbalance_step"), 0.4, 1e-9); /* 15 - 11, of 10 rounds */
  assert_float_equal(of(derived, "shards", 0, "imbalance_pull"), 1, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "collect_ms"), 1, 1e-9);
  zps_json_unref(derived);
  derived = zps_ctl_derive(before, before, 2); /* nothing happened: no division by zero */
  assert_float_equal(of(derived, "shards", 0, "density"), 0, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "rounds_per_s"), 0, 1e-9);
  zps_json_unref(derived);
  zps_json_unref(before);
  zps_json_unref(now);
}

#define TALLY(covered, rounds, rank_rounds, out, push, total)                                                       \
  "{\"job_id\": \"0x1\", \"name\": \"w\", \"rows\": 1000, \"width\": 2, \"value_bytes\": 4, \"world\": 2, "         \
  "\"covered_ms\": " #covered ", \"rounds\": " #rounds ", \"rank_rounds\": " #rank_rounds ", \"bytes_out\": " #out  \
  ", \"bytes_in\": 0, \"shared_out\": " #out ", \"push_rows\": " #push ", \"union_rows\": 0, \"total_ns\": " #total \
  ", \"wait_ns\": 5000000}"

static void test_of_the_job(void **state) {
  (void)state;
  zps_json *before = parse("{\"tensors\": [" TALLY(20000, 20, 40, 16000, 4000, 80000000) "]}");
  zps_json *now = parse("{\"tensors\": [" TALLY(30000, 30, 60, 20000, 24000, 90000000) "]}");
  zps_json *derived = zps_ctl_derive(before, NULL, 0);
  assert_float_equal(of(derived, "tensors", 0, "rounds_per_s"), 2, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "bytes_out_per_s"), 1600, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "density"), 0.1, 1e-9); /* 4000 of 40 x 1000 */
  /* Of 40 rank rounds, each 2 x 2 x 1/2 x 8000 bytes in a dense ring, 32000 were moved. */
  assert_float_equal(of(derived, "tensors", 0, "saved"), 20, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "round_ms"), 2, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "wait_ms"), 0.125, 1e-9);
  zps_json_unref(derived);
  derived = zps_ctl_derive(now, before, 2); /* the reports cover 5 s more, whenever they are asked for */
  assert_float_equal(of(derived, "tensors", 0, "rounds_per_s"), 2, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "bytes_out_per_s"), 800, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "density"), 1, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "round_ms"), 0.5, 1e-9);
  assert_float_equal(of(derived, "tensors", 0, "wait_ms"), 0, 1e-9);
  zps_json *const again = zps_ctl_derive(now, derived, 2); /* no new report: the last rates hold */
  assert_float_equal(of(again, "tensors", 0, "rounds_per_s"), 2, 1e-9);
  assert_float_equal(of(again, "tensors", 0, "round_ms"), 0.5, 1e-9);
  assert_float_equal(of(again, "tensors", 0, "rounds"), 30, 1e-9);
  zps_json_unref(again);
  zps_json *const old = parse(
      "{\"tensors\": [{\"job_id\": \"0x1\", \"name\": \"w\", \"told_s\": 31, \"world\": 2, "
      "\"covered_ms\": 30000, \"rounds\": 30, \"rank_rounds\": 60}]}");
  zps_json *const stopped = zps_ctl_derive(old, derived, 2); /* After 30 s without a report nothing runs. */
  assert_float_equal(of(stopped, "tensors", 0, "rounds_per_s"), 0, 1e-9);
  zps_json_unref(stopped);
  zps_json_unref(old);
  zps_json_unref(derived);
  zps_json_unref(now);
  zps_json_unref(before);
}

static void test_of_ranks(void **state) {
  (void)state;
  zps_json *now = parse(
      "{\"ranks\": [{\"job_id\": \"0x1\", \"rank\": 0, \"rounds\": 4, \"total_ns\": 8000000, \"wait_ns\": "
      "2000000}, {\"job_id\": \"0x1\", \"rank\": 1, \"rounds\": 0}]}");
  zps_json *derived = zps_ctl_derive(now, NULL, 0);
  assert_float_equal(of(derived, "ranks", 0, "round_ms"), 2, 1e-9);
  assert_float_equal(of(derived, "ranks", 0, "wait_ms"), 0.5, 1e-9);
  assert_float_equal(of(derived, "ranks", 1, "round_ms"), 0, 1e-9);
  zps_json_unref(derived);
  zps_json_unref(now);
}

static void test_counters_that_fell_are_of_something_else(void **state) {
  (void)state;
  zps_json *before = parse("{\"shards\": [" SHARD("a", 900, 400000, 2000, 1800, 1000, 1.1, 40000000) "]}");
  zps_json *now = parse("{\"shards\": [" SHARD("a", 20, 4000, 2000, 1800, 1000, 1.1, 40000000) "]}");
  zps_json *derived = zps_ctl_derive(now, before, 2);
  assert_float_equal(of(derived, "shards", 0, "rounds_per_s"), 2, 1e-9); /* since it was opened, 10 s ago */
  assert_float_equal(of(derived, "shards", 0, "bytes_in_per_s"), 400, 1e-9);
  assert_float_equal(of(derived, "shards", 0, "collect_ms"), 2, 1e-9);
  zps_json_unref(derived);
  zps_json_unref(before);
  zps_json_unref(now);
}

static void test_ended_jobs_are_a_table_of_their_own(void **state) {
  (void)state;
  char *text =
      print("jobs",
            "{\"jobs\": [], \"ended\": [{\"job\": \"a\", \"job_id\": \"0x01\", \"state\": \"failed\", \"world\": 8, "
            "\"left\": 5, \"lost\": 3, \"servers\": 2, \"lost_servers\": \"s1\", \"epoch\": 7, \"tensors\": 1, "
            "\"rounds\": 20, \"bytes_out\": 2048, "
            "\"bytes_in\": 7, \"ran_s\": 61.25, "
            "\"ended_at\": \"2024-06-01T03:00:12Z\", \"code\": \"ERR_PEER_LOST\", \"failure\": \"rank 2 was lost\"},"
            "{\"job\": \"b\", \"job_id\": \"0x02\", \"state\": \"left\", \"world\": 1, \"left\": 1, \"lost\": 0, "
            "\"servers\": 2, \"lost_servers\": \"\", \"epoch\": 8, \"tensors\": 0, \"ran_s\": 1, \"ended_at\": "
            "\"2024-06-01T03:00:13Z\", \"code\": \"\", "
            "\"failure\": \"\"}], \"left_out\": 3}");
  assert_string_equal(
      text,
      "JOB  ID  STATE  WORLD  JOINED  LEFT  LOST  SERVERS  LOST-SERVERS  EPOCH  GENERATION  WEIGHT  TENSORS  ROUNDS  "
      "SERVERS-IN  PLACES  AGE/s  STARTED  CODE  FAILURE\n\n"
      "JOB  ID    STATE   WORLD  LEFT  LOST  SERVERS  LOST-SERVERS  EPOCH  TENSORS  ROUNDS   OUT  IN  "
      "RAN/s  ENDED                 CODE           FAILURE\n"
      "a    0x01  failed      8     5     3        2  s1                7        1      20  2.0K   7  61.25  "
      "2024-06-01T03:00:12Z  ERR_PEER_LOST  rank 2 was "
      "lost\n"
      "b    0x02  left        1     1     0        2  -                 8        0       -     -   -      1  "
      "2024-06-01T03:00:13Z  -              -\n\n"
      "(3 more rows are left out)\n");
  free(text);
}

/* The output of `verb` for a result, under these options. */
static char *shown(const char *name, struct zps_ctl_options options, const char *result) {
  const struct zps_ctl_verb *verb;
  const struct zps_ctl_sample now = {.result = parse(result), .at_ns = 1};
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  assert_int_equal(zps_ctl_verb_find(name, &verb, NULL), ZPS_OK);
  assert_int_equal(zps_ctl_show(out, &options, verb, &now), ZPS_OK);
  fclose(out);
  zps_json_unref(now.result);
  return text;
}

static void test_internal_tensors_are_hidden(void **state) {
  (void)state;
  static const char *const results[][2] = {
      {"tensors",
       "{\"tensors\": [{\"job\": \"j\", \"name\": \"@barrier\"}, {\"job\": \"j\", \"name\": \"words@2\"}], "
       "\"left_out\": 7}"},
      {"stats",
       "{\"servers\": [{\"server\": \"s\", \"tensors\": 2}], \"tensors\": [{\"name\": \"words@2\"}, {\"name\": "
       "\"@barrier\"}], \"shards\": [{\"name\": \"@barrier\"}], "
       "\"lags\": [{\"name\": \"@barrier\", \"rank\": 1}, {\"name\": \"words@2\", \"rank\": 0}], \"left_out\": 7}"}};
  for (unsigned i = 0; i < 2; i++) {
    for (int output = ZPS_CTL_TABLE; output <= ZPS_CTL_JSON; output++) {
      char *text = shown(results[i][0], (struct zps_ctl_options){.output = output}, results[i][1]);
      assert_null(strstr(text, "@barrier"));
      assert_non_null(strstr(text, "words@2"));
      assert_non_null(strstr(text, output == ZPS_CTL_JSON ? "\"left_out\": 7" : "(7 more rows"));
      free(text);
      text = shown(results[i][0], (struct zps_ctl_options){.output = output, .internal = true}, results[i][1]);
      assert_non_null(strstr(text, "@barrier"));
      assert_non_null(strstr(text, "words@2"));
      free(text);
    }
  }
}

static void test_json_under_watch_is_one_line(void **state) {
  (void)state;
  static const char *const verbs[] = {"status", "stats", "version"};
  for (unsigned i = 0; i < 3; i++) {
    char *text =
        shown(verbs[i], (struct zps_ctl_options){.output = ZPS_CTL_JSON, .watch_ms = 1}, "{\"coordinator\": [{}]}");
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(text);
  }
}

struct described {
  const char *noun, *array; /* the table of the last column */
  unsigned n, n_tables;
};

static void column_is_described(void *ctx, const char *array, const char *key, const char *title) {
  struct described *described = ctx;
  const char *const text = zps_ctl_column_help(described->noun, array, key);
  if (!text || !*text) fail_msg("column %s of %s has no help: it is to be added to verbs.c", title, array);
  described->n++;
  described->n_tables += !described->array || strcmp(described->array, array) != 0;
  described->array = array;
}

/* A help that begins with "Six tables" is of a command that has six. */
static void expect_tables(const struct zps_ctl_verb *verb, unsigned n) {
  static const char *const numbers[] = {"No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"};
  const size_t len = strcspn(verb->about, " ");
  if (strncmp(verb->about + len, " table", 6) != 0) return;
  assert_in_range(n, 0, sizeof numbers / sizeof numbers[0] - 1);
  if (strlen(numbers[n]) != len || memcmp(numbers[n], verb->about, len) != 0)
    fail_msg("the help of %s has %.*s tables, and it shows %u", verb->name, (int)len, verb->about, n);
}

static void test_every_command_tells_what_it_shows(void **state) {
  (void)state;
  const struct zps_ctl_verb *verb;
  for (unsigned i = 0; (verb = zps_ctl_verb_at(i)) != NULL; i++) {
    struct described described = {.noun = verb->name};
    if (!verb->summary[0] || strlen(verb->summary) > 79) fail_msg("summary of %s", verb->name);
    zps_ctl_table_columns(verb->name, column_is_described, &described);
    expect_tables(verb, described.n_tables);
    if (!verb->method) continue;
    assert_true(verb->about[0] && verb->examples[0]);
    assert_int_equal(described.n > 0, strcmp(verb->name, "version") != 0 && !verb->gather && !verb->serve);
    for (unsigned e = 0; verb->examples[e]; e++) assert_non_null(strstr(verb->examples[e], verb->name));
  }
}

static void test_a_mistyped_command_is_recognised(void **state) {
  (void)state;
  const struct zps_ctl_verb *verb;
  struct zps_error error;
  assert_int_equal(zps_ctl_verb_find("stauts", &verb, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text,
                      "there is no command 'stauts': did you mean 'status'? zenpsctl help lists what there is");
  assert_int_equal(zps_ctl_verb_find("gizmos", &verb, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "there is no command 'gizmos': zenpsctl help lists what there is");
}

/* The bytes written to a terminal of this size. */
static char *drawn(const char *frame, unsigned rows, unsigned columns) {
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  zps_ctl_screen_draw(out, frame, rows, columns);
  fclose(out);
  return text;
}

static void test_frames_overwrite_each_other(void **state) {
  (void)state;
  char *text = drawn("one\n\ntwo\n", 24, 80);
  assert_string_equal(text, "\033[Hone\033[K\n\033[K\ntwo\033[K\n\033[J");
  free(text);
}

static void test_frames_fit_into_the_window(void **state) {
  (void)state;
  /* Nothing is cleared behind a line that ends in the last column, where the cursor stays on its last character. */
  char *text = drawn("größte\ngrößer\ngroß\nabcdef\nabcdefgh\n", 24, 6);
  assert_string_equal(text, "\033[Hgrößte\ngrößer\ngroß\033[K\nabcdef\nabcdef\n\033[J");
  free(text);
  /* As many lines as there is room for, and one row for the cursor: a newline in the last row would scroll. */
  text = drawn("1\n2\n3\n4\n", 5, 80);
  assert_non_null(strstr(text, "4\033[K\n\033[J"));
  free(text);
  text = drawn("1\n2\n3\n4\n", 4, 80);
  assert_string_equal(text, "\033[H1\033[K\n2\033[K\n(2 more lines: the window is too small for them)\033[K\n\033[J");
  free(text);
  for (unsigned size = 0; size < 4; size++)
    free(drawn("one\ntwo\nthree\nfour\n", size, size)); /* absurd, but harmless */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_columns_are_aligned),
      cmocka_unit_test(test_empty_tables_have_titles),
      cmocka_unit_test(test_unreachable_servers),
      cmocka_unit_test(test_hostile_cells),
      cmocka_unit_test(test_bytes_are_short),
      cmocka_unit_test(test_imbalance_over_servers),
      cmocka_unit_test(test_since_open),
      cmocka_unit_test(test_between_samples),
      cmocka_unit_test(test_of_the_job),
      cmocka_unit_test(test_of_ranks),
      cmocka_unit_test(test_counters_that_fell_are_of_something_else),
      cmocka_unit_test(test_ended_jobs_are_a_table_of_their_own),
      cmocka_unit_test(test_internal_tensors_are_hidden),
      cmocka_unit_test(test_json_under_watch_is_one_line),
      cmocka_unit_test(test_every_command_tells_what_it_shows),
      cmocka_unit_test(test_a_mistyped_command_is_recognised),
      cmocka_unit_test(test_frames_overwrite_each_other),
      cmocka_unit_test(test_frames_fit_into_the_window),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
