/* Options: where they come from, --help, --version and reloading. */
#include "tests/unit/base/config_rig.h"

#include "tests/support/oom.h"

static void defaults_hold_where_nothing_is_said(void **state) {
  (void)state;
  assert_int_equal(load(), ZPS_OK);
  assert_null(got.config);
  assert_null(got.listen);
  assert_string_equal(got.name, "nobody");
  assert_false(got.verbose);
  assert_true(got.prefix);
  assert_int_equal(got.rows, 0);
  assert_int_equal(got.memory_bytes, 64 << 20);
  assert_int_equal(got.dead_ms, 5000);
  assert_int_equal(got.level, 1);
  assert_int_equal(rest.argc, 0);
  assert_false(rest.exit_now);
}

static void flags_are_read_in_every_form(void **state) {
  (void)state;
  assert_int_equal(load("--rows", "7", "one", "-vr8", "--density=0.25", "--control-listen", "h:1", "--prefix=no", "two",
                        "--memory-l", "3K", "--offset=-1.5e3", "--log-level=high"),
                   ZPS_OK);
  assert_int_equal(got.rows, 8);
  assert_true(got.verbose);
  assert_false(got.prefix);
  assert_true(got.density == 0.25);
  assert_true(got.offset == -1500);
  assert_string_equal(got.listen, "h:1");
  assert_int_equal(got.memory_bytes, 3072);
  assert_int_equal(got.level, 2);
  assert_int_equal(rest.argc, 2);
  assert_string_equal(rest.argv[0], "one");
  assert_string_equal(rest.argv[1], "two");
}

/* As the user gave them; by their names where nobody did. */
static void options_are_named_as_they_were_given(void **state) {
  (void)state;
  setenv("ZENPS_LOG_LEVEL", "high", 1);
  setenv("FOREIGN_PORT", "7", 1);
  assert_int_equal(load("-r8", "--memory-l=3K"), ZPS_OK);
  assert_string_equal(zps_config_label("rows"), "--rows");
  assert_string_equal(zps_config_label("memory-limit"), "--memory-limit");
  assert_string_equal(zps_config_label("log.level"), "ZENPS_LOG_LEVEL");
  assert_string_equal(zps_config_label("control.port"), "FOREIGN_PORT");
  assert_string_equal(zps_config_label("control.listen"), "control.listen");
  assert_string_equal(zps_config_label("density"), "--density"); /* not for a file */
  assert_string_equal(zps_config_label("no.option"), "no.option");
  unsetenv("ZENPS_LOG_LEVEL");
  unsetenv("FOREIGN_PORT");
  zps_config_fini(&table, &got);
  assert_int_equal(load(), ZPS_OK); /* The last load counts. */
  assert_string_equal(zps_config_label("rows"), "rows");
  assert_string_equal(zps_config_label("log.level"), "log.level");
}

static void what_follows_the_first_argument_can_be_left_alone(void **state) {
  (void)state;
  struct zps_opt_table runner = table;
  runner.stop_at_first_arg = true;
  runner.max_args = 10;
  const char *words[] = {"prog", "-v", "program", "--rows", "bogus", NULL};
  assert_int_equal(load_words(&runner, words), ZPS_OK);
  assert_int_equal(rest.argc, 3);
  assert_string_equal(rest.argv[0], "program");
  assert_string_equal(rest.argv[1], "--rows");
  zps_config_fini(&table, &got);
  const char *dashes[] = {"prog", "--", "-v", NULL};
  assert_int_equal(load_words(&runner, dashes), ZPS_OK);
  assert_false(got.verbose);
  assert_string_equal(rest.argv[0], "-v");
}

