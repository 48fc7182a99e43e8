/* The base of the tools: line reading, reproducible inputs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "config.h"
#include "worker/tools/lines.h"
#include "worker/tools/perf_input.h"
#include "worker/tools/perf_levels.h"
#include "worker/tools/settle.h"

/* A file with this content; the name is valid until the next call. */
static const char *file_of(const char *text, size_t len) {
  static char path[64];
  if (path[0]) unlink(path);
  snprintf(path, sizeof path, "test_tools.XXXXXX");
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, len), (ssize_t)len);
  close(fd);
  return path;
}

static void lines_are_split(void **state) {
  (void)state;
  static const char *const wanted[] = {"one", "", "three", "no newline"};
  const char text[] = "one\n\nthree\r\nno newline";
  struct zps_tools_lines *lines;
  char *line;
  size_t len;
  assert_int_equal(zps_tools_lines_open(file_of(text, sizeof text - 1), &lines, NULL), ZPS_OK);
  for (unsigned i = 0; i < 4; i++) {
    assert_int_equal(zps_tools_lines_next(lines, &line, &len, NULL), ZPS_OK);
    assert_string_equal(line, wanted[i]);
    assert_int_equal(len, strlen(wanted[i]));
    assert_int_equal(zps_tools_lines_number(lines), i + 1);
  }
  assert_int_equal(zps_tools_lines_next(lines, &line, &len, NULL), ZPS_ERR_CLOSED);
  zps_tools_lines_close(lines);
}

/* Lines of 0 to 9 bytes, with and without a last newline, by 1 to 12 parts: each line is in one, in its order. */
static void parts_have_each_line_once(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 8; seed++) {
    struct zps_rng rng = {seed};
    char text[2000];
    size_t n = 0;
    unsigned n_lines = 0;
    while (n < 1000) {
      const uint64_t len = zps_rng_below(&rng, 10);
      n += (size_t)sprintf(text + n, "%.*s\n", (int)len, "abcdefghi");
      n_lines++;
    }
    if (seed % 2) n_lines -= text[--n - 1] == '\n'; /* an empty line without a newline is none */
    for (uint64_t n_parts = 1; n_parts <= 12; n_parts++) {
      char read[2000];
      size_t at = 0;
      unsigned total = 0;
      for (uint64_t part = 0; part < n_parts; part++) {
        struct zps_tools_lines *lines;
        char *line;
        size_t len;
        uint64_t number = 0;
        assert_int_equal(zps_tools_lines_open(file_of(text, n), &lines, NULL), ZPS_OK);
        assert_int_equal(zps_tools_lines_part(lines, part, n_parts, NULL), ZPS_OK);
        while (zps_tools_lines_next(lines, &line, &len, NULL) == ZPS_OK) {
          at += (size_t)sprintf(read + at, "%s\n", line);
          assert_int_equal(zps_tools_lines_number(lines), ++number);
        }
        total += (unsigned)number;
        zps_tools_lines_close(lines);
      }
      assert_int_equal(total, n_lines);
      assert_memory_equal(read, text, n < at ? n : at);
    }
  }
  struct zps_tools_lines *lines;
  char *line;
  size_t len;
  assert_int_equal(zps_tools_lines_open(file_of("a\n", 2), &lines, NULL), ZPS_OK); /* more parts than bytes */
  assert_int_equal(zps_tools_lines_part(lines, 6, 7, NULL), ZPS_OK);
  assert_int_equal(zps_tools_lines_next(lines, &line, &len, NULL), ZPS_ERR_CLOSED);
  zps_tools_lines_close(lines);
}

static void long_lines_grow_the_buffer(void **state) {
  (void)state;
  enum { LEN = 300000 };
  char *text = malloc(LEN + 3);
  memset(text, 'x', LEN);
  memcpy(text + LEN, "\ny\n", 3);
  struct zps_tools_lines *lines;
  char *line;
  size_t len;
  assert_int_equal(zps_tools_lines_open(file_of(text, LEN + 3), &lines, NULL), ZPS_OK);
  assert_int_equal(zps_tools_lines_next(lines, &line, &len, NULL), ZPS_OK);
  assert_int_equal(len, LEN);
  assert_int_equal(zps_tools_lines_next(lines, &line, &len, NULL), ZPS_OK);
  assert_string_equal(line, "y");
  zps_tools_lines_close(lines);
  free(text);
}

