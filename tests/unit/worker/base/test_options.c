/* The settings that zenps_open() takes from its options and the environment, and the parts of zenps.h that must agree
 * with other files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/machine.h"
#include "common/codec/codec_choice.h"
#include "worker/base/error.h"
#include "worker/base/options.h"

#define SAME(name) _Static_assert((int)ZENPS_##name == (int)ZPS_##name, #name)
SAME(OK);
SAME(ERR_AGAIN);
SAME(ERR_INVALID);
SAME(ERR_NOMEM);
SAME(ERR_TIMEOUT);
SAME(ERR_CANCELED);
SAME(ERR_CLOSED);
SAME(ERR_CONNECT);
SAME(ERR_REFUSED);
SAME(ERR_VERSION);
SAME(ERR_PROTOCOL);
SAME(ERR_SHAPE);
SAME(ERR_UNKNOWN);
SAME(ERR_RANK_TAKEN);
SAME(ERR_MISSING);
SAME(ERR_PEER_LOST);
SAME(ERR_SERVER_LOST);
SAME(ERR_STALE);
SAME(ERR_TRUNCATED);
SAME(ERR_UNSUPPORTED);
SAME(ERR_IO);
SAME(ERR_FABRIC);
SAME(ERR_FORKED);
SAME(ERR_BUSY);
SAME(ERR_INTERNAL);
SAME(ERR_QUOTA);
SAME(ERR_TRAINER);
_Static_assert((int)ZENPS_F32 == (int)ZPS_DTYPE_F32 && (int)ZENPS_F64 == (int)ZPS_DTYPE_F64, "dtypes");
_Static_assert((int)ZENPS_OP_SUM == (int)ZPS_OP_SUM && (int)ZENPS_OP_MEAN == (int)ZPS_OP_MEAN &&
                   (int)ZENPS_OP_MAX == (int)ZPS_OP_MAX && (int)ZENPS_OP_MIN == (int)ZPS_OP_MIN &&
                   (int)ZENPS_OP_MEAN_PRESENT == (int)ZPS_OP_MEAN_PRESENT,
               "operations");
_Static_assert((int)ZENPS_CODEC_AUTO == (int)ZPS_CODEC_AUTO && (int)ZENPS_CODEC_PAPER == (int)ZPS_CODEC_PAPER,
               "codecs");
_Static_assert((int)ZENPS_VALUES_RAW == (int)ZPS_VALUES_RAW && (int)ZENPS_VALUES_BF16 == (int)ZPS_VALUES_BF16 &&
                   (int)ZENPS_VALUES_F16 == (int)ZPS_VALUES_F16 && (int)ZENPS_VALUES_QSGD2 == (int)ZPS_VALUES_QSGD2 &&
                   (int)ZENPS_VALUES_QSGD4 == (int)ZPS_VALUES_QSGD4 && (int)ZENPS_VALUES_QSGD8 == (int)ZPS_VALUES_QSGD8,
               "what values travel as");

static const char *const variables[] = {"ZENPS_COORDINATOR",
                                        "ZENPS_JOB",
                                        "ZENPS_RANK",
                                        "ZENPS_PROFILE",
                                        "ZENPS_FABRIC_KEEPALIVE",
                                        "ZENPS_WORLD_SIZE",
                                        "ZENPS_PROVIDER",
                                        "ZENPS_INTERFACE",
                                        "ZENPS_SUBNET",
                                        "ZENPS_JOIN_TIMEOUT",
                                        "ZENPS_ROUND_TIMEOUT",
                                        "ZENPS_THREADS",
                                        "ZENPS_LOG_LEVEL",
                                        "ZENPS_LOCAL_WORLD_SIZE",
                                        "ZENPS_LOCAL_RANK",
                                        "ZENPS_SERVER_PLACES",
                                        "ZENPS_MEMORY_LIMIT",
                                        "ZENPS_FABRIC_FAULT",
                                        "TORCHELASTIC_RUN_ID",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "ZENPS_CODEC",
                                        "ZENPS_VALUES",
                                        "ZENPS_DEVICE",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_STEP_ID",
                                        "SLURM_JOB_ID",
                                        "SLURM_NTASKS"};

static int clean_environment(void **state) {
  (void)state;
  for (unsigned i = 0; i < sizeof variables / sizeof variables[0]; i++) unsetenv(variables[i]);
  return 0;
}

static void test_every_code_has_a_text(void **state) {
  (void)state;
  for (int code = ZENPS_ERR_TRAINER; code <= ZENPS_IN_PROGRESS; code++) {
    assert_non_null(zenps_strerror((zenps_status_t)code));
  }
  assert_string_equal(zenps_strerror(ZENPS_IN_PROGRESS), "in progress");
  assert_string_equal(zenps_strerror(ZENPS_ERR_RANK_TAKEN), zps_err_str(ZPS_ERR_RANK_TAKEN));
}

static void test_last_error(void **state) {
  (void)state;
  assert_int_equal(zps_worker_fail(ZPS_ERR_BUSY, "step %d", 7), ZENPS_ERR_BUSY);
  assert_int_equal(zenps_last_error()->status, ZENPS_ERR_BUSY);
  assert_string_equal(zenps_last_error()->text, "step 7");
  const struct zps_error error = {ZPS_ERR_IO, "disk"};
  assert_int_equal(zps_worker_raise(&error), ZENPS_ERR_IO);
  assert_string_equal(zenps_last_error()->text, "disk");
}

static void test_defaults(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_OK);
  assert_string_equal(options.coordinator, "127.0.0.1:7077");
  assert_string_equal(options.job, "default");
  assert_string_equal(options.provider, "auto");
  assert_null(options.interface);
  assert_null(options.subnet);
  assert_int_equal(options.rank, 0);
  assert_int_equal(options.world, 1);
  assert_int_equal(options.local_rank, 0);
  assert_int_equal(options.join_timeout_ms, 60000);
  assert_int_equal(options.round_timeout_ms, 60000);
  assert_true(options.threads >= 1);
  assert_int_equal(options.memory_limit_bytes, zps_machine_memory_bytes() / 2);
  assert_int_equal(options.replay_memory_bytes, 256 << 20);
  assert_int_equal(options.log_level, 1);
  zps_worker_options_fini(&options);
}

static void test_profile(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  zenps_options_t given;
  char text[1024];
  ZENPS_OPTIONS_INIT(&given);
  given.round_timeout_ms = 7000;
  setenv("ZENPS_PROFILE", "internet", 1);
  setenv("ZENPS_FABRIC_KEEPALIVE", "3s", 1);
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_true(options.encrypt && options.join_timeout_ms == 600000);
  assert_true(options.round_timeout_ms == 7000 && options.keepalive_ms == 3000);
  assert_true(zps_worker_options_profile(&options, text, sizeof text));
  assert_string_equal(
      text,
      "profile internet: fabric.keepalive as ZENPS_FABRIC_KEEPALIVE says, fabric.encrypt = yes, "
      "fabric.bbr = yes, fabric.connections = 8, join-timeout = 10m, round-timeout as the program says");
  zps_worker_options_fini(&options);
  setenv("ZENPS_PROFILE", "lan", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "the environment's ZENPS_PROFILE is 'lan': must be one of none, internet");
}

static void test_torchrun(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "8", 1);
  setenv("LOCAL_WORLD_SIZE", "8", 1);
  setenv("LOCAL_RANK", "5", 1);
  setenv("TORCHELASTIC_RUN_ID", "run-17", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_OK);
  assert_string_equal(options.job, "run-17");
  assert_int_equal(options.rank, 3);
  assert_int_equal(options.world, 8);
  assert_int_equal(options.local_world, 8);
  assert_int_equal(options.local_rank, 5);
  zps_worker_options_fini(&options);
  setenv("ZENPS_LOCAL_RANK", "2", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_OK);
  assert_int_equal(options.local_rank, 2);
  zps_worker_options_fini(&options);
}

static void test_a_rank_of_nobody(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  setenv("TORCHELASTIC_RUN_ID", "none", 1);
  setenv("SLURM_NTASKS", "4", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "SLURM_NTASKS"));
  given.world = 1; /* a process that says so is alone */
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_string_equal(options.job, "default");
  zps_worker_options_fini(&options);
  unsetenv("SLURM_NTASKS");

  setenv("SLURM_PROCID", "3", 1);
  setenv("SLURM_STEP_NUM_TASKS", "5", 1);
  setenv("SLURM_STEP_ID", "0", 1);
  setenv("SLURM_JOB_ID", "71", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_OK);
  assert_int_equal(options.rank, 3);
  assert_int_equal(options.world, 5);
  assert_string_equal(options.job, "slurm-71.0");
  zps_worker_options_fini(&options);
  given.world = 0;
  given.rank = 4; /* given values count; the launcher's values fill in the rest */
  given.job = "mine";
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.rank, 4);
  assert_int_equal(options.world, 5);
  assert_string_equal(options.job, "mine");
  zps_worker_options_fini(&options);
}