static void flag_beats_environment_beats_file_beats_fallback_beats_default(void **state) {
  (void)state;
  setenv("FOREIGN_NAME", "foreign", 1);
  assert_int_equal(load(), ZPS_OK);
  assert_string_equal(got.name, "foreign");
  zps_config_fini(&table, &got);
  write_file("name = file\n");
  assert_int_equal(load("-c", path), ZPS_OK);
  assert_string_equal(got.name, "file");
  assert_string_equal(got.config, path);
  zps_config_fini(&table, &got);
  setenv("ZENPS_NAME", "env", 1);
  assert_int_equal(load("-c", path), ZPS_OK);
  assert_string_equal(got.name, "env");
  zps_config_fini(&table, &got);
  assert_int_equal(load("-c", path, "--name", "flag"), ZPS_OK);
  assert_string_equal(got.name, "flag");
  zps_config_fini(&table, &got);
  setenv("ZENPS_NAME", "", 1); /* empty is unset */
  assert_int_equal(load("-c", path), ZPS_OK);
  assert_string_equal(got.name, "file");
}

static const char *profile_text(void) {
  static char text[ZPS_PROFILE_TEXT_SIZE];
  return zps_config_profile_text(&table, &got, text, sizeof text) ? text : "";
}

static void a_profile_gives_other_defaults(void **state) {
  (void)state;
  assert_int_equal(load(), ZPS_OK);
  assert_string_equal(profile_text(), "");
  zps_config_fini(&table, &got);
  assert_int_equal(load("--profile=internet"), ZPS_OK);
  assert_true(got.verbose && got.port == 443 && got.dead_ms == 30000);
  assert_string_equal(got.name, "nobody"); /* has no other default */
  assert_string_equal(zps_config_label("control.dead_after"), "control.dead_after (profile internet)");
  assert_string_equal(profile_text(), "profile internet: verbose = yes, control.port = 443, control.dead_after = 30s");
  got.dead_ms = 7; /* A program may change it. */
  assert_non_null(strstr(profile_text(), "control.dead_after as the program says"));
  zps_config_fini(&table, &got);
  assert_int_equal(load("--profile=none"), ZPS_OK);
  assert_true(!got.verbose && got.port == 0 && got.dead_ms == 5000);
}

static void every_source_wins_over_the_profile(void **state) {
  (void)state;
  write_file("profile = internet\n[control]\ndead_after = 250ms\n");
  setenv("FOREIGN_PORT", "7", 1);
  assert_int_equal(load("-c", path, "--verbose=no"), ZPS_OK);
  assert_true(!got.verbose && got.port == 7 && got.dead_ms == 250);
  char wanted[400];
  snprintf(wanted, sizeof wanted,
           "profile internet: verbose as --verbose says, control.port as FOREIGN_PORT says, control.dead_after as "
           "control.dead_after (%s:3) says",
           path);
  assert_string_equal(profile_text(), wanted);
  zps_config_fini(&table, &got);
  setenv("ZENPS_CONTROL_DEAD_AFTER", "5s", 1); /* the default of no profile, said */
  assert_int_equal(load("--profile=internet"), ZPS_OK);
  assert_int_equal(got.dead_ms, 5000);
  zps_config_fini(&table, &got);
  assert_int_equal(load("-c", path, "--profile=none"), ZPS_OK);
  assert_true(!got.verbose && got.port == 7);
}

static void an_unknown_profile_is_refused(void **state) {
  (void)state;
  setenv("ZENPS_PROFILE", "internat", 1);
  assert_int_equal(load(), ZPS_ERR_INVALID);
  assert_string_equal(error.text,
                      "the environment's ZENPS_PROFILE is 'internat': must be one of none, internet; did "
                      "you mean 'internet'?");
}

static void the_file_has_sections_and_comments(void **state) {
  (void)state;
  write_file(
      "# a comment\nrows = 12\nverbose = on ; another\n\n[control]\n dead_after=250ms\t# one more\n\tlisten = a:1#b # "
      "\n  "
      "# indented\n[log]\nlevel: low\n");
  setenv("ZENPS_CONFIG", path, 1);
  assert_int_equal(load(), ZPS_OK);
  assert_int_equal(got.rows, 12);
  assert_true(got.verbose);
  assert_int_equal(got.dead_ms, 250);
  assert_string_equal(got.listen, "a:1#b");
  assert_int_equal(got.level, 0);
  zps_config_fini(&table, &got);
  unsetenv("ZENPS_CONFIG");
  assert_int_equal(zps_config_load(&table, 0, NULL, path, &got, &rest, &error), ZPS_OK); /* path given by the program */
  assert_int_equal(got.rows, 12);
}

