/*
 * Barrier and broadcast, as rounds of tensors of bytes that users cannot name: '@' starts no name of theirs.
 *
 * A barrier is a meeting, and a broadcast begins with one, in which ranks compare their calls. A short broadcast is in
 * the meeting. Of a long one only the last bytes are, which fill no row; the others go in segments of 4 MiB, rows of 64
 * bytes of which only the root pushes any. The sum of one contribution is the contribution, bit for bit. Rows of zeros
 * are not sent.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/api/job.h"
#include "worker/api/tensor.h"

#define BYTES_PER_ROW 64u
#define ROWS_PER_SEGMENT 65536u
#define SEGMENT_BYTES ((size_t)BYTES_PER_ROW * ROWS_PER_SEGMENT)
#define SEGMENTS_IN_FLIGHT 4u
#define MEETING_DATA_MAX ((size_t)65536)
#define DATA_ROWS (MEETING_DATA_MAX / BYTES_PER_ROW)

/* The ranks that call together: all of the job, or a group. */
struct among {
  struct zenps_job *job;
  struct zenps_group *group; /* NULL: all */
  struct zps_collective *collective;
};

enum call_kind { CALL_BARRIER = 1, CALL_BROADCAST = 2 };

/* What a rank calls. */
struct call {
  enum call_kind kind;
  uint32_t root; /* number in the job; barrier: 0 */
  uint64_t len;  /* bytes; barrier: 0 */
};

/*
 * The first round of a barrier or broadcast: every rank says what it calls, and all compare.
 *
 * It is a round of "@collective", a tensor of rows of 64 bytes. Row i is the call of the i-th rank. The rows behind
 * these carry what a short broadcast sends, so that it takes one round.
 */

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

static void row_put(unsigned char *row, const struct call *call, uint64_t segments) {
  memset(row, 0, BYTES_PER_ROW);
  word_put(row, 0, (uint64_t)call->kind);
  word_put(row, 1, call->root);
  word_put(row, 2, call->len);
  word_put(row, 3, segments);
}

/* ------------------------------------------------------------ the comparison */

static uint32_t n_ranks(const struct among *among) {
  return among->group ? among->group->n_ranks : (uint32_t)zenps_world(among->job);
}

/* The i-th rank's number in the job. */
static uint32_t number(const struct among *among, uint32_t i) {
  return among->group ? among->group->ranks[i] : i;
}

static uint32_t own_row(const struct among *among) {
  uint32_t i = 0;
  while (number(among, i) != (uint32_t)zenps_rank(among->job)) i++;
  return i;
}

static void describe(char *text, size_t size, const unsigned char *row) {
  if (word_get(row, 0) == CALL_BROADCAST)
    snprintf(text, size, "zenps_broadcast() of %" PRIu64 " bytes from rank %" PRIu64, word_get(row, 2),
             word_get(row, 1));
  else
    snprintf(text, size, "zenps_barrier()");
}

/* The rows of all ranks are there, and say the same; *segments_p: the largest count of segments. */
static zenps_status_t compare(const struct among *among, const zenps_grad_t *out, uint64_t *segments_p) {
  const uint32_t n = n_ranks(among);
  const unsigned char *rows = out->values;
  char first[96], other[96];
  *segments_p = 0;
  for (uint32_t i = 0; i < n; i++) {
    const unsigned char *row = rows + (size_t)i * BYTES_PER_ROW;
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
    const size_t at = ((size_t)out->row_ids[i] - n) * BYTES_PER_ROW;
    if (at >= len) continue;
    memcpy(data + at, (const unsigned char *)out->values + (size_t)i * BYTES_PER_ROW,
           len - at < BYTES_PER_ROW ? len - at : BYTES_PER_ROW);
  }
}

/* ------------------------------------------------------------ the round */

/* Once: a barrier is often. A group that was closed since is refused by the call that opens. */
static zenps_status_t tensor_open(const struct among *among) {
  zenps_tensor_options_t options;
  pthread_mutex_lock(&among->job->lock);
  const bool may_go_on = !among->group || among->group->is_open;
  pthread_mutex_unlock(&among->job->lock);
  if (may_go_on && among->collective->tensor) return ZENPS_OK;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.partitions = 1;
  options.group = among->group;
  return zps_worker_tensor_open(among->job, "@collective", n_ranks(among) + DATA_ROWS, BYTES_PER_ROW, ZPS_DTYPE_U8,
                                &options, &among->collective->tensor);
}

/* What this rank sends: its call and, of a root, the data. */
struct sent {
  size_t n_rows;
  int64_t *row_ids; /* before the values, in one piece */
  unsigned char *values;
};

static bool sent_make(struct sent *sent, size_t len) {
  sent->n_rows = 1 + (len + BYTES_PER_ROW - 1) / BYTES_PER_ROW;
  sent->row_ids = calloc(sent->n_rows, sizeof *sent->row_ids + BYTES_PER_ROW);
  sent->values = (unsigned char *)(sent->row_ids + sent->n_rows);
  return sent->row_ids != NULL;
}