static void expect_refused_timeout(const zenps_options_t *given, uint64_t wanted_ms) {
  struct zps_worker_options options;
  struct zps_error error;
  assert_int_equal(zps_worker_options_load(given, &options, &error), ZPS_OK);
  assert_int_equal(options.refused_timeout_ms, wanted_ms);
  zps_worker_options_fini(&options);
}

static void test_refused_timeout(void **state) {
  (void)state;
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  expect_refused_timeout(NULL, 30000);
  expect_refused_timeout(&given, 30000);
  given.join_timeout_ms = 300000;
  expect_refused_timeout(&given, 300000);
  setenv("ZENPS_REFUSED_TIMEOUT", "7s", 1);
  expect_refused_timeout(&given, 7000);
  given.refused_timeout_ms = 5000;
  expect_refused_timeout(&given, 5000);
  unsetenv("ZENPS_REFUSED_TIMEOUT");
  setenv("ZENPS_JOIN_TIMEOUT", "90s", 1);
  expect_refused_timeout(NULL, 90000);
  unsetenv("ZENPS_JOIN_TIMEOUT");
}

static void test_server_places(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.server_places, 0);
  zps_worker_options_fini(&options);
  setenv("ZENPS_SERVER_PLACES", "8", 1);
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.server_places, 8);
  zps_worker_options_fini(&options);
  given.server_places = 4;
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.server_places, 4);
  zps_worker_options_fini(&options);
  given.server_places = 1025;
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_ERR_INVALID);
  assert_string_equal(error.text, "server_places is 1025; it must be 1 to 1024, or 0");
  given.server_places = -1;
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_ERR_INVALID);
  setenv("ZENPS_SERVER_PLACES", "2000", 1);
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_ERR_INVALID);
  assert_non_null(strstr(error.text, "ZENPS_SERVER_PLACES"));
  unsetenv("ZENPS_SERVER_PLACES");
}

