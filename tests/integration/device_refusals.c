/* Refusals, the tables of the coordinator, and hosts without a device. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/integration/device_rig.h"

/* The emulation is as strict as it is said to be. */
static void expect_fault(const void *at) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's would end it in peace */
    signal(SIGBUS, SIG_DFL);
    (void)*(const volatile char *)at;
    _exit(0); /* it should not have come to this */
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
}

static void refusals(struct rank *rank) {
  const struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32, .density = 0.5};
  zenps_grad_t host, in, out;
  zenps_request_t *request;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &host);
  grad_upload(&gpu, &spec, &host, &in);
  out_new(&gpu, &spec, &in, &out);
  if (gpu_is_emulated()) expect_fault(in.values);

  in.device = -1; /* nothing names the device now */
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "ZENPS_DEVICE");
  in.device = 1000;
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "no GPU 1000");
  in.device = 0;

  void *const at = in.values;
  in.values = host.values;
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "not in the memory of GPU 0");
  in.values = at;

  const size_t len = spec.rows * sizeof(float);
  CHECK_STATUS(zenps_mem_register(rank->zenps, ZENPS_DEVICE, -1, host.values, len), ZENPS_ERR_INVALID);
  CHECK_OK(zenps_mem_register(rank->zenps, ZENPS_DEVICE, -1, in.values, len - 8));
  CHECK_STATUS(zenps_mem_register(rank->zenps, ZENPS_DEVICE, 0, (char *)in.values + 16, 16), ZENPS_ERR_BUSY);
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "registered");
  CHECK_OK(zenps_mem_deregister(rank->zenps, in.values));
  CHECK_STATUS(zenps_mem_deregister(rank->zenps, in.values), ZENPS_ERR_UNKNOWN);
  CHECK_OK(zenps_mem_register(rank->zenps, ZENPS_DEVICE, 0, in.values, len));
  CHECK_OK(zenps_allreduce(tensor, 0, &in, &out, &request));
  if (rank->rank == 0) { /* while the others have not come */
    CHECK_STATUS(zenps_mem_deregister(rank->zenps, in.values), ZENPS_ERR_BUSY);
    atomic_store(&rank->words[0], 1);
  }
  CHECK_OK(zenps_wait(request, -1));
  zenps_request_free(request);
  CHECK_OK(zenps_mem_deregister(rank->zenps, in.values));

  grad_delete(&gpu, &in);
  grad_delete(&gpu, &out);
  grad_free(&host);
  device_end(&gpu, rank);
}

static void test_device_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, refusals, NULL, 0);
}

/* ------------------------------------------------------------ what the coordinator shows */

/* Whether the coordinator's table of this job's ranks has the expected word for each rank, within a while. */
static void expect_members(const struct rank *rank, const char *const *wanted) {
  const uint64_t until = now_ms() + SOON_MS;
  char command[800], line[2048];
  snprintf(command, sizeof command, "%s --endpoint %s members", getenv("ZENPSCTL"), rank->cluster->address);
  for (int n_right = 0; n_right < rank->world;) {
    CHECK(now_ms() < until);
    n_right = 0;
    FILE *in = popen(command, "r");
    CHECK(in != NULL);
    while (fgets(line, sizeof line, in)) {
      char *rest = line, *const name = strtok_r(line, " ", &rest), *const number = strtok_r(NULL, " ", &rest);
      if (!name || !number || strcmp(name, rank->job) != 0) continue;
      const char *const path = wanted[atoi(number)];
      for (char *cell; (cell = strtok_r(NULL, " ", &rest)) != NULL;) n_right += strcmp(cell, path) == 0;
    }
    pclose(in);
  }
}

/* Rank 0 has no device, rank 1 opens one with its first gradient there, ranks 2 and 3 from the beginning; the fabric of
 * the last reaches its memory. */
static void shown(struct rank *rank) {
  static const char *const before[] = {"host", "host", "staged", "dmabuf"};
  static const char *const after[] = {"host", "staged", "staged", "dmabuf"};
  const struct device_case is = {.spec = {.rows = 200, .width = 1, .dtype = ZENPS_F32, .density = 0.5}};
  const struct device_case on_host = {.spec = is.spec, .in_on_host = true, .out_on_host = true};
  struct gpu gpu;
  if (rank->rank >= 2) setenv("ZENPS_DEVICE", "0", 1);
  if (rank->rank == 3) {
    setenv("ZENPS_PROVIDER", "fault+net", 1);
    setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  }
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  if (rank->rank == 0) expect_members(rank, before);
  CHECK_OK(zenps_barrier(rank->zenps));
  device_step(&gpu, tensor, twin, rank->rank == 0 ? &on_host : &is, rank, 0);
  if (rank->rank == 0) expect_members(rank, after);
  CHECK_OK(zenps_barrier(rank->zenps));
  device_end(&gpu, rank);
}

static void test_device_members(void **state) {
  (void)state;
  ONLY_EMULATED; /* the fault injector can reach the memory of no other */
  ranks_run(cluster_shared(), 4, shown, NULL, 0);
}

/* ------------------------------------------------------------ hosts without CUDA */

static void no_library(struct rank *rank) {
  const struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32, .density = 0.5};
  zenps_grad_t in, out;
  zenps_request_t *request;
  zenps_options_t options;
  setenv("ZENPS_DEVICE_LIBRARY", "libzenps_no_such_thing.so", 1);
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &in);
  out_make(&spec, &in, &out);
  in.memory = ZENPS_DEVICE;
  in.device = 0;
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "tensor t: in is in device memory: no support for GPUs here");
  CHECK_SAYS(zenps_last_error()->text, "libzenps_no_such_thing.so");
  CHECK_SAYS(zenps_last_error()->text, "--with-cuda");
  CHECK_STATUS(zenps_mem_register(rank->zenps, ZENPS_DEVICE, 0, in.values, 400), ZENPS_ERR_UNSUPPORTED);
  in.memory = ZENPS_HOST; /* nothing is lost by it */
  CHECK_OK(zenps_allreduce(tensor, 0, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  out_check(&spec, rank->world, 0, &out);
  zenps_request_free(request);
  out_free(&spec, &in, &out);
  grad_free(&in);
  rank_close(rank);

  rank_options(rank, &options);
  options.device = 0;
  CHECK_STATUS(zenps_open(&options, &rank->zenps), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "no support for GPUs here");
}

static void test_no_device_library(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, no_library, NULL, 0);
}

const struct CMUnitTest device_refusal_tests[] = {cmocka_unit_test(test_device_refusals),
                                                  cmocka_unit_test(test_device_members)};
const size_t n_device_refusal_tests = sizeof device_refusal_tests / sizeof device_refusal_tests[0];
const struct CMUnitTest device_no_library_test = cmocka_unit_test(test_no_device_library);
