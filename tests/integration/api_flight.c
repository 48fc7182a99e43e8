#include "tests/integration/api_test.h"

const struct spec plain_spec = {.rows = 5000, .width = 2, .dtype = ZENPS_F32, .density = 0.2};

bool between_workers(void) {
  const char *scheme = getenv("ZENPS_SCHEME");
  return scheme && strcmp(scheme, "balanced") != 0;
}

void flight_open(struct flight *flight, const struct spec *spec, struct rank *rank) {
  rank_open(rank);
  flight->tensor = tensor_open(rank, "t", spec);
  step_run(flight->tensor, spec, rank, 1);
}

void flight_start(struct flight *flight, const struct spec *spec, const struct rank *rank, uint64_t step) {
  grad_make(spec, rank->rank, step, &flight->in);
  out_make(spec, &flight->in, &flight->out);
  CHECK_OK(zenps_allreduce(flight->tensor, step, &flight->in, &flight->out, &flight->request));
  rank_moves(rank);
}

/* The memory is the caller's again: no other process may read it now. */
static void spoil(const struct spec *spec, const zenps_grad_t *in) {
  const uint64_t n_rows = in->layout == ZENPS_DENSE ? spec->rows : in->nnz;
  const size_t bytes = n_rows * spec->width * (spec->dtype == ZENPS_F64 ? sizeof(double) : sizeof(float));
  if (bytes > 0) memset(in->values, 0xff, bytes);
}

void flight_end(struct flight *flight, const struct spec *spec) {
  zenps_request_free(flight->request);
  spoil(spec, &flight->in);
  out_free(spec, &flight->in, &flight->out);
  grad_free(&flight->in);
}

const zenps_error_t *flight_expect_error(const struct flight *flight, const struct rank *rank, zenps_status_t status,
                                         uint64_t step, int within_ms) {
  char text[64];
  const zenps_status_t got = zenps_wait(flight->request, within_ms);
  const zenps_error_t *error = zenps_request_error(flight->request);
  CHECK_STATUS(got, status);
  CHECK(error != NULL && error->status == status && error->step == step);
  CHECK(strcmp(error->tensor, "t") == 0);
  CHECK(strcmp(error->text, zenps_last_error()->text) == 0);
  snprintf(text, sizeof text, "step %llu", (unsigned long long)step);
  CHECK_SAYS(error->text, rank->job);
  CHECK_SAYS(error->text, "tensor t");
  CHECK_SAYS(error->text, text);
  return error;
}

const zenps_error_t *flight_expect_absent(const struct flight *flight, const struct rank *rank, bool between,
                                          uint64_t step, int within_ms) {
  zenps_status_t status = between ? ZENPS_ERR_TIMEOUT : ZENPS_ERR_MISSING;
  if (getenv("ZENPS_TEST_HOSTS") && zenps_wait(flight->request, within_ms) == ZENPS_ERR_MISSING)
    status = ZENPS_ERR_MISSING;
  return flight_expect_error(flight, rank, status, step, within_ms);
}

void request_wait_ok(zenps_request_t *request) {
  CHECK_OK(zenps_wait(request, SOON_MS));
  zenps_request_free(request);
}

void request_expect(zenps_request_t *request, zenps_status_t status, const char *text) {
  CHECK_STATUS(zenps_wait(request, SOON_MS), status);
  CHECK_SAYS(zenps_request_error(request)->text, text);
  zenps_request_free(request);
}