static void missing_files_are_named(void **state) {
  (void)state;
  struct zps_tools_lines *lines;
  struct zps_error error;
  assert_int_equal(zps_tools_lines_open("no/such/file", &lines, &error), ZPS_ERR_IO);
  assert_non_null(strstr(error.text, "no/such/file"));
}

static void what_has_no_lines_is_refused(void **state) {
  (void)state;
  struct zps_tools_lines *lines;
  struct zps_error error;
  char *line;
  size_t len;
  assert_int_equal(zps_tools_lines_open("/dev/zero", &lines, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "/dev/zero is a device"));
  const char *const path = file_of("", 0);
  assert_int_equal(truncate(path, 100 << 20), 0); /* of zeros */
  assert_int_equal(zps_tools_lines_open(path, &lines, NULL), ZPS_OK);
  assert_int_equal(zps_tools_lines_next(lines, &line, &len, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, ", line 1: goes on after 67108863 bytes"));
  zps_tools_lines_close(lines);
}

/* The lines of the file of this name, joined by '|'; of the first error its text. */
static const char *lines_of(const char *path) {
  static char read[600];
  read[0] = '\0';
  struct zps_tools_lines *lines;
  struct zps_error error = {.text = ""};
  char *line;
  size_t len, n = 0;
  zps_err_t code = zps_tools_lines_open(path, &lines, &error);
  if (code != ZPS_OK) return strcpy(read, error.text);
  while ((code = zps_tools_lines_next(lines, &line, &len, &error)) == ZPS_OK)
    n += (size_t)snprintf(read + n, sizeof read - n, "%s|", line);
  if (code != ZPS_ERR_CLOSED) strcpy(read, error.text);
  zps_tools_lines_close(lines);
  return read;
}

static void a_mark_is_no_text_and_a_nul_is_refused(void **state) {
  (void)state;
  assert_string_equal(lines_of(file_of("\xef\xbb\xbf"
                                       "one\n\xef\xbb\xbftwo",
                                       13)),
                      "one|\xef\xbb\xbftwo|");
  assert_string_equal(lines_of(file_of("\xef\xbb\xbf", 3)), "");
  const char *const path = file_of("one\ntwo\0three\n", 14);
  char wanted[200];
  snprintf(wanted, sizeof wanted, "%s, line 2, column 4: a NUL byte; must be text (UTF-8) without any", path);
  assert_string_equal(lines_of(path), wanted);
  for (uint64_t n_parts = 2; n_parts < 7; n_parts++) { /* the line must not depend on the part that has it */
    uint64_t before = 0, n_refused = 0;
    for (uint64_t part = 0; part < n_parts; part++) {
      struct zps_tools_lines *lines;
      struct zps_error error;
      char *line;
      size_t len;
      uint64_t n = 0;
      zps_err_t code;
      assert_int_equal(zps_tools_lines_open(path, &lines, NULL), ZPS_OK);
      assert_int_equal(zps_tools_lines_part(lines, part, n_parts, NULL), ZPS_OK);
      assert_int_equal(zps_tools_lines_count(lines, &n, NULL), ZPS_OK);
      zps_tools_lines_close(lines);
      assert_int_equal(zps_tools_lines_open(path, &lines, NULL), ZPS_OK);
      assert_int_equal(zps_tools_lines_part(lines, part, n_parts, NULL), ZPS_OK);
      zps_tools_lines_number_from(lines, before);
      while ((code = zps_tools_lines_next(lines, &line, &len, &error)) == ZPS_OK) continue;
      if (code != ZPS_ERR_CLOSED) {
        assert_string_equal(error.text, wanted);
        n_refused++;
      }
      zps_tools_lines_close(lines);
      before += n;
    }
    assert_int_equal(before, 2);
    assert_int_equal(n_refused, 1);
  }
}