static void a_file_behind_a_dash_may_be_missing(void **state) {
  (void)state;
  char dashed[sizeof path + 1];
  snprintf(dashed, sizeof dashed, "-%s", path);
  write_file("rows = 12\n");
  assert_int_equal(load("-c", dashed), ZPS_OK);
  assert_int_equal(got.rows, 12);
  assert_true(rest.file_read);
  assert_string_equal(got.config, dashed);
  zps_config_fini(&table, &got);
  write_file("rows = many\n"); /* a file that exists must be right */
  assert_int_equal(load("-c", dashed), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, path));
  setenv("ZENPS_CONFIG", "-/nonexistent/zenpsd.conf", 1);
  assert_int_equal(load("--rows=7"), ZPS_OK);
  assert_int_equal(got.rows, 7);
  assert_false(rest.file_read);
  zps_config_fini(&table, &got);
  unsetenv("ZENPS_CONFIG");
  assert_int_equal(load("-c", "/nonexistent/zenpsd.conf"), ZPS_ERR_IO);
  assert_int_equal(load("--config=-"), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "must be a path, or '-' and the path"));
  snprintf(dashed, sizeof dashed, "-%s", "/etc/passwd/x"); /* missing, but not for want of the file alone */
  assert_int_equal(load("-c", dashed), ZPS_ERR_IO);
}

static void required_options_must_come_from_somewhere(void **state) {
  (void)state;
  static const struct zps_opt needed[] = {
      OPT(ZPS_OPT_UINT, rows, .name = "control.rows", .help = "x", .flags = ZPS_OPT_REQUIRED), {0}};
  static const struct zps_opt_table of = {.program = "prog", .opts = needed, .config_size = sizeof(struct options)};
  assert_int_equal(load_words(&of, (const char *[]){"prog", NULL}), ZPS_ERR_INVALID);
  assert_string_equal(error.text,
                      "control.rows is not set: give --control-rows or the environment's ZENPS_CONTROL_ROWS, or set it "
                      "in the file; it must be a whole number");
  assert_int_equal(load_words(&of, (const char *[]){"prog", "--control-rows=1", NULL}), ZPS_OK);
}

/* The output of a load on stdout. */
static void printed_words(char *text, size_t size, const struct zps_opt_table *of, const char **words) {
  FILE *file = tmpfile();
  assert_non_null(file);
  fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  dup2(fileno(file), STDOUT_FILENO);
  const zps_err_t code = load_words(of, words);
  fflush(stdout);
  dup2(saved, STDOUT_FILENO);
  close(saved);
  assert_int_equal(code, ZPS_OK);
  assert_true(rest.exit_now);
  rewind(file);
  text[fread(text, 1, size - 1, file)] = '\0';
  fclose(file);
}

static void printed(char *text, size_t size, const char *word) {
  printed_words(text, size, &table, (const char *[]){"prog", word, NULL});
}

