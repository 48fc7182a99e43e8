/* Gradients in the memory of a GPU: of an emulated one (tests/gpu/emu), which faults when the host touches it, or of a
 * real one, by the library that ZENPS_DEVICE_LIBRARY names. */
#ifndef ZPS_TESTS_DEVICE_RIG_H
#define ZPS_TESTS_DEVICE_RIG_H

#include "gpu/device.h"
#include "tests/integration/api_test.h"

/* A rank's GPU: the library has a handle of its own of the same. */
struct gpu {
  struct zps_device *device;
  zps_stream_t stream;
  struct zps_event *event;
};

/* The state of a rank, from beginning to end; all of it must be gone in the end, or the rank fails (where it is
 * emulated). */
void device_begin(struct gpu *gpu, struct rank *rank);
void device_end(struct gpu *gpu, struct rank *rank);

extern struct zps_error gpu_error;
void gpu_check(zps_err_t code);
void *gpu_new(struct gpu *gpu, size_t len_bytes);
void gpu_free(struct gpu *gpu, void *at);
/* Submits a copy; nothing waits for it. */
void *gpu_upload(struct gpu *gpu, const void *from, size_t len_bytes);
/* For free(). */
void *gpu_download(struct gpu *gpu, const void *from, size_t len_bytes);
/* Waits until the stream has done all its work. */
void gpu_sync(struct gpu *gpu);
/* Whether the library is the emulation's: tests that steer or question it are skipped where it is not. */
bool gpu_is_emulated(void);
#define ONLY_EMULATED \
  if (!gpu_is_emulated()) skip()
/* Of an emulated GPU, the functions of tests/gpu/emu/control.h. */
void gpu_hold(const struct gpu *gpu, bool hold);
uint64_t gpu_stops(void);
uint64_t gpu_allocations(void); /* not freed yet; 0 where the GPU is not emulated */
void gpu_fail_allocation(uint64_t n);

/* The same gradient in device memory. */
void grad_upload(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *host, zenps_grad_t *grad);
/* Room for a result there, as out_make(). */
void out_new(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out);
void grad_delete(struct gpu *gpu, zenps_grad_t *grad);
/* A result there, in host memory; for grad_free(). */
void out_download(struct gpu *gpu, const struct spec *spec, const zenps_grad_t *out, zenps_grad_t *host);
/* As out_check(). */
void device_out_check(struct gpu *gpu, const struct spec *spec, int world, uint64_t step, const zenps_grad_t *out);

/* One operation in flight on device memory, as struct flight. The gradient is there when it starts. */
struct device_flight {
  zenps_grad_t host, in, out;
  zenps_request_t *request;
};
/* Its arrays alone; the caller starts it. */
void device_flight_make(struct gpu *gpu, struct device_flight *flight, const struct spec *spec, const struct rank *rank,
                        uint64_t step);
void device_flight_start(struct gpu *gpu, struct device_flight *flight, zenps_tensor_t *tensor, const struct spec *spec,
                         const struct rank *rank, uint64_t step);
void device_flight_end(struct gpu *gpu, struct device_flight *flight, const struct spec *spec);

struct device_case {
  struct spec spec;
  bool in_on_host, out_on_host;
  unsigned ranks_on_host; /* bits of ranks whose gradient is in host memory */
  bool is_on_device;      /* the device finds and codes the gradient's rows */
  bool tells_merged;      /* stats have merged_in */
  zenps_memory_t merged_in;
  bool as_host;     /* the right result is that of the run in host memory: not the sum in rank order, or not of all */
  bool other_costs; /* the two may run under different schemes */
};

/* One step, and the same with all in host memory on the tensor's twin: the same bits, and the same bytes sent. */
void device_step(struct gpu *gpu, zenps_tensor_t *tensor, zenps_tensor_t *twin, const struct device_case *is,
                 const struct rank *rank, uint64_t step);
/* Two ranks a host, so that schemes which look at hosts have something to do. */
void device_set_host(const struct rank *rank);
/* For ranks_run(), with a case: three steps. */
void device_steps(struct rank *rank);

extern const struct CMUnitTest device_round_tests[], device_scheme_tests[], device_refusal_tests[],
    device_failure_tests[], device_check_tests[], device_result_tests[], device_stream_tests[], device_loss_tests[],
    device_merge_tests[];
extern const struct CMUnitTest device_no_library_test; /* of hosts without a device */
extern const size_t n_device_round_tests, n_device_scheme_tests, n_device_refusal_tests, n_device_failure_tests,
    n_device_check_tests, n_device_result_tests, n_device_stream_tests, n_device_loss_tests, n_device_merge_tests;

#endif