#ifdef HAVE_ZLIB
/* "one\ntwo\n" by gzip, which writes a member, and may write others behind it. */
static const unsigned char packed[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03,
                                       0xcb, 0xcf, 0x4b, 0xe5, 0x2a, 0x29, 0xcf, 0xe7, 0x02, 0x00,
                                       0xe6, 0x0b, 0xba, 0x12, 0x08, 0x00, 0x00, 0x00};
#endif

static void gzip_files_are_unpacked(void **state) {
  (void)state;
#ifdef HAVE_ZLIB
  char path[100], wanted[200];
  struct {
    size_t n_members, len;
    const char *lines;
  } cases[] = {{1, sizeof packed, "one|two|"},
               {2, 2 * sizeof packed, "one|two|one|two|"},
               {1, sizeof packed - 1, " is not a whole gzip file: it ends too early"},
               {2, sizeof packed + 5, " is not a whole gzip file: it ends too early"},
               {0, 0, " is not a whole gzip file: it ends too early"}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[2 * sizeof packed];
    memcpy(text, packed, sizeof packed);
    memcpy(text + sizeof packed, packed, sizeof packed);
    const char *const plain = file_of(text, cases[i].len);
    snprintf(path, sizeof path, "%s.gz", plain);
    assert_int_equal(rename(plain, path), 0);
    snprintf(wanted, sizeof wanted, "%s%s", cases[i].lines[0] == ' ' ? path : "", cases[i].lines);
    assert_string_equal(lines_of(path), wanted);
    assert_int_equal(unlink(path), 0);
  }
  const char *const plain = file_of("no gzip", 7);
  snprintf(path, sizeof path, "%s.gz", plain);
  assert_int_equal(rename(plain, path), 0);
  snprintf(wanted, sizeof wanted, "%s is not a whole gzip file: incorrect header check", path);
  assert_string_equal(lines_of(path), wanted);
  assert_int_equal(unlink(path), 0);
#else
  skip();
#endif
}

static struct perf_input *input_of(struct perf_input_config config) {
  struct perf_input *input;
  assert_int_equal(perf_input_create(&config, &input, NULL), ZPS_OK);
  return input;
}

static void random_rows_are_distinct_and_repeatable(void **state) {
  (void)state;
  static const double densities[] = {0, 0.001, 0.3, 0.8, 1}, skews[] = {0, 1, 1.4};
  enum { ROWS = 2000 };
  for (int i = 0; i < 15; i++) {
    const double density = densities[i % 5];
    struct perf_input *input = input_of(
        (struct perf_input_config){.rows = ROWS, .density = density, .skew = skews[i / 5], .world = 3, .seed = 5});
    int64_t first[ROWS];
    uint64_t n, again;
    bool seen[ROWS] = {false};
    const int64_t *rows = perf_input_touched(input, 4, 2, &n);
    assert_int_equal(n, (uint64_t)(density * ROWS + 0.5));
    for (uint64_t k = 0; k < n; k++) {
      assert_in_range(rows[k], 0, ROWS - 1);
      assert_false(seen[rows[k]]);
      seen[rows[k]] = true;
    }
    memcpy(first, rows, n * sizeof *rows);
    perf_input_touched(input, 5, 2, &again);
    rows = perf_input_touched(input, 4, 2, &again);
    assert_int_equal(again, n);
    assert_memory_equal(first, rows, n * sizeof *rows);
    perf_input_destroy(input);
  }
}