static void help_tells_every_option_with_default_and_variable(void **state) {
  (void)state;
  static char text[16384];
  setenv("ZENPS_ROWS", "nonsense", 1); /* help is given all the same */
  printed(text, sizeof text, "--help");
  unsetenv("ZENPS_ROWS");
  static const char *const wanted[] = {"Usage: prog [OPTION...] [FILE...]",
                                       "do things",
                                       "A closing paragraph.",
                                       "-c, --config=FILE",
                                       "[ZENPS_CONFIG]",
                                       "-v, --verbose",
                                       "--prefix[=yes|no]",
                                       "[default: yes; ZENPS_PREFIX]",
                                       "Section [control]:",
                                       "--control-listen=HOST:PORT",
                                       "[default: 5s; internet:",
                                       "ZENPS_CONTROL_DEAD_AFTER]",
                                       "Section [log]:",
                                       "--log-level=low|middle|high",
                                       "-h, --help",
                                       "--version",
                                       "Exit status:\n  0 ",
                                       "\n  2 "};
  for (unsigned i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
    if (!strstr(text, wanted[i])) fail_msg("--help lacks '%s':\n%s", wanted[i], text);
  for (const struct zps_opt *opt = opts; opt->name; opt++) {
    char flag[100];
    snprintf(flag, sizeof flag, "--%s", opt->name);
    for (char *c = flag; *c; c++)
      if (*c == '.' || *c == '_') *c = '-';
    const char *at = strstr(text, flag);
    if (!at) fail_msg("--help lacks '%s'", flag);
  }
  for (const char *line = text; *line; line += strcspn(line, "\n") + 1) assert_in_range(strcspn(line, "\n"), 0, 79);
  assert_non_null(strstr(text, "\n      --log-level=low|middle|high\n                             how much to log"));
  assert_non_null(strstr(text, "\n  -v, --verbose              say more [internet: yes; ZENPS_VERBOSE]\n"));
  assert_null(strstr(text, "ZENPS_DENSITY"));
  assert_null(strstr(text, "\n  1 ")); /* the program has no such status */
  assert_true(strstr(text, "--rows") < strstr(text, "Section [control]"));
  assert_true(strstr(text, "--density") < strstr(text, "Section [control]")); /* in spite of its place in the table */
}

static void h_is_help_unless_an_option_has_the_letter(void **state) {
  (void)state;
  static char text[16384], of_flag[16384];
  static const struct zps_opt own[] = {OPT(ZPS_OPT_UINT, rows, .name = "height", .short_flag = 'h', .help = "x"), {0}};
  static const struct zps_opt_table of = {
      .program = "prog", .summary = "x", .opts = own, .config_size = sizeof(struct options)};
  printed(text, sizeof text, "-h");
  printed(of_flag, sizeof of_flag, "--help");
  assert_string_equal(text, of_flag);
  printed(text, sizeof text, "-vh");
  assert_string_equal(text, of_flag);
  assert_int_equal(load_words(&of, (const char *[]){"prog", "-h", "7", NULL}), ZPS_OK);
  assert_int_equal(got.rows, 7);
  printed_words(text, sizeof text, &of, (const char *[]){"prog", "--help", NULL});
  assert_null(strstr(text, "-h, --help"));
}

/* An option of an older version is refused wherever it is set. --help and reloads pass it by. */
static void gone_options_are_refused_with_the_reason(void **state) {
  (void)state;
  static char text[16384];
  static const struct zps_opt own[] = {OPT(ZPS_OPT_UINT, rows, .name = "rows", .help = "x"),
                                       {.type = ZPS_OPT_GONE, .name = "old.grace", .help = "it is 6 times rows"},
                                       {0}};
  static const struct zps_opt_table of = {
      .program = "prog", .summary = "x", .opts = own, .config_size = sizeof(struct options)};
  static const char refused[] = "there is no option old.grace any more, it is 6 times rows; leave it out";
  assert_int_equal(load_words(&of, (const char *[]){"prog", "--old-grace=7", NULL}), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, refused));
  setenv("ZENPS_OLD_GRACE", "7", 1);
  assert_int_equal(load_words(&of, (const char *[]){"prog", NULL}), ZPS_ERR_INVALID);
  unsetenv("ZENPS_OLD_GRACE");
  assert_non_null(strstr(error.text, refused));
  printed_words(text, sizeof text, &of, (const char *[]){"prog", "--help", NULL});
  assert_null(strstr(text, "old"));
  assert_int_equal(load_words(&of, (const char *[]){"prog", "--rows=7", NULL}), ZPS_OK);
  struct options fresh = got;
  fresh.config = (char *)"another"; /* The first bytes of the struct differ. */
  assert_int_equal(zps_config_reload(&of, &got, &fresh, NULL, NULL), ZPS_OK);
}

