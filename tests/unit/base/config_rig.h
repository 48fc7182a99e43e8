/* A program with an option of every type, and the values that it takes from its command line, environment and file. */
#ifndef ZPS_TESTS_BASE_CONFIG_RIG_H
#define ZPS_TESTS_BASE_CONFIG_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/config.h"

struct options {
  char *config, *name, *listen;
  bool verbose, prefix;
  uint64_t rows, port, memory_bytes, dead_ms;
  double density, offset;
  int level, profile;
};

static const char *const levels[] = {"low", "middle", "high", NULL};

#define OPT(type_, field, ...) \
  { .type = (type_), .offset = offsetof(struct options, field), __VA_ARGS__ }
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, config, .name = "config", .short_flag = 'c', .arg = "FILE", .flags = ZPS_OPT_NO_FILE,
        .help = "read this file"),
    OPT(ZPS_OPT_STRING, name, .name = "name", .def = "nobody", .env_fallback = "FOREIGN_NAME", .help = "a name",
        .flags = ZPS_OPT_RELOADABLE),
    OPT(ZPS_OPT_BOOL, verbose, .name = "verbose", .internet = "yes", .short_flag = 'v', .help = "say more"),
    OPT(ZPS_OPT_BOOL, prefix, .name = "prefix", .def = "yes", .help = "prefix lines"),
    OPT(ZPS_OPT_UINT, rows, .name = "rows", .short_flag = 'r', .arg = "R", .min = 1, .max = 1000000000000.0,
        .help = "rows of the tensor"),
    OPT(ZPS_OPT_STRING, listen, .name = "control.listen", .arg = "HOST:PORT", .help = "where to listen"),
    OPT(ZPS_OPT_UINT, port, .name = "control.port", .internet = "443", .min = 5, .env_fallback = "FOREIGN_PORT",
        .help = "a port"),
    OPT(ZPS_OPT_DURATION, dead_ms, .name = "control.dead_after", .def = "5s", .internet = "30s",
        .help = "silence that means death", .flags = ZPS_OPT_RELOADABLE),
    OPT(ZPS_OPT_BYTES, memory_bytes, .name = "memory-limit", .def = "64M", .min = 17, .help = "most memory"),
    OPT(ZPS_OPT_DOUBLE, density, .name = "density", .min = 0, .max = 1, .flags = ZPS_OPT_NO_ENV | ZPS_OPT_NO_FILE,
        .help = "share of rows"),
    OPT(ZPS_OPT_DOUBLE, offset, .name = "offset", .help = "any number"),
    OPT(ZPS_OPT_ENUM, level, .name = "log.level", .def = "middle", .values = levels, .flags = ZPS_OPT_RELOADABLE,
        .help = "how much to log"),
    OPT(ZPS_OPT_ENUM, profile, .name = "profile", .def = "none", .values = zps_profile_names, .help = "a network"),
    {0},
};
static const struct zps_opt_table table = {
    .program = "prog",
    .summary = "do things",
    .args = "[FILE...]",
    .description = "A closing paragraph.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .max_args = 2,
    .exits = 1 << 0 | 1 << 2,
};

/* A run: the loaded values, or the error. */
static struct options got;
static struct zps_config_rest rest;
static struct zps_error error;

static inline zps_err_t load_words(const struct zps_opt_table *of, const char **words) {
  int argc = 0;
  while (words[argc]) argc++;
  memset(&error, 0, sizeof error);
  return zps_config_load(of, argc, (char **)words, NULL, &got, &rest, &error);
}
#define load(...) load_words(&table, (const char *[]){"prog", ##__VA_ARGS__, NULL})

static char path[] = "/tmp/zenps-test-config-XXXXXX";

static inline void write_file(const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static inline int teardown(void **state) {
  (void)state;
  zps_config_fini(&table, &got);
  static const char *const names[] = {"ZENPS_NAME",         "ZENPS_ROWS",    "ZENPS_CONTROL_DEAD_AFTER",
                                      "ZENPS_CONTROL_PORT", "ZENPS_DENSITY", "FOREIGN_NAME",
                                      "FOREIGN_PORT",       "ZENPS_CONFIG",  "ZENPS_PROFILE"};
  for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
  return 0;
}

static inline int make_file(void **state) {
  (void)state;
  const int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static inline int remove_file(void **state) {
  (void)state;
  return unlink(path);
}

#define test(function) cmocka_unit_test_teardown(function, teardown)

#endif
