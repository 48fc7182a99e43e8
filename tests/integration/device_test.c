/* Rounds of gradients in the memory of an emulated GPU (gpu/emu), which faults when the host touches it. See device.sh.
 */
#include <signal.h>
#include <sys/wait.h>

#include "gpu/device.h"
#include "tests/integration/api_test.h"

/* A rank's GPU: the library of the daemon's trainer has its own handle of the same. */
struct gpu {
  struct zps_device *device;
  zps_stream_t stream;
  struct zps_event *event;
};

static struct zps_error gpu_error;

static void gpu_check(zps_err_t code) {
  if (code != ZPS_OK) rank_fail(__FILE__, __LINE__, gpu_error.text);
}

static void gpu_open(struct gpu *gpu) {
  gpu_check(zps_device_load(getenv("ZENPS_DEVICE_LIBRARY"), 0, &gpu->device, &gpu_error));
  gpu_check(gpu->device->ops->stream_create(gpu->device, &gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_create(gpu->device, &gpu->event, &gpu_error));
}

static void gpu_close(struct gpu *gpu) {
  gpu->device->ops->event_destroy(gpu->device, gpu->event);
  gpu->device->ops->stream_destroy(gpu->device, gpu->stream);
  zps_device_close(gpu->device);
}

static void *gpu_new(struct gpu *gpu, size_t len_bytes) {
  void *at = NULL;
  gpu_check(gpu->device->ops->allocate(gpu->device, ZPS_MEMORY_DEVICE, len_bytes, &at, &gpu_error));
  return at;
}

static void gpu_free(struct gpu *gpu, void *at) {
  gpu->device->ops->release(gpu->device, ZPS_MEMORY_DEVICE, at);
}

/* Submits a copy; nothing waits for it. */
static void *gpu_upload(struct gpu *gpu, const void *from, size_t len_bytes) {
  void *const at = gpu_new(gpu, len_bytes);
  gpu_check(gpu->device->ops->copy(gpu->device, at, from, len_bytes, gpu->stream, &gpu_error));
  return at;
}

static void *gpu_download(struct gpu *gpu, const void *from, size_t len_bytes) {
  void *const to = malloc(len_bytes + 1);
  CHECK(to != NULL);
  gpu_check(gpu->device->ops->copy(gpu->device, to, from, len_bytes, gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_record(gpu->device, gpu->event, gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_sync(gpu->device, gpu->event, &gpu_error));
  return to;
}

static size_t row_bytes(const struct spec *spec) {
  return spec->width * (spec->dtype == ZENPS_F32 ? sizeof(float) : sizeof(double));
}

/* The same gradient in device memory. */
static void grad_upload(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *host, zenps_grad_t *grad) {
  const uint64_t n = host->layout == ZENPS_ROWS ? host->nnz : spec->rows;
  *grad = *host;
  grad->memory = ZENPS_DEVICE;
  grad->device = 0;
  grad->stream = gpu->stream;
  if (host->values) grad->values = gpu_upload(gpu, host->values, n * row_bytes(spec));
  if (host->row_ids) grad->row_ids = gpu_upload(gpu, host->row_ids, n * sizeof *host->row_ids);
}

static void out_new(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out) {
  ZENPS_GRAD_INIT(out);
  out->layout = spec->rows_out ? ZENPS_ROWS : ZENPS_DENSE;
  out->memory = ZENPS_DEVICE;
  out->device = 0;
  out->stream = gpu->stream;
  if (spec->in_place) {
    out->values = in->values;
  } else if (!spec->rows_out || spec->own_arrays) {
    out->capacity = spec->rows;
    out->values = gpu_new(gpu, spec->rows * row_bytes(spec));
    if (spec->rows_out) out->row_ids = gpu_new(gpu, spec->rows * sizeof *out->row_ids);
  }
}

static void grad_delete(struct gpu *gpu, zenps_grad_t *grad) {
  gpu_free(gpu, grad->row_ids);
  gpu_free(gpu, grad->values);
}

/* A result in device memory, looked at in host memory. */
static void device_out_check(struct gpu *gpu, const struct spec *spec, int world, uint64_t step,
                             const zenps_grad_t *out) {
  const uint64_t n = spec->rows_out ? out->nnz : spec->rows;
  zenps_grad_t host = *out;
  host.values = gpu_download(gpu, out->values, n * row_bytes(spec));
  host.row_ids = spec->rows_out ? gpu_download(gpu, out->row_ids, n * sizeof *out->row_ids) : NULL;
  out_check(spec, world, step, &host);
  grad_free(&host);
}

struct device_case {
  struct spec spec;
  bool in_on_host, out_on_host;
};

/* What a step costs must not depend on where arrays are: the same bytes travel. */
static zenps_request_stats_t stats_of(zenps_request_t *request) {
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  CHECK_OK(zenps_request_stats(request, &stats));
  return stats;
}

static void device_step(struct gpu *gpu, zenps_tensor_t *tensor, zenps_tensor_t *twin, const struct device_case *is,
                        const struct rank *rank, uint64_t step) {
  const struct spec *const spec = &is->spec;
  zenps_grad_t host_in, host_out, in, out;
  zenps_request_t *request, *twin_request;
  grad_make(spec, rank->rank, step, &host_in);
  in = host_in;
  if (!is->in_on_host) grad_upload(gpu, spec, &host_in, &in);
  if (is->out_on_host)
    out_make(spec, &in, &out);
  else
    out_new(gpu, spec, &in, &out);
  CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  if (is->out_on_host)
    out_check(spec, rank->world, step, &out);
  else
    device_out_check(gpu, spec, rank->world, step, &out);

  struct spec twin_spec = *spec;
  twin_spec.in_place = false;
  out_make(&twin_spec, &host_in, &host_out);
  CHECK_OK(zenps_allreduce(twin, step, &host_in, &host_out, &twin_request));
  CHECK_OK(zenps_wait(twin_request, -1));
  const zenps_request_stats_t here = stats_of(request), there = stats_of(twin_request);
  CHECK(here.payload_out == there.payload_out && here.payload_in == there.payload_in);
  CHECK(here.nnz_in == there.nnz_in && here.nnz_out == there.nnz_out && here.bound_bytes == there.bound_bytes);
  zenps_request_free(twin_request);
  out_free(&twin_spec, &host_in, &host_out);

  zenps_request_free(request); /* and with it arrays of the library's */
  if (is->out_on_host)
    out_free(spec, &in, &out);
  else if (!spec->in_place && (!spec->rows_out || spec->own_arrays))
    grad_delete(gpu, &out);
  if (!is->in_on_host) grad_delete(gpu, &in);
  grad_free(&host_in);
}

static void device_steps(struct rank *rank) {
  const struct device_case *const is = rank->arg;
  struct gpu gpu;
  gpu_open(&gpu);
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is->spec), *const twin = tensor_open(rank, "twin", &is->spec);
  for (uint64_t step = 0; step < 3; step++) device_step(&gpu, tensor, twin, is, rank, step);
  rank_close(rank);
  gpu_close(&gpu);
}

static void test_device_layouts(void **state) {
  (void)state;
  for (unsigned bits = 0; bits < 8; bits++) {
    const struct device_case is = {.spec = {.rows = 3001,
                                            .width = bits & 1 ? 3 : 1,
                                            .dtype = bits & 1 ? ZENPS_F64 : ZENPS_F32,
                                            .rows_in = bits & 2,
                                            .rows_out = bits & 4,
                                            .repeats = 3,
                                            .density = 0.05,
                                            .own_arrays = bits & 1}};
    ranks_run(cluster_shared(), 2 + (int)bits % 3, device_steps, &is, 0);
  }
}

/* Each step has more rows than the one before: memory grows, and is registered anew. */
static void growing(struct rank *rank) {
  struct device_case is = {.spec = {.rows = 5000, .width = 32, .dtype = ZENPS_F32, .density = 0.1}};
  struct gpu gpu;
  gpu_open(&gpu);
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  for (uint64_t step = 0; step < 4; step++, is.spec.density *= 2) device_step(&gpu, tensor, twin, &is, rank, step);
  rank_close(rank);
  gpu_close(&gpu);
}

/* Gradients with payloads that servers read, not only such that travel inside frames. */
static void test_device_bulk(void **state) {
  (void)state;
  const struct device_case rows = {
      .spec = {.rows = 4000, .width = 64, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.3}};
  const struct device_case dense = {
      .spec = {.rows = 6000, .width = 16, .dtype = ZENPS_F32, .density = 0.3, .in_place = true}};
  ranks_run(cluster_shared(), 2, device_steps, &rows, 0);
  ranks_run(cluster_shared(), 2, device_steps, &dense, 0);
  ranks_run(cluster_shared(), 2, growing, NULL, 0);
}

/* A fabric that reaches device memory itself, as the fault injector makes one of any with the emulated device's
 * dmabufs. */
static void test_device_direct(void **state) {
  (void)state;
  struct device_case is = {
      .spec = {.rows = 4000, .width = 64, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.3}};
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  setenv("ZENPS_DEVICE", "0", 1);
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  ranks_run(cluster_shared(), 2, growing, NULL, 0);
  is.out_on_host = true;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  unsetenv("ZENPS_DEVICE");
  unsetenv("ZENPS_PROVIDER");
  unsetenv("ZENPS_FABRIC_FAULT");
}

static void test_device_mixed(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 3000, .width = 2, .dtype = ZENPS_F32, .density = 0.05}, .in_on_host = true};
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.in_on_host = false;
  is.out_on_host = true;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

static void test_device_empty(void **state) {
  (void)state;
  struct device_case is = {
      .spec = {.rows = 1000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1}};
  is.spec.empty = 2;
  ranks_run(cluster_shared(), 3, device_steps, &is, 0);
  is.spec.rows_in = false;
  is.spec.density = 0;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
  is.spec.rows_out = false;
  is.spec.odd_values = true;
  is.spec.density = 0.3;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

static void test_device_values(void **state) {
  (void)state;
  struct device_case is = {.spec = {.rows = 2000, .width = 4, .dtype = ZENPS_F32, .density = 0.2}};
  ZENPS_TENSOR_OPTIONS_INIT(&is.spec.options);
  is.spec.options.codec = ZENPS_CODEC_PAPER;
  is.spec.options.op = ZENPS_OP_MEAN;
  ranks_run(cluster_shared(), 2, device_steps, &is, 0);
}

/* Several in flight at once, some of them on another stream. */
static void flights(struct rank *rank) {
  enum { FLIGHT = 4 };
  const struct spec *const spec = rank->arg;
  zenps_grad_t host_in[FLIGHT], in[FLIGHT], out[FLIGHT];
  zenps_request_t *requests[FLIGHT];
  struct gpu gpu;
  zps_stream_t other;
  gpu_open(&gpu);
  gpu_check(gpu.device->ops->stream_create(gpu.device, &other, &gpu_error));
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", spec);
  for (unsigned i = 0; i < FLIGHT; i++) {
    grad_make(spec, rank->rank, i, &host_in[i]);
    grad_upload(&gpu, spec, &host_in[i], &in[i]);
    out_new(&gpu, spec, &in[i], &out[i]);
    if (i % 2) out[i].stream = other;
  }
  for (unsigned i = 0; i < FLIGHT; i++) CHECK_OK(zenps_allreduce(tensor, i, &in[i], &out[i], &requests[i]));
  for (unsigned i = FLIGHT; i-- > 0;) {
    CHECK_OK(zenps_wait(requests[i], -1));
    device_out_check(&gpu, spec, rank->world, i, &out[i]);
    zenps_request_free(requests[i]);
    grad_delete(&gpu, &in[i]);
    grad_delete(&gpu, &out[i]);
    grad_free(&host_in[i]);
  }
  rank_close(rank);
  gpu.device->ops->stream_destroy(gpu.device, other);
  gpu_close(&gpu);
}

static void test_device_flights(void **state) {
  (void)state;
  const struct spec spec = {.rows = 2500, .width = 32, .dtype = ZENPS_F32, .density = 0.2};
  ranks_run(cluster_shared(), 2, flights, &spec, 0);
}

/* ------------------------------------------------------------ what is refused */

/* The emulation is as strict as it is said to be. */
static void expect_fault(const void *at) {
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's would end it in peace */
    signal(SIGBUS, SIG_DFL);
    _exit(*(const volatile char *)at == 42 ? 0 : 0);
  }
  int status = 0;
  CHECK(waitpid(pid, &status, 0) == pid);
  CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
}

static void refusals(struct rank *rank) {
  const struct spec spec = {.rows = 100, .width = 1, .dtype = ZENPS_F32, .density = 0.5};
  struct spec ring = spec, ranges = spec;
  ZENPS_TENSOR_OPTIONS_INIT(&ring.options);
  ZENPS_TENSOR_OPTIONS_INIT(&ranges.options);
  ring.options.scheme = "ring";
  ranges.options.scheme = "dense-ps";
  zenps_grad_t host, in, out;
  zenps_request_t *request;
  struct gpu gpu;
  gpu_open(&gpu);
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &host);
  grad_upload(&gpu, &spec, &host, &in);
  out_new(&gpu, &spec, &in, &out);
  expect_fault(in.values);

  in.device = -1; /* and nothing else says which */
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "ZENPS_DEVICE");
  in.device = 7;
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "no GPU 7");
  in.device = 0;

  void *const at = in.values;
  in.values = host.values;
  CHECK_STATUS(zenps_allreduce(tensor, 0, &in, &out, &request), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_last_error()->text, "not in the memory of GPU 0");
  in.values = at;

  CHECK_STATUS(zenps_allreduce(tensor_open(rank, "ring", &ring), 0, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "scheme ring");
  CHECK_STATUS(zenps_allreduce(tensor_open(rank, "ranges", &ranges), 0, &in, &out, &request), ZENPS_ERR_UNSUPPORTED);
  CHECK_SAYS(zenps_last_error()->text, "scheme dense-ps");

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
  rank_close(rank);
  gpu_close(&gpu);
}

