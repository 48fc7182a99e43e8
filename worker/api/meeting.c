#include "worker/api/meeting.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/api/tensor.h"

#define ROW_BYTES ZPS_MEETING_ROW_BYTES
#define DATA_ROWS (ZPS_MEETING_DATA_MAX / ROW_BYTES)

/* ------------------------------------------------------------ a rank's row */

/* Bytes 0 to 7: kind, 8 to 15: root, 16 to 23: length, 24 to 31: segments counted; little-endian. */
static void word_put(unsigned char *row, unsigned word, uint64_t value) {
  for (unsigned i = 0; i < 8; i++) row[8 * word + i] = (unsigned char)(value >> (8 * i));
}

static uint64_t word_get(const unsigned char *row, unsigned word) {
  uint64_t value = 0;
  for (unsigned i = 0; i < 8; i++) value |= (uint64_t)row[8 * word + i] << (8 * i);
  return value;
}

static void row_put(unsigned char *row, const struct zps_call *call, uint64_t segments) {
  memset(row, 0, ROW_BYTES);
  word_put(row, 0, (uint64_t)call->kind);
  word_put(row, 1, call->root);
  word_put(row, 2, call->len);
  word_put(row, 3, segments);
}

/* ------------------------------------------------------------ the comparison */

static uint32_t n_ranks(const struct zps_among *among) {
  return among->group ? among->group->n_ranks : (uint32_t)zenps_world(among->job);
}

/* The i-th rank's number in the job. */
static uint32_t number(const struct zps_among *among, uint32_t i) {
  return among->group ? among->group->ranks[i] : i;
}

static uint32_t own_row(const struct zps_among *among) {
  uint32_t i = 0;
  while (number(among, i) != (uint32_t)zenps_rank(among->job)) i++;
  return i;
}

static void describe(char *text, size_t size, const unsigned char *row) {
  if (word_get(row, 0) == ZPS_CALL_BROADCAST)
    snprintf(text, size, "zenps_broadcast() of %" PRIu64 " bytes from rank %" PRIu64, word_get(row, 2),
             word_get(row, 1));
  else
    snprintf(text, size, "zenps_barrier()");
}

/* The rows of all ranks are there, and say the same; *segments_p: the largest count of segments. */
static zenps_status_t compare(const struct zps_among *among, const zenps_grad_t *out, uint64_t *segments_p) {
  const uint32_t n = n_ranks(among);
  const unsigned char *rows = out->values;
  char first[96], other[96];
  *segments_p = 0;
  for (uint32_t i = 0; i < n; i++) {
    const unsigned char *row = rows + (size_t)i * ROW_BYTES;
    if (i >= out->nnz || out->row_ids[i] != (int64_t)i)
      return zps_worker_fail(ZPS_ERR_PROTOCOL, "rank %" PRIu32 " took part in a barrier or broadcast without a call",
                             number(among, i));
    if (memcmp(row, rows, 24) != 0) {
      describe(first, sizeof first, rows);
      describe(other, sizeof other, row);
      return zps_worker_fail(ZPS_ERR_SHAPE,
                             "ranks differ in what they call: rank %" PRIu32 " %s, rank %" PRIu32
                             " %s; it must be the same on all ranks",
                             number(among, 0), first, number(among, i), other);
    }
    if (word_get(row, 3) > *segments_p) *segments_p = word_get(row, 3);
  }
  return ZENPS_OK;
}

/* Rows of zeros were not sent. */
static void take(const zenps_grad_t *out, uint32_t n, unsigned char *data, size_t len) {
  if (len > 0) memset(data, 0, len);
  for (uint64_t i = n; i < out->nnz; i++) {
    const size_t at = ((size_t)out->row_ids[i] - n) * ROW_BYTES;
    if (at >= len) continue;
    memcpy(data + at, (const unsigned char *)out->values + (size_t)i * ROW_BYTES,
           len - at < ROW_BYTES ? len - at : ROW_BYTES);
  }
}

/* ------------------------------------------------------------ the round */

/* Once: a barrier is often. A group that was closed since is refused by the call that opens. */
static zenps_status_t tensor_open(const struct zps_among *among) {
  zenps_tensor_options_t options;
  pthread_mutex_lock(&among->job->lock);
  const bool may_go_on = !among->group || among->group->is_open;
  pthread_mutex_unlock(&among->job->lock);
  if (may_go_on && among->collective->tensor) return ZENPS_OK;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.partitions = 1;
  options.group = among->group;
  return zps_worker_tensor_open(among->job, "@collective", n_ranks(among) + DATA_ROWS, ROW_BYTES, ZPS_DTYPE_U8,
                                &options, &among->collective->tensor);
}

/* What this rank sends: its call and, of a root, the data. */
struct sent {
  size_t n_rows;
  int64_t *row_ids; /* before the values, in one piece */
  unsigned char *values;
};

static bool sent_make(struct sent *sent, size_t len) {
  sent->n_rows = 1 + (len + ROW_BYTES - 1) / ROW_BYTES;
  sent->row_ids = calloc(sent->n_rows, sizeof *sent->row_ids + ROW_BYTES);
  sent->values = (unsigned char *)(sent->row_ids + sent->n_rows);
  return sent->row_ids != NULL;
}

static zenps_status_t meet(const struct zps_among *among, uint64_t step, const struct sent *sent, unsigned char *data,
                           size_t len) {
  zenps_grad_t in, out;
  zenps_request_t *request;
  uint64_t segments;
  ZENPS_GRAD_INIT(&in);
  ZENPS_GRAD_INIT(&out);
  in.layout = out.layout = ZENPS_ROWS;
  in.nnz = sent->n_rows;
  in.row_ids = sent->row_ids;
  in.values = sent->values;
  zenps_status_t status = zps_worker_allreduce(among->collective->tensor, step, &in, &out, &request);
  if (status != ZENPS_OK) return status;
  status = zenps_wait(request, -1);
  if (status == ZENPS_OK) status = compare(among, &out, &segments);
  if (status == ZENPS_OK) {
    among->collective->segments = segments;
    take(&out, n_ranks(among), data, len);
  }
  zenps_request_free(request);
  return status;
}

zenps_status_t zps_meeting_hold(const struct zps_among *among, const struct zps_call *call, unsigned char *data,
                                size_t len, bool is_root) {
  struct sent sent;
  zenps_status_t status = tensor_open(among);
  if (status != ZENPS_OK) return status;
  const uint64_t step = among->collective->meetings++;
  if (!sent_make(&sent, is_root ? len : 0))
    return zps_worker_fail(ZPS_ERR_NOMEM, "no memory for %zu rows of a barrier or broadcast", sent.n_rows);
  sent.row_ids[0] = own_row(among);
  row_put(sent.values, call, among->collective->segments);
  for (size_t i = 1; i < sent.n_rows; i++) sent.row_ids[i] = (int64_t)(n_ranks(among) + i - 1);
  if (is_root && len > 0) memcpy(sent.values + ROW_BYTES, data, len);
  status = meet(among, step, &sent, data, is_root ? 0 : len);
  free(sent.row_ids);
  return status;
}