static void overlaps_are_as_asked_for(void **state) {
  (void)state;
  enum { ROWS = 1000, WORLD = 3 };
  for (int i = 0; i < 4; i++) {
    const double density = i % 2 ? 0.9 : 0.05;
    const enum perf_overlap overlap = i < 2 ? PERF_OVERLAP_SAME : PERF_OVERLAP_DISJOINT;
    struct perf_input *input = input_of(
        (struct perf_input_config){.rows = ROWS, .density = density, .overlap = overlap, .world = WORLD, .seed = 5});
    unsigned n_ranks[ROWS] = {0};
    for (uint32_t rank = 0; rank < WORLD; rank++) {
      uint64_t n;
      const int64_t *rows = perf_input_touched(input, 1, rank, &n);
      const uint64_t most = overlap == PERF_OVERLAP_SAME ? ROWS : (ROWS + WORLD - 1 - rank) / WORLD;
      const uint64_t wanted = (uint64_t)(density * ROWS + 0.5);
      assert_int_equal(n, wanted < most ? wanted : most);
      for (uint64_t k = 0; k < n; k++) n_ranks[rows[k]]++;
    }
    for (unsigned row = 0; row < ROWS; row++)
      assert_true(overlap == PERF_OVERLAP_SAME ? n_ranks[row] == 0 || n_ranks[row] == WORLD : n_ranks[row] <= 1);
    perf_input_destroy(input);
  }
}

/* 4 bits: levels are sevenths of the greatest. Values are rounded down, up, to the nearest, or by fair chance. */
static void levels_are_held_to_their_definition(void **state) {
  (void)state;
  enum { ROWS = 3000, WIDTH = 2, N = ROWS * WIDTH, WORLD = 2 };
  static float exact[N], got[N];
  for (int how = 0; how < 5; how++) {
    struct perf_levels levels = {.rows = ROWS, .width = WIDTH, .bits = 4, .world = WORLD};
    struct zps_rng rng = {7};
    struct zps_error error;
    for (unsigned range = 0; range < WORLD; range++) {
      for (unsigned from = range * N / WORLD; from < (range + 1) * N / WORLD; from += 1024) {
        const unsigned end = (range + 1) * N / WORLD, to = from + 1024 < end ? from + 1024 : end;
        for (unsigned i = from; i < to; i++) {
          const double share = i == from ? 1 : 2 * zps_rng_unit(&rng) - 1, level = floor(share * 7);
          const double above = share * 7 - level, draw = zps_rng_unit(&rng);
          const bool up = how == 0   ? draw < above
                          : how == 1 ? false
                          : how == 2 ? true
                          : how == 3 ? draw < 0.6
                                     : draw < above;
          exact[i] = (float)(share * 3);
          got[i] = (float)((level + up * (above > 0)) / 7 * 3);
        }
      }
    }
    if (how == 4) got[4000] = exact[4000] + 0.1f;
    const zps_err_t code = perf_levels_check(&levels, 3, true, exact, got, &error);
    assert_int_equal(code, how == 0 ? ZPS_OK : ZPS_ERR_INTERNAL);
    if (how != 0) assert_non_null(strstr(error.text, how == 4 ? "value 0 of row 2000 is" : "the draws are biased"));
  }
}

static void the_last_ranks_can_be_empty(void **state) {
  (void)state;
  struct perf_input *input =
      input_of((struct perf_input_config){.rows = 100, .density = 0.5, .world = 3, .empty = 2, .seed = 5});
  uint64_t n;
  perf_input_touched(input, 0, 0, &n);
  assert_int_equal(n, 50);
  for (uint32_t rank = 1; rank < 3; rank++) {
    perf_input_touched(input, 0, rank, &n);
    assert_int_equal(n, 0);
  }
  perf_input_destroy(input);
}

static void traces_deal_samples_to_ranks(void **state) {
  (void)state;
  const char text[] = "1 2 3\n3 4\n\n7\n0 7\n";
  struct perf_input *input =
      input_of((struct perf_input_config){.trace = file_of(text, sizeof text - 1), .batch = 2, .world = 2, .seed = 5});
  uint64_t n;
  assert_int_equal(perf_input_rows(input), 8);
  const int64_t *rows = perf_input_touched(input, 0, 0, &n);
  assert_int_equal(n, 4); /* 1 2 3 and 3 4 */
  assert_int_equal(rows[3], 4);
  rows = perf_input_touched(input, 0, 1, &n);
  assert_int_equal(n, 2); /* 7 and 0 7 */
  assert_int_equal(rows[1], 0);
  perf_input_touched(input, 1, 0, &n); /* from the start again */
  assert_int_equal(n, 4);
  perf_input_destroy(input);
}