static void expect_defaults(uint64_t threads, uint64_t memory_limit_bytes) {
  struct zps_worker_options options;
  struct zps_error error;
  assert_int_equal(zps_worker_options_load(NULL, &options, &error), ZPS_OK);
  assert_int_equal(options.threads, threads);
  assert_int_equal(options.memory_limit_bytes, memory_limit_bytes);
  zps_worker_options_fini(&options);
}

/* A rank's part of the processors that the process may use: by its container, and by its affinity. */
static void test_shares(void **state) {
  (void)state;
  const uint64_t half = zps_machine_memory_bytes() / 2, gib = 1ull << 30;
  cpu_set_t set, one;
  setenv("ZENPS_LOCAL_WORLD_SIZE", "2", 1);
  expect_defaults(zps_machine_cores_each(2), half / 2 > gib ? half / 2 : half < gib ? half : gib);
  setenv("ZENPS_LOCAL_WORLD_SIZE", "4096", 1);
  expect_defaults(1, half / 4096 > gib ? half / 4096 : half < gib ? half : gib);
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &set)) CPU_SET(i, &one);
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  setenv("ZENPS_LOCAL_WORLD_SIZE", "1", 1);
  expect_defaults(1, half);
  assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

static void test_precedence(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  setenv("RANK", "3", 1);
  setenv("ZENPS_RANK", "4", 1);
  setenv("ZENPS_WORLD_SIZE", "8", 1);
  setenv("ZENPS_JOB", "from-environment", 1);
  setenv("ZENPS_ROUND_TIMEOUT", "1500ms", 1);
  setenv("ZENPS_CODEC", "paper", 1);
  setenv("ZENPS_VALUES", "qsgd8", 1);
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.rank, 4);
  assert_string_equal(options.job, "from-environment");
  assert_int_equal(options.round_timeout_ms, 1500);
  assert_int_equal(options.codec + 1, ZENPS_CODEC_PAPER);
  assert_int_equal(options.values + 1, ZENPS_VALUES_QSGD8);
  zps_worker_options_fini(&options);

  given.rank = 5;
  given.job = "given";
  given.round_timeout_ms = 2500;
  given.threads = 3;
  given.subnet = "10.0.0.0/8";
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.rank, 5);
  assert_int_equal(options.world, 8);
  assert_string_equal(options.job, "given");
  assert_string_equal(options.subnet, "10.0.0.0/8");
  assert_int_equal(options.round_timeout_ms, 2500);
  assert_int_equal(options.threads, 3);
  zps_worker_options_fini(&options);
}

static void refused(const zenps_options_t *given, zps_err_t code, const char *says) {
  struct zps_worker_options options;
  struct zps_error error;
  assert_int_equal(zps_worker_options_load(given, &options, &error), code);
  if (!strstr(error.text, says)) fail_msg("\"%s\" does not say \"%s\"", error.text, says);
}

