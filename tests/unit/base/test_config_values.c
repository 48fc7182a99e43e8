/* Options: the forms of every type, and the text of every error. */
#include "tests/unit/base/config_rig.h"

#include <errno.h>

#define assert_refused(wanted_text, ...)                  \
  do {                                                    \
    assert_int_equal(load(__VA_ARGS__), ZPS_ERR_INVALID); \
    assert_string_equal(error.text, (wanted_text));       \
  } while (0)

static void refused_file(const char *text, const char *message) {
  char wanted[400];
  write_file(text);
  assert_int_equal(load("-c", path), ZPS_ERR_INVALID);
  snprintf(wanted, sizeof wanted, "%s:%s", path, message);
  assert_string_equal(error.text, wanted);
}

static void wrong_files_are_refused_with_their_line(void **state) {
  (void)state;
  char text[1000], message[100];
  refused_file("\nrowz = 1\n",
               "2: unknown option 'rowz' outside of any section: did you mean 'rows'? prog --help lists what there is");
  refused_file("[control]\nrows = 1\n",
               "2: unknown option 'rows' in section [control]: prog --help lists what there is");
  refused_file(
      "[control]\nlissten = x\n",
      "2: unknown option 'lissten' in section [control]: did you mean 'listen'? prog --help lists what there is");
  refused_file("[contrl]\nlisten = x\n",
               "2: unknown option 'listen' in section [contrl]: did you mean 'control.listen'? prog --help lists what "
               "there is");
  refused_file("confi = x\n", "1: unknown option 'confi' outside of any section: prog --help lists what there is");
  refused_file("config = x\n", "1: unknown option 'config' outside of any section: prog --help lists what there is");
  refused_file("density = 1\n", "1: unknown option 'density' outside of any section: prog --help lists what there is");
  refused_file("rows = 1\n\nrows = 2\n", "3: rows is set a second time: one line must go");
  refused_file(
      "[control]\ndead_after = soon\nnonsense\n",
      "2: control.dead_after is 'soon': must be a time in seconds, or one with ms, s, m or h behind it (500ms)");
  refused_file("nonsense\n[control]\ndead_after = soon\n", "1: must be 'KEY = VALUE', '[SECTION]' or a comment (#)");
  refused_file("rows = 1\n[control\n", "2: must be 'KEY = VALUE', '[SECTION]' or a comment (#)");
  memset(text, 'x', sizeof text);
  memcpy(text, "rows=1\nname=", 12);
  text[sizeof text - 1] = '\0';
  refused_file(text, "2: the line is too long: must have at most 198 bytes");
  memset(text, 'x', sizeof text);
  memcpy(text, "name=", 5);
  strcpy(text + 400, "\nrowz=1\n");
  refused_file(text, "1: the line is too long: must have at most 198 bytes");
  snprintf(message, sizeof message, "cannot open the configuration file /nonexistent/x: %s", strerror(ENOENT));
  assert_int_equal(load("-c", "/nonexistent/x"), ZPS_ERR_IO);
  assert_string_equal(error.text, message);
  assert_int_equal(load("-c", "/"), ZPS_ERR_IO);
  assert_non_null(strstr(error.text, strerror(EISDIR)));
}

static void what_is_no_text_of_sane_size_is_refused(void **state) {
  (void)state;
  FILE *const file = fopen(path, "w");
  assert_non_null(file);
  for (int i = 0; i <= 1 << 14; i++) /* 64 bytes a line */
    fprintf(file, "# a comment of sixty-four bytes, the end of the line among them\n");
  fclose(file);
  char wanted[400];
  assert_int_equal(load("-c", path), ZPS_ERR_INVALID);
  snprintf(wanted, sizeof wanted, "%s:16385: the file goes on: must have at most 1048576 bytes", path);
  assert_string_equal(error.text, wanted);
  assert_int_equal(truncate(path, 1 << 20), 0);
  assert_int_equal(load("-c", path), ZPS_OK);
  teardown(state);

  write_file("rows = 1\nname = ");
  assert_int_equal(truncate(path, 1 << 30), 0); /* the rest is zeros */
  assert_int_equal(load("-c", path), ZPS_ERR_INVALID);
  snprintf(wanted, sizeof wanted, "%s:2: holds a zero byte: must be text", path);
  assert_string_equal(error.text, wanted);
  assert_refused("the configuration /dev/zero is a device: must be a file or a pipe", "-c", "/dev/zero");
}

static void a_pipe_will_do(void **state) {
  (void)state;
  int ends[2];
  char name[40];
  assert_int_equal(pipe(ends), 0);
  snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
  assert_int_equal(write(ends[1], "rows = 77\n", 10), 10);
  close(ends[1]);
  assert_int_equal(load("-c", name), ZPS_OK);
  assert_int_equal(got.rows, 77);
  close(ends[0]);
}