static void bad_traces_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *wanted;
    uint64_t rows;
  } cases[] = {
      {"1 2\n3 -4\n", "line 2: '-4' is no row id", 0},
      {"1 2x\n", "line 1: '2x' is no row id", 0},
      {"\n\n", "holds no samples", 0},
      {"1\n9\n", "line 2: row id 9 is not below --rows 9", 9},
      {"99999999999999999999\n", "is no row id", 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct perf_input *input;
    struct zps_error error;
    const struct perf_input_config config = {
        .trace = file_of(cases[i].text, strlen(cases[i].text)), .rows = cases[i].rows, .batch = 1, .world = 1};
    assert_int_equal(perf_input_create(&config, &input, &error), ZPS_ERR_INVALID);
    assert_non_null(strstr(error.text, cases[i].wanted));
  }
}

static void values_are_never_zero_and_exact_in_a_float(void **state) {
  (void)state;
  double sum = 0;
  for (uint64_t i = 0; i < 100000; i++) {
    const double value = perf_value(perf_value_key(1, 2, 3, 0), i, 24);
    assert_true(value != 0 && value > -1 && value < 1);
    assert_true((double)(float)value == value);
    sum += value;
  }
  assert_true(sum > -1000 && sum < 1000);
}

static int clean(void **state) {
  (void)state;
  unlink(file_of("", 0));
  return 0;
}

/* Rounds until it stays, of a scheme that alternates with another for so many rounds, each so many on end. */
static unsigned rounds_to_settle(unsigned trying, unsigned each, double ms) {
  static const char *const names[] = {"ring", "balanced"};
  struct zps_settle settle = {.scheme = NULL};
  for (unsigned i = 0; i < 1000; i++) {
    const char *const name = names[i < trying ? i / each % 2 : 0];
    const enum zps_settle_verdict verdict = zps_settle_round(&settle, name, i == 3 ? ms / 2 : ms);
    if (verdict == ZPS_SETTLED || (verdict == ZPS_SETTLE_IF_LONG && zps_settle_is_long(settle.shortest_ms)))
      return i + 1;
  }
  return 0;
}

static void auto_settles(void **state) {
  (void)state;
  assert_int_equal(rounds_to_settle(0, 1, 1), ZPS_SETTLE_ROUNDS);
  assert_int_equal(rounds_to_settle(24 * 4, 24, 1), 24 * 4 + ZPS_SETTLE_ROUNDS);
  /* Of long rounds fewer are tried, and fewer are enough. */
  const unsigned is_long = rounds_to_settle(8 * 4, 8, 1000);
  assert_true(is_long > 8 * 5 && is_long < 8 * 4 + ZPS_SETTLE_ROUNDS);
  assert_int_equal(rounds_to_settle(0, 1, 50), ZPS_SETTLE_ROUNDS); /* one of them is not long */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_are_split),
      cmocka_unit_test(parts_have_each_line_once),
      cmocka_unit_test(long_lines_grow_the_buffer),
      cmocka_unit_test(missing_files_are_named),
      cmocka_unit_test(what_has_no_lines_is_refused),
      cmocka_unit_test(a_mark_is_no_text_and_a_nul_is_refused),
      cmocka_unit_test(gzip_files_are_unpacked),
      cmocka_unit_test(random_rows_are_distinct_and_repeatable),
      cmocka_unit_test(overlaps_are_as_asked_for),
      cmocka_unit_test(levels_are_held_to_their_definition),
      cmocka_unit_test(the_last_ranks_can_be_empty),
      cmocka_unit_test(traces_deal_samples_to_ranks),
      cmocka_unit_test(bad_traces_are_refused),
      cmocka_unit_test(values_are_never_zero_and_exact_in_a_float),
      cmocka_unit_test(auto_settles),
  };
  return cmocka_run_group_tests_name("tools", tests, NULL, clean);
}
