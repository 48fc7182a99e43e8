#include "tests/integration/device_rig.h"

#include <dlfcn.h>

struct zps_error gpu_error;

void gpu_check(zps_err_t code) {
  if (code != ZPS_OK) rank_fail(__FILE__, __LINE__, gpu_error.text);
}

/* ------------------------------------------------------------ the device */

/* A function of tests/gpu/emu/control.h in the library; NULL: it drives a real GPU. */
static void *emulation(const char *name) {
  void *const library = dlopen(getenv("ZENPS_DEVICE_LIBRARY"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) fail_msg("%s", dlerror());
  void *const symbol = dlsym(library, name);
  dlclose(library); /* it stays */
  return symbol;
}

bool gpu_is_emulated(void) {
  return emulation("zps_emu_hold") != NULL;
}

void gpu_hold(const struct gpu *gpu, bool hold) {
  void (*const call)(void *, bool) = (void (*)(void *, bool))(uintptr_t)emulation("zps_emu_hold");
  CHECK(call != NULL);
  call(gpu->stream, hold);
}

void gpu_fail_allocation(uint64_t n) {
  void (*const call)(uint64_t) = (void (*)(uint64_t))(uintptr_t)emulation("zps_emu_fail_allocation");
  CHECK(call != NULL);
  call(n);
}

uint64_t gpu_stops(void) {
  uint64_t (*const call)(void) = (uint64_t(*)(void))(uintptr_t)emulation("zps_emu_stops");
  CHECK(call != NULL);
  return call();
}

uint64_t gpu_allocations(void) {
  uint64_t (*const call)(void) = (uint64_t(*)(void))(uintptr_t)emulation("zps_emu_allocations");
  return call ? call() : 0;
}

void device_begin(struct gpu *gpu, struct rank *rank) {
  gpu_check(zps_device_load(getenv("ZENPS_DEVICE_LIBRARY"), 0, &gpu->device, &gpu_error));
  gpu_check(gpu->device->ops->stream_create(gpu->device, &gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_create(gpu->device, &gpu->event, &gpu_error));
  rank_open(rank);
}

void device_end(struct gpu *gpu, struct rank *rank) {
  rank_close(rank);
  gpu->device->ops->event_destroy(gpu->device, gpu->event);
  gpu->device->ops->stream_destroy(gpu->device, gpu->stream);
  zps_device_close(gpu->device);
  CHECK(gpu_allocations() == 0);
}

void gpu_sync(struct gpu *gpu) {
  gpu_check(gpu->device->ops->event_record(gpu->device, gpu->event, gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_sync(gpu->device, gpu->event, &gpu_error));
}

void *gpu_new(struct gpu *gpu, size_t len_bytes) {
  void *at = NULL;
  gpu_check(gpu->device->ops->allocate(gpu->device, ZPS_MEMORY_DEVICE, len_bytes, &at, &gpu_error));
  return at;
}

void gpu_free(struct gpu *gpu, void *at) {
  gpu->device->ops->release(gpu->device, ZPS_MEMORY_DEVICE, at);
}

void *gpu_upload(struct gpu *gpu, const void *from, size_t len_bytes) {
  void *const at = gpu_new(gpu, len_bytes);
  gpu_check(gpu->device->ops->copy(gpu->device, at, from, len_bytes, gpu->stream, &gpu_error));
  return at;
}

void *gpu_download(struct gpu *gpu, const void *from, size_t len_bytes) {
  void *const to = malloc(len_bytes + 1);
  CHECK(to != NULL);
  gpu_check(gpu->device->ops->copy(gpu->device, to, from, len_bytes, gpu->stream, &gpu_error));
  gpu_sync(gpu);
  return to;
}

/* ------------------------------------------------------------ gradients and results */

void grad_upload(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *host, zenps_grad_t *grad) {
  const uint64_t n = host->layout == ZENPS_ROWS ? host->nnz : spec->rows;
  *grad = *host;
  grad->memory = ZENPS_DEVICE;
  grad->device = 0;
  grad->stream = gpu->stream;
  if (host->values) grad->values = gpu_upload(gpu, host->values, n * spec_row_bytes(spec));
  if (host->row_ids) grad->row_ids = gpu_upload(gpu, host->row_ids, n * sizeof *host->row_ids);
}

void out_new(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out) {
  ZENPS_GRAD_INIT(out);
  out->layout = spec->rows_out ? ZENPS_ROWS : ZENPS_DENSE;
  out->memory = ZENPS_DEVICE;
  out->device = 0;
  out->stream = gpu->stream;
  if (spec->in_place) {
    out->values = in->values;
  } else if (!spec->rows_out || spec->own_arrays) {
    out->capacity = spec->rows;
    out->values = gpu_new(gpu, spec->rows * spec_row_bytes(spec));
    if (spec->rows_out) out->row_ids = gpu_new(gpu, spec->rows * sizeof *out->row_ids);
  }
}

void grad_delete(struct gpu *gpu, zenps_grad_t *grad) {
  gpu_free(gpu, grad->row_ids);
  gpu_free(gpu, grad->values);
}

/* After the request, and with it arrays of the library's, is gone. */
static void out_delete(struct gpu *gpu, const struct spec *spec, zenps_grad_t *out) {
  if (!spec->in_place && (!spec->rows_out || spec->own_arrays)) grad_delete(gpu, out);
}

void out_download(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *out, zenps_grad_t *host) {
  const uint64_t n = spec->rows_out ? out->nnz : spec->rows;
  *host = *out;
  host->values = gpu_download(gpu, out->values, n * spec_row_bytes(spec));
  host->row_ids = spec->rows_out ? gpu_download(gpu, out->row_ids, n * sizeof *out->row_ids) : NULL;
}

void device_out_check(struct gpu *gpu, const struct spec *spec, int world, uint64_t step, const zenps_grad_t *out) {
  zenps_grad_t host;
  out_download(gpu, spec, out, &host);
  out_check(spec, world, step, &host);
  grad_free(&host);
}

/* ------------------------------------------------------------ flights and steps */

void device_flight_make(struct gpu *gpu, struct device_flight *flight, const struct spec *spec, const struct rank *rank,
                        uint64_t step) {
  grad_make(spec, rank->rank, step, &flight->host);
  grad_upload(gpu, spec, &flight->host, &flight->in);
  gpu_sync(gpu); /* a failed operation may never look at it, and it is freed then */
  out_new(gpu, spec, &flight->in, &flight->out);
}

void device_flight_start(struct gpu *gpu, struct device_flight *flight, zenps_tensor_t *tensor, const struct spec *spec,
                         const struct rank *rank, uint64_t step) {
  device_flight_make(gpu, flight, spec, rank, step);
  CHECK_OK(zenps_allreduce(tensor, step, &flight->in, &flight->out, &flight->request));
}

void device_flight_end(struct gpu *gpu, struct device_flight *flight, const struct spec *spec) {
  zenps_request_free(flight->request);
  out_delete(gpu, spec, &flight->out);
  grad_delete(gpu, &flight->in);
  grad_free(&flight->host);
}

static zenps_request_stats_t stats_of(zenps_request_t *request) {
  zenps_request_stats_t stats = {.struct_size = sizeof stats};
  CHECK_OK(zenps_request_stats(request, &stats));
  return stats;
}

static void compare(const struct spec *spec, const zenps_grad_t *got, const zenps_grad_t *wanted) {
  const uint64_t n = spec->rows_out ? wanted->nnz : spec->rows;
  CHECK(got->nnz == wanted->nnz);
  CHECK(memcmp(got->values, wanted->values, n * spec_row_bytes(spec)) == 0);
  if (spec->rows_out) CHECK(memcmp(got->row_ids, wanted->row_ids, n * sizeof *got->row_ids) == 0);
}

static void compare_costs(zenps_request_t *request, zenps_request_t *wanted) {
  const zenps_request_stats_t here = stats_of(request), there = stats_of(wanted);
  if (here.payload_out != there.payload_out || here.payload_in != there.payload_in) {
    char text[200];
    snprintf(text, sizeof text, "payloads out, in: %llu, %llu; of the twin %llu, %llu",
             (unsigned long long)here.payload_out, (unsigned long long)here.payload_in,
             (unsigned long long)there.payload_out, (unsigned long long)there.payload_in);
    rank_fail(__FILE__, __LINE__, text);
  }
  CHECK(here.nnz_in == there.nnz_in && here.nnz_out == there.nnz_out && here.bound_bytes == there.bound_bytes);
}

void device_step(struct gpu *gpu, zenps_tensor_t *tensor, zenps_tensor_t *twin, const struct device_case *is,
                 const struct rank *rank, uint64_t step) {
  const struct spec *const spec = &is->spec;
  struct spec twin_spec = *spec;
  zenps_grad_t host_in, host_out, in, out, seen;
  zenps_request_t *request, *twin_request;
  const bool in_on_host = is->in_on_host || is->ranks_on_host >> rank->rank & 1;
  twin_spec.in_place = false;
  grad_make(spec, rank->rank, step, &host_in);
  out_make(&twin_spec, &host_in, &host_out);
  CHECK_OK(zenps_allreduce(twin, step, &host_in, &host_out, &twin_request));
  CHECK_OK(zenps_wait(twin_request, -1));

  in = host_in;
  if (!in_on_host) grad_upload(gpu, spec, &host_in, &in);
  if (is->out_on_host)
    out_make(spec, &in, &out);
  else
    out_new(gpu, spec, &in, &out);
  CHECK_OK(zenps_allreduce(tensor, step, &in, &out, &request));
  CHECK_OK(zenps_wait(request, -1));
  if (is->out_on_host)
    seen = out;
  else
    out_download(gpu, spec, &out, &seen);
  if (!is->as_host) out_check(spec, rank->world, step, &seen);
  if (is->as_host || !is->other_costs) compare(spec, &seen, &host_out);
  if (!is->other_costs) compare_costs(request, twin_request);
  CHECK(!is->is_on_device || stats_of(request).partitioned_in == ZENPS_DEVICE);
  CHECK(!is->tells_merged || stats_of(request).merged_in == is->merged_in);
  if (!is->out_on_host) grad_free(&seen);

  zenps_request_free(twin_request);
  out_free(&twin_spec, &host_in, &host_out);
  zenps_request_free(request);
  if (is->out_on_host)
    out_free(spec, &in, &out);
  else
    out_delete(gpu, spec, &out);
  if (!in_on_host) grad_delete(gpu, &in);
  grad_free(&host_in);
}

void device_steps(struct rank *rank) {
  const struct device_case *const is = rank->arg;
  struct gpu gpu;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &is->spec), *const twin = tensor_open(rank, "twin", &is->spec);
  for (uint64_t step = 0; step < 3; step++) device_step(&gpu, tensor, twin, is, rank, step);
  device_end(&gpu, rank);
}

void device_set_host(const struct rank *rank) {
  char host[16];
  snprintf(host, sizeof host, "host%d", rank->rank / 2);
  setenv("ZENPS_HOST", host, 1);
}