static void test_device_refusals(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 1, refusals, NULL, 0);
}

/* A bad row number, and arrays that are too small. */
static void failures(struct rank *rank) {
  const struct spec spec = {.rows = 500,
                            .width = 2,
                            .dtype = ZENPS_F32,
                            .rows_in = true,
                            .rows_out = true,
                            .density = 0.1,
                            .own_arrays = true};
  zenps_grad_t host, in, out;
  zenps_request_t *request;
  struct gpu gpu;
  gpu_open(&gpu);
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  grad_make(&spec, rank->rank, 0, &host);
  if (rank->rank == 0) host.row_ids[3] = 500;
  grad_upload(&gpu, &spec, &host, &in);
  out_new(&gpu, &spec, &in, &out);
  CHECK_OK(zenps_allreduce(tensor, 0, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), ZENPS_ERR_INVALID);
  CHECK_SAYS(zenps_request_error(request)->text, rank->rank == 0 ? "position 3" : "rank 0");
  zenps_request_free(request);
  grad_delete(&gpu, &in);
  grad_free(&host);

  grad_make(&spec, rank->rank, 1, &host);
  grad_upload(&gpu, &spec, &host, &in);
  if (rank->rank == 1) out.capacity = 5;
  CHECK_OK(zenps_allreduce(tensor, 1, &in, &out, &request));
  CHECK_STATUS(zenps_wait(request, -1), rank->rank == 1 ? ZENPS_ERR_TRUNCATED : ZENPS_OK);
  if (rank->rank == 1) CHECK(zenps_request_error(request)->needed > 5);
  if (rank->rank == 0) device_out_check(&gpu, &spec, rank->world, 1, &out);
  zenps_request_free(request);
  grad_delete(&gpu, &in);
  grad_delete(&gpu, &out);
  grad_free(&host);
  rank_close(rank);
  gpu_close(&gpu);
}