static zps_err_t print_command(const char *command, struct zps_error *into) {
  if (!command) {
    zps_config_help_title("Commands");
    zps_config_help_row("go", "as far as it goes");
    return ZPS_OK;
  }
  if (strcmp(command, "bad") == 0) return zps_fail(into, ZPS_ERR_INVALID, "no such command");
  printf("help of %s\n", command);
  return ZPS_OK;
}

static void help_beside_a_command_is_the_commands(void **state) {
  (void)state;
  static char text[16384];
  struct zps_opt_table of = table;
  of.command_help = print_command;
  static const char *const lines[][5] = {
      {"prog", "--help", "go"}, {"prog", "go", "-h"}, {"prog", "-r", "3", "go", "-h"}};
  for (unsigned i = 0; i < 3; i++) {
    printed_words(text, sizeof text, &of,
                  (const char *[]){lines[i][0], lines[i][1], lines[i][2], lines[i][3], lines[i][4], NULL});
    assert_string_equal(text, "help of go\n");
  }
  printed_words(text, sizeof text, &of, (const char *[]){"prog", "--help", "--bogus", NULL});
  assert_non_null(strstr(text, "Usage: prog "));
  assert_non_null(strstr(text, "\n\nCommands:\n  go                         as far as it goes\n\nOptions:\n  -c, "));
  assert_int_equal(load_words(&of, (const char *[]){"prog", "bad", "--help", NULL}), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "no such command");
}

static void version_names_program_and_release(void **state) {
  (void)state;
  char text[100];
  printed(text, sizeof text, "--version");
  assert_string_equal(text, "prog (zenps) 0.1.0\n");
}

struct changes {
  char text[400];
};

static void note_change(void *ctx, const char *name, bool taken) {
  struct changes *changes = ctx;
  snprintf(changes->text + strlen(changes->text), sizeof changes->text - strlen(changes->text), "%s%s ", name,
           taken ? "" : "(restart)");
}

static void reloading_takes_over_what_may_change(void **state) {
  (void)state;
  struct options fresh;
  struct changes changes = {""};
  assert_int_equal(load("--name=a", "--rows=1"), ZPS_OK);
  assert_int_equal(zps_config_load(&table, 5,
                                   (char **)(const char *[]){"prog", "--name=b", "--rows=2", "--log-level=high",
                                                             "--control-listen=h:1", NULL},
                                   NULL, &fresh, NULL, &error),
                   ZPS_OK);
  assert_int_equal(zps_config_reload(&table, &got, &fresh, note_change, &changes), ZPS_OK);
  zps_config_fini(&table, &fresh);
  assert_string_equal(changes.text, "name rows(restart) control.listen(restart) log.level ");
  assert_string_equal(got.name, "b");
  assert_int_equal(got.rows, 1);
  assert_null(got.listen);
  assert_int_equal(got.level, 2);
}

static zps_err_t create(void *ctx) {
  (void)ctx;
  return load("-c", path, "--name=flag");
}

static void destroy(void *ctx) {
  zps_config_fini(&table, ctx);
}

static void loading_survives_lack_of_memory(void **state) {
  (void)state;
  write_file("name = file\n[control]\nlisten = h:1\n");
  oom_sweep(create, destroy, &got, 8);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      test(defaults_hold_where_nothing_is_said),
      test(flags_are_read_in_every_form),
      test(options_are_named_as_they_were_given),
      test(what_follows_the_first_argument_can_be_left_alone),
      test(flag_beats_environment_beats_file_beats_fallback_beats_default),
      test(a_profile_gives_other_defaults),
      test(every_source_wins_over_the_profile),
      test(an_unknown_profile_is_refused),
      test(the_file_has_sections_and_comments),
      test(a_file_behind_a_dash_may_be_missing),
      test(required_options_must_come_from_somewhere),
      test(help_tells_every_option_with_default_and_variable),
      test(h_is_help_unless_an_option_has_the_letter),
      test(help_beside_a_command_is_the_commands),
      test(gone_options_are_refused_with_the_reason),
      test(version_names_program_and_release),
      test(reloading_takes_over_what_may_change),
      test(loading_survives_lack_of_memory),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