static void test_refused(void **state) {
  (void)state;
  zenps_options_t given;
  char long_name[200];
  memset(long_name, 'x', sizeof long_name - 1);
  long_name[sizeof long_name - 1] = '\0';

  ZENPS_OPTIONS_INIT(&given);
  given.rank = 2;
  given.world = 2;
  refused(&given, ZPS_ERR_INVALID, "rank 2 of a world of 2");
  given.rank = -2;
  refused(&given, ZPS_ERR_INVALID, "-2");
  ZENPS_OPTIONS_INIT(&given);
  given.world = 5000;
  refused(&given, ZPS_ERR_INVALID, "5000");
  ZENPS_OPTIONS_INIT(&given);
  given.threads = -1;
  refused(&given, ZPS_ERR_INVALID, "threads");
  ZENPS_OPTIONS_INIT(&given);
  given.job = long_name;
  refused(&given, ZPS_ERR_INVALID, "199 bytes");
  ZENPS_OPTIONS_INIT(&given);
  given.round_timeout_ms = UINT64_MAX;
  refused(&given, ZPS_ERR_INVALID, "24 h");
  ZENPS_OPTIONS_INIT(&given);
  given.device = -2;
  refused(&given, ZPS_ERR_INVALID, "device is -2");
  setenv("ZENPS_DEVICE", "cuda", 1);
  refused(NULL, ZPS_ERR_INVALID, "'cuda'");
  unsetenv("ZENPS_DEVICE");

  setenv("ZENPS_ROUND_TIMEOUT", "soon", 1);
  refused(NULL, ZPS_ERR_INVALID, "ZENPS_ROUND_TIMEOUT");
}

static void expect_device(const zenps_options_t *given, int device) {
  struct zps_worker_options options;
  struct zps_error error;
  assert_int_equal(zps_worker_options_load(given, &options, &error), ZPS_OK);
  assert_int_equal(options.device, device);
  zps_worker_options_fini(&options);
}

static void test_device(void **state) {
  (void)state;
  zenps_options_t given;
  ZENPS_OPTIONS_INIT(&given);
  expect_device(&given, -1);
  setenv("ZENPS_DEVICE", "none", 1);
  expect_device(&given, -1);
  setenv("ZENPS_DEVICE", "3", 1);
  expect_device(NULL, 3);
  expect_device(&given, 3);
  given.device = 0;
  expect_device(&given, 0);
  given.struct_size = offsetof(zenps_options_t, device); /* an older header's */
  expect_device(&given, 3);
}

/* A caller compiled with an older or a newer header. */
static void test_struct_sizes(void **state) {
  (void)state;
  struct zps_worker_options options;
  struct zps_error error;
  struct {
    zenps_options_t known;
    uint64_t later;
  } newer;
  zenps_options_t given = {0};
  refused(&given, ZPS_ERR_INVALID, "struct_size");

  zenps_options_init(&given, offsetof(zenps_options_t, round_timeout_ms));
  given.world = 2;
  given.round_timeout_ms = 77; /* absent, by the caller's header */
  assert_int_equal(zps_worker_options_load(&given, &options, &error), ZPS_OK);
  assert_int_equal(options.world, 2);
  assert_int_equal(options.round_timeout_ms, 60000);
  zps_worker_options_fini(&options);

  zenps_options_init(&newer.known, sizeof newer);
  newer.known.world = 2;
  assert_int_equal(zps_worker_options_load(&newer.known, &options, &error), ZPS_OK);
  assert_int_equal(options.world, 2);
  zps_worker_options_fini(&options);
  newer.later = 1;
  refused(&newer.known, ZPS_ERR_UNSUPPORTED, "0.1.0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_code_has_a_text),
      cmocka_unit_test(test_last_error),
      cmocka_unit_test_setup(test_defaults, clean_environment),
      cmocka_unit_test_setup(test_profile, clean_environment),
      cmocka_unit_test_setup(test_torchrun, clean_environment),
      cmocka_unit_test_setup(test_a_rank_of_nobody, clean_environment),
      cmocka_unit_test_setup(test_refused_timeout, clean_environment),
      cmocka_unit_test_setup(test_server_places, clean_environment),
      cmocka_unit_test_setup(test_shares, clean_environment),
      cmocka_unit_test_setup(test_precedence, clean_environment),
      cmocka_unit_test_setup(test_refused, clean_environment),
      cmocka_unit_test_setup(test_device, clean_environment),
      cmocka_unit_test_setup(test_struct_sizes, clean_environment),
  };
  return cmocka_run_group_tests_name("worker options", tests, NULL, NULL);
}