static void test_device_failures(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, failures, NULL, 0);
}

/* ------------------------------------------------------------ what the coordinator shows */

/* Whether its table of this job's ranks says of each what is wanted, within a while. */
static void expect_members(const struct rank *rank, const char *const *wanted) {
  const uint64_t until = now_ms() + 10000;
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
  gpu_open(&gpu);
  if (rank->rank >= 2) setenv("ZENPS_DEVICE", "0", 1);
  if (rank->rank == 3) {
    setenv("ZENPS_PROVIDER", "fault+net", 1);
    setenv("ZENPS_FABRIC_FAULT", "dmabuf=1", 1);
  }
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is.spec), *const twin = tensor_open(rank, "twin", &is.spec);
  if (rank->rank == 0) expect_members(rank, before);
  CHECK_OK(zenps_barrier(rank->zenps));
  device_step(&gpu, tensor, twin, rank->rank == 0 ? &on_host : &is, rank, 0);
  if (rank->rank == 0) expect_members(rank, after);
  CHECK_OK(zenps_barrier(rank->zenps));
  rank_close(rank);
  gpu_close(&gpu);
}

static void test_device_members(void **state) {
  (void)state;
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

int main(int argc, char **argv) {
  const struct CMUnitTest no_device[] = {cmocka_unit_test(test_no_device_library)};
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_device_layouts),   cmocka_unit_test(test_device_bulk),
                                     cmocka_unit_test(test_device_direct),    cmocka_unit_test(test_device_mixed),
                                     cmocka_unit_test(test_device_empty),     cmocka_unit_test(test_device_values),
                                     cmocka_unit_test(test_device_flights),   cmocka_unit_test(test_device_refusals),
                                     cmocka_unit_test(test_device_failures),  cmocka_unit_test(test_device_members),
                                     cmocka_unit_test(test_no_device_library)};
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  const int failed = getenv("ZENPS_DEVICE_LIBRARY") ? cmocka_run_group_tests_name("device", tests, NULL, NULL)
                                                    : cmocka_run_group_tests_name("device", no_device, NULL, NULL);
  cluster_shared_stop();
  return failed;
}