static void wrong_flags_are_refused(void **state) {
  (void)state;
  assert_refused("unknown or ambiguous option --bogus: prog --help lists what there is", "--bogus");
  assert_refused("unknown or ambiguous option --con=1: prog --help lists what there is", "--con=1");
  assert_refused("unknown or ambiguous option --verbos3: did you mean --verbose? prog --help lists what there is",
                 "--verbos3");
  assert_refused("unknown or ambiguous option --dnesity=1: did you mean --density? prog --help lists what there is",
                 "--dnesity=1");
  assert_refused("unknown or ambiguous option --hlep: did you mean --help? prog --help lists what there is", "--hlep");
  assert_refused("unknown option -x: prog --help lists what there is", "-vx");
  assert_refused("--rows lacks its value: must be a whole number from 1 to 1000000000000", "--rows");
  assert_refused("--rows lacks its value: must be a whole number from 1 to 1000000000000", "-v", "-r");
  assert_refused("--help=x: the option takes no value", "--help=x");
  assert_refused("unexpected argument 'c': prog takes 2 ([FILE...])", "a", "b", "c");
  struct zps_opt_table needy = table;
  needy.min_args = 1;
  assert_int_equal(load_words(&needy, (const char *[]){"prog", NULL}), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "0 arguments, at least 1 needed: prog [FILE...]");
}

static void wrong_values_are_refused_with_their_origin(void **state) {
  (void)state;
  static const struct {
    const char *flag, *bad[9];
    const char *expected;
  } cases[] = {
      {"--rows",
       {"", "x", "-1", "+1", " 1", "1x", "0", "1000000000001", "99999999999999999999"},
       "a whole number from 1 to 1000000000000"},
      {"--control-port", {"4", "1.5"}, "a whole number of at least 5"},
      {"--density", {"1.1", "-0.1", "nan", "inf", "0x1", "", "1e999", ".", "1 "}, "a number from 0 to 1"},
      {"--offset", {"nan", "x"}, "a number"},
      {"--verbose", {"maybe", "", "2"}, "yes or no"},
      {"--memory-limit",
       {"", "K", "1T", "1.5K", "-1", "1KB", "99999999999G", "16"},
       "a whole number of bytes, or one with K, M or G behind it (64M), of at least 17"},
      {"--control-dead-after",
       {"", "s", "-1", "1d", "1 s", "nan", "1e300", "inf"},
       "a time in seconds, or one with ms, s, m or h behind it (500ms)"},
      {"--log-level", {"", "deep", "12"}, "one of low, middle, high"},
  };
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    for (unsigned j = 0; j < 9 && cases[i].bad[j]; j++) {
      char word[100], wanted[300];
      snprintf(word, sizeof word, "%s=%s", cases[i].flag, cases[i].bad[j]);
      snprintf(wanted, sizeof wanted, "%s is '%s': must be %s", cases[i].flag, cases[i].bad[j], cases[i].expected);
      assert_refused(wanted, word);
    }
  }
  assert_refused("--log-level is 'mdidle': must be one of low, middle, high; did you mean 'middle'?",
                 "--log-level=mdidle");
  assert_refused("--log-level is 'HIGH': must be one of low, middle, high; did you mean 'high'?", "--log-level=HIGH");
  setenv("ZENPS_ROWS", "many", 1);
  assert_refused("the environment's ZENPS_ROWS is 'many': must be a whole number from 1 to 1000000000000");
  unsetenv("ZENPS_ROWS");
  setenv("FOREIGN_PORT", "x", 1);
  assert_refused("the environment's FOREIGN_PORT is 'x': must be a whole number of at least 5");
  assert_int_equal(load("--control-port=6"), ZPS_OK); /* a foreign variable that is not asked cannot be wrong */
  zps_config_fini(&table, &got);
  unsetenv("FOREIGN_PORT");
  setenv("ZENPS_DENSITY", "x", 1); /* not taken from the environment */
  assert_int_equal(load(), ZPS_OK);
}

static void values_are_read_in_every_form(void **state) {
  (void)state;
  static const struct {
    const char *word;
    uint64_t ms;
  } times[] = {{"--control-dead-after=0", 0},       {"--control-dead-after=0.25", 250},
               {"--control-dead-after=7ms", 7},     {"--control-dead-after=1.5s", 1500},
               {"--control-dead-after=2m", 120000}, {"--control-dead-after=1h", 3600000}};
  for (unsigned i = 0; i < sizeof times / sizeof times[0]; i++) {
    assert_int_equal(load(times[i].word), ZPS_OK);
    assert_int_equal(got.dead_ms, times[i].ms);
    zps_config_fini(&table, &got);
  }
  static const struct {
    const char *word;
    uint64_t bytes;
  } sizes[] = {{"--memory-limit=17", 17},
               {"--memory-limit=2k", 2048},
               {"--memory-limit=3M", 3 << 20},
               {"--memory-limit=4G", 4ull << 30}};
  for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    assert_int_equal(load(sizes[i].word), ZPS_OK);
    assert_int_equal(got.memory_bytes, sizes[i].bytes);
    zps_config_fini(&table, &got);
  }
  static const char *const yes[] = {"--verbose",      "-v",           "--verbose=yes",
                                    "--verbose=TRUE", "--verbose=on", "--verbose=1"};
  for (unsigned i = 0; i < sizeof yes / sizeof yes[0]; i++) {
    assert_int_equal(load(yes[i]), ZPS_OK);
    assert_true(got.verbose);
    zps_config_fini(&table, &got);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      test(wrong_files_are_refused_with_their_line),
      test(what_is_no_text_of_sane_size_is_refused),
      test(a_pipe_will_do),
      test(wrong_flags_are_refused),
      test(wrong_values_are_refused_with_their_origin),
      test(values_are_read_in_every_form),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
