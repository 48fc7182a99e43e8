/* Streams that wait for requests: that these are done, or over in whatever way. */
#include "tests/integration/device_rig.h"

static const struct spec spec = {.rows = 3000, .width = 4, .dtype = ZENPS_F32, .density = 0.2};
enum { STARTED, STEPS = 300 };

struct waiting {
  zenps_grad_t in, out;
  zenps_request_t *request;
  void *there; /* the result's copy, by the stream */
};

/* The stream copies the result as soon as it is there; nothing waits for that here. The result is in pinned memory: of
 * other memory the bytes may be taken when the copy is submitted. */
static void start(struct gpu *gpu, struct waiting *waiting, zenps_tensor_t *tensor, const struct rank *rank,
                  uint64_t step) {
  const size_t len = spec.rows * spec_row_bytes(&spec);
  grad_make(&spec, rank->rank, step, &waiting->in);
  out_make(&spec, &waiting->in, &waiting->out);
  free(waiting->out.values);
  gpu_check(gpu->device->ops->allocate(gpu->device, ZPS_MEMORY_PINNED, len, &waiting->out.values, &gpu_error));
  memset(waiting->out.values, 0, len);
  waiting->there = gpu_new(gpu, len);
  CHECK_OK(zenps_allreduce(tensor, step, &waiting->in, &waiting->out, &waiting->request));
  CHECK_OK(zenps_request_stream_wait(waiting->request, gpu->stream));
  gpu_check(gpu->device->ops->copy(gpu->device, waiting->there, waiting->out.values, len, gpu->stream, &gpu_error));
  gpu_check(gpu->device->ops->event_record(gpu->device, gpu->event, gpu->stream, &gpu_error));
}

static void end(struct gpu *gpu, struct waiting *waiting) {
  gpu_free(gpu, waiting->there);
  gpu->device->ops->release(gpu->device, ZPS_MEMORY_PINNED, waiting->out.values);
  waiting->out.values = NULL;
  out_free(&spec, &waiting->in, &waiting->out);
  grad_free(&waiting->in);
}

static bool has_passed(struct gpu *gpu) {
  struct zps_error error;
  for (unsigned i = 0; i < 3; i++) /* the emulation runs work when it is asked */
    if (gpu->device->ops->event_query(gpu->device, gpu->event, &error) == ZPS_OK) return true;
  return false;
}

/* The copy has the sum, so it came after it; before the others were there, it had not begun. */
static void steps(struct rank *rank) {
  struct gpu gpu;
  struct waiting waiting;
  setenv("ZENPS_DEVICE", "0", 1); /* no array names the device */
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  for (uint64_t step = 1; step <= STEPS; step++) {
    if (rank->rank > 0 && step == 1) rank_await(rank, STARTED, 1);
    start(&gpu, &waiting, tensor, rank, step);
    if (rank->rank == 0 && step == 1) {
      CHECK(!has_passed(&gpu));
      rank->words[STARTED] = 1;
    }
    gpu_check(gpu.device->ops->event_sync(gpu.device, gpu.event, &gpu_error));
    CHECK_OK(zenps_wait(waiting.request, -1));
    CHECK_OK(zenps_request_stream_wait(waiting.request, gpu.stream)); /* done: nothing to wait for */
    if (step % 50 == 1) {
      zenps_grad_t got = waiting.out;
      got.values = gpu_download(&gpu, waiting.there, spec.rows * spec_row_bytes(&spec));
      out_check(&spec, rank->world, step, &got);
      free(got.values);
    }
    zenps_request_free(waiting.request);
    end(&gpu, &waiting);
  }
  device_end(&gpu, rank);
}

static void test_a_stream_waits_for_a_request(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, steps, NULL, 0);
}

/* Rank 1 stays away: rank 0's stream goes on when the request is canceled, when it is freed, and at its deadline. */
static void overs(struct rank *rank) {
  struct gpu gpu;
  struct waiting waiting;
  rank->round_timeout_ms = 1500;
  setenv("ZENPS_DEVICE", "0", 1);
  device_begin(&gpu, rank);
  zenps_tensor_t *tensors[3];
  static const char *const names[] = {"canceled", "freed", "late"};
  for (unsigned i = 0; i < 3; i++) tensors[i] = tensor_open(rank, names[i], &spec);
  for (unsigned i = 0; i < 3 && rank->rank == 0; i++) {
    start(&gpu, &waiting, tensors[i], rank, 1);
    if (i < 2) CHECK(!has_passed(&gpu));
    if (i == 0) CHECK_OK(zenps_cancel(waiting.request));
    if (i == 1) zenps_request_free(waiting.request);
    gpu_check(gpu.device->ops->event_sync(gpu.device, gpu.event, &gpu_error));
    if (i == 0) CHECK_STATUS(zenps_wait(waiting.request, -1), ZENPS_ERR_CANCELED);
    if (i == 2) CHECK_STATUS(zenps_wait(waiting.request, -1), ZENPS_ERR_MISSING);
    if (i != 1) zenps_request_free(waiting.request);
    end(&gpu, &waiting);
  }
  rank->words[STARTED] += rank->rank == 0;
  rank_await(rank, STARTED, 1);
  device_end(&gpu, rank);
}

static void test_a_stream_goes_on_in_any_case(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, overs, NULL, 0);
}

/* The round's own work would come behind the wait. */
static void own_stream(struct rank *rank) {
  struct gpu gpu;
  struct device_flight flight;
  zps_stream_t other;
  device_begin(&gpu, rank);
  zenps_tensor_t *const tensor = tensor_open(rank, "t", &spec);
  gpu_check(gpu.device->ops->stream_create(gpu.device, &other, &gpu_error));
  device_flight_make(&gpu, &flight, &spec, rank, 1);
  if (rank->rank > 0) rank_await(rank, STARTED, 1);
  CHECK_OK(zenps_allreduce(tensor, 1, &flight.in, &flight.out, &flight.request));
  CHECK_STATUS(zenps_request_stream_wait(NULL, other), ZENPS_ERR_INVALID);
  if (rank->rank == 0) { /* rank 1's request may be done */
    CHECK_STATUS(zenps_request_stream_wait(flight.request, gpu.stream), ZENPS_ERR_INVALID);
    CHECK_SAYS(zenps_last_error()->text, "the operation's own work is submitted to that stream");
    rank->words[STARTED] = 1;
  }
  CHECK_OK(zenps_request_stream_wait(flight.request, other));
  gpu_check(gpu.device->ops->event_record(gpu.device, gpu.event, other, &gpu_error));
  gpu_check(gpu.device->ops->event_sync(gpu.device, gpu.event, &gpu_error));
  CHECK_OK(zenps_wait(flight.request, -1));
  device_out_check(&gpu, &spec, rank->world, 1, &flight.out);
  device_flight_end(&gpu, &flight, &spec);
  gpu.device->ops->stream_destroy(gpu.device, other);
  device_end(&gpu, rank);
}

static void test_a_round_does_not_wait_for_itself(void **state) {
  (void)state;
  ranks_run(cluster_shared(), 2, own_stream, NULL, 0);
}

const struct CMUnitTest device_stream_tests[] = {
    cmocka_unit_test(test_a_stream_waits_for_a_request),
    cmocka_unit_test(test_a_stream_goes_on_in_any_case),
    cmocka_unit_test(test_a_round_does_not_wait_for_itself),
};
const size_t n_device_stream_tests = sizeof device_stream_tests / sizeof device_stream_tests[0];