static zenps_status_t meet(const struct among *among, uint64_t step, const struct sent *sent, unsigned char *data,
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

/* Tells the other ranks of `call`. `data`, of at most MEETING_DATA_MAX bytes, goes from the root to all others.
 * ZENPS_ERR_SHAPE on every rank where two call other things: then `data` is as it was. Else the ranks' counts of
 * segments become one, the largest. Under the lock of `among->collective`. */
static zenps_status_t hold_meeting(const struct among *among, const struct call *call, unsigned char *data, size_t len,
                                   bool is_root) {
  struct sent sent;
  zenps_status_t status = tensor_open(among);
  if (status != ZENPS_OK) return status;
  const uint64_t step = among->collective->meetings++;
  if (!sent_make(&sent, is_root ? len : 0))
    return zps_worker_fail(ZPS_ERR_NOMEM, "no memory for %zu rows of a barrier or broadcast", sent.n_rows);
  sent.row_ids[0] = own_row(among);
  row_put(sent.values, call, among->collective->segments);
  for (size_t i = 1; i < sent.n_rows; i++) sent.row_ids[i] = (int64_t)(n_ranks(among) + i - 1);
  if (is_root && len > 0) memcpy(sent.values + BYTES_PER_ROW, data, len);
  status = meet(among, step, &sent, data, is_root ? 0 : len);
  free(sent.row_ids);
  return status;
}

static zenps_status_t among_all(zenps_job_t *job, const char *call, struct among *among) {
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the job is NULL", call);
  *among = (struct among){.job = job, .collective = &job->collective};
  return zps_worker_forked(job) ? zps_worker_fail_forked() : ZENPS_OK;
}

static zenps_status_t among_group(zenps_group_t *group, const char *call, struct among *among) {
  if (!group) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the group is NULL", call);
  *among = (struct among){.job = group->job, .group = group, .collective = &group->collective};
  return zps_worker_forked(group->job) ? zps_worker_fail_forked() : ZENPS_OK;
}

/* ------------------------------------------------------------ barrier */

static zenps_status_t barrier(const struct among *among) {
  static const struct call call = {.kind = CALL_BARRIER};
  pthread_mutex_lock(&among->collective->lock);
  const zenps_status_t status = hold_meeting(among, &call, NULL, 0, false);
  pthread_mutex_unlock(&among->collective->lock);
  return zps_first_call(among->job, status);
}

zenps_status_t zenps_barrier(zenps_job_t *job) {
  struct among among;
  const zenps_status_t status = among_all(job, "zenps_barrier", &among);
  return status == ZENPS_OK ? barrier(&among) : status;
}

zenps_status_t zenps_group_barrier(zenps_group_t *group) {
  struct among among;
  const zenps_status_t status = among_group(group, "zenps_group_barrier", &among);
  return status == ZENPS_OK ? barrier(&among) : status;
}

/* ------------------------------------------------------------ broadcast */

struct segment {
  zenps_request_t *request; /* NULL: none in flight */
  zenps_grad_t in, out;
  unsigned char *data;
  size_t len; /* a multiple of BYTES_PER_ROW */
};

struct broadcast {
  struct zenps_tensor *tensor;
  bool root;
  int64_t *row_ids; /* 0, 1, 2, ... */
};

static zenps_status_t segment_start(const struct broadcast *cast, struct segment *segment, uint64_t step) {
  ZENPS_GRAD_INIT(&segment->in);
  ZENPS_GRAD_INIT(&segment->out);
  segment->in.layout = segment->out.layout = ZENPS_ROWS;
  if (cast->root) {
    segment->in.nnz = segment->len / BYTES_PER_ROW;
    segment->in.row_ids = cast->row_ids;
    segment->in.values = segment->data;
  }
  return zps_worker_allreduce(cast->tensor, step, &segment->in, &segment->out, &segment->request);
}

/* Waits, and copies the segment's bytes to their place. */
static zenps_status_t segment_finish(const struct broadcast *cast, struct segment *segment) {
  if (!segment->request) return ZENPS_OK;
  zenps_status_t status = zenps_wait(segment->request, -1);
  const uint64_t n_rows = segment->len / BYTES_PER_ROW;
  const zenps_grad_t *out = &segment->out;
  if (status == ZENPS_OK && out->nnz > 0 && (uint64_t)out->row_ids[out->nnz - 1] >= n_rows) {
    status = zps_worker_fail(ZPS_ERR_SHAPE, "zenps_broadcast: the root sends more than the %zu bytes given here",
                             segment->len);
  }
  if (status == ZENPS_OK && !cast->root) {
    memset(segment->data, 0, segment->len);
    for (uint64_t i = 0; i < out->nnz; i++) {
      memcpy(segment->data + (size_t)out->row_ids[i] * BYTES_PER_ROW,
             (const unsigned char *)out->values + (size_t)i * BYTES_PER_ROW, BYTES_PER_ROW);
    }
  }
  zenps_request_free(segment->request);
  segment->request = NULL;
  return status;
}

/* `len` is a multiple of BYTES_PER_ROW. */
static zenps_status_t segments_send(const struct broadcast *cast, uint64_t step, unsigned char *data, size_t len) {
  struct segment ring[SEGMENTS_IN_FLIGHT];
  zenps_status_t status = ZENPS_OK;
  unsigned at = 0;
  memset(ring, 0, sizeof ring);
  for (size_t done = 0; done < len && status == ZENPS_OK; at = (at + 1) % SEGMENTS_IN_FLIGHT) {
    struct segment *segment = &ring[at];
    status = segment_finish(cast, segment);
    if (status != ZENPS_OK) break;
    segment->data = data + done;
    segment->len = len - done < SEGMENT_BYTES ? len - done : SEGMENT_BYTES;
    status = segment_start(cast, segment, step++);
    done += segment->len;
  }
  zenps_error_t first = *zenps_last_error();
  for (unsigned i = 0; i < SEGMENTS_IN_FLIGHT; i++, at = (at + 1) % SEGMENTS_IN_FLIGHT) {
    if (status != ZENPS_OK && ring[at].request) (void)zenps_cancel(ring[at].request);
    const zenps_status_t later = segment_finish(cast, &ring[at]);
    if (status == ZENPS_OK && later != ZENPS_OK) {
      status = later;
      first = *zenps_last_error();
    }
  }
  return status == ZENPS_OK ? status : zps_worker_raise_detail(&first);
}

/* What the meeting has left: `len` bytes, a multiple of BYTES_PER_ROW. */
static zenps_status_t broadcast_long(const struct among *among, unsigned char *data, size_t len, bool root) {
  struct broadcast cast = {.root = root};
  zenps_tensor_options_t options;
  ZENPS_TENSOR_OPTIONS_INIT(&options);
  options.group = among->group;
  zenps_status_t status = zps_worker_tensor_open(among->job, "@broadcast", ROWS_PER_SEGMENT, BYTES_PER_ROW,
                                                 ZPS_DTYPE_U8, &options, &cast.tensor);
  if (status != ZENPS_OK) return status;
  /* All ranks count alike, also where one of them fails half way. */
  const uint64_t step = among->collective->segments;
  among->collective->segments += (len + SEGMENT_BYTES - 1) / SEGMENT_BYTES;
  if (root) {
    const size_t n_rows = len / BYTES_PER_ROW < ROWS_PER_SEGMENT ? len / BYTES_PER_ROW : ROWS_PER_SEGMENT;
    cast.row_ids = malloc(n_rows * sizeof *cast.row_ids);
    if (!cast.row_ids) return zps_worker_fail(ZPS_ERR_NOMEM, "zenps_broadcast: no memory for %zu row numbers", n_rows);
    for (size_t i = 0; i < n_rows; i++) cast.row_ids[i] = (int64_t)i;
  }
  status = segments_send(&cast, step, data, len);
  free(cast.row_ids);
  return status;
}

static zenps_status_t broadcast(const struct among *among, unsigned char *data, size_t len, int root) {
  const struct call call = {.kind = CALL_BROADCAST, .root = (uint32_t)root, .len = len};
  const bool is_root = zenps_rank(among->job) == root;
  const size_t segments = len > MEETING_DATA_MAX ? len - len % BYTES_PER_ROW : 0;
  const zenps_status_t status = hold_meeting(among, &call, len > 0 ? data + segments : NULL, len - segments, is_root);
  if (status != ZENPS_OK || segments == 0) return status;
  return broadcast_long(among, data, segments, is_root);
}

static bool has_rank(const struct among *among, int rank) {
  for (uint32_t i = 0; i < n_ranks(among); i++)
    if ((int)number(among, i) == rank) return true;
  return false;
}

static zenps_status_t broadcast_alone(const struct among *among, const char *call, void *data, size_t len, int root) {
  if (!has_rank(among, root)) {
    return among->group ? zps_worker_fail(ZPS_ERR_INVALID, "%s: root %d is none of group %s: it is a rank of the job",
                                          call, root, among->group->name)
                        : zps_worker_fail(ZPS_ERR_INVALID, "%s: root %d; ranks are 0 to %d", call, root,
                                          zenps_world(among->job) - 1);
  }
  if (!data && len > 0) return zps_worker_fail(ZPS_ERR_INVALID, "%s: data is NULL, but len is %zu", call, len);
  pthread_mutex_lock(&among->collective->lock);
  const zenps_status_t status = broadcast(among, data, len, root);
  pthread_mutex_unlock(&among->collective->lock);
  return zps_first_call(among->job, status);
}

zenps_status_t zenps_broadcast(zenps_job_t *job, void *data, size_t len, int root) {
  struct among among;
  const zenps_status_t status = among_all(job, "zenps_broadcast", &among);
  return status == ZENPS_OK ? broadcast_alone(&among, "zenps_broadcast", data, len, root) : status;
}

zenps_status_t zenps_group_broadcast(zenps_group_t *group, void *data, size_t len, int root) {
  struct among among;
  const zenps_status_t status = among_group(group, "zenps_group_broadcast", &among);
  return status == ZENPS_OK ? broadcast_alone(&among, "zenps_group_broadcast", data, len, root) : status;
}
