/*
 * Barrier and broadcast, as rounds of tensors of bytes that users cannot name: '@' starts no name of theirs.
 *
 * A barrier is a meeting, and a broadcast begins with one, in which ranks compare their calls. A short broadcast is in
 * the meeting. Of a long one only the last bytes are, which fill no row; the others go in segments of 4 MiB, rows of 64
 * bytes of which only the root pushes any. The sum of one contribution is the contribution, bit for bit. Rows of zeros
 * are not sent.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/api/job.h"
#include "worker/api/meeting.h"
#include "worker/api/tensor.h"

#define BYTES_PER_ROW 64u
#define ROWS_PER_SEGMENT 65536u
#define SEGMENT_BYTES ((size_t)BYTES_PER_ROW * ROWS_PER_SEGMENT)
#define SEGMENTS_IN_FLIGHT 4u

static zenps_status_t among_all(zenps_job_t *job, const char *call, struct zps_among *among) {
  if (!job) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the job is NULL", call);
  *among = (struct zps_among){.job = job, .collective = &job->collective};
  return zps_worker_forked(job) ? zps_worker_fail_forked() : ZENPS_OK;
}

static zenps_status_t among_group(zenps_group_t *group, const char *call, struct zps_among *among) {
  if (!group) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the group is NULL", call);
  *among = (struct zps_among){.job = group->job, .group = group, .collective = &group->collective};
  return zps_worker_forked(group->job) ? zps_worker_fail_forked() : ZENPS_OK;
}

/* ------------------------------------------------------------ barrier */

static zenps_status_t barrier(const struct zps_among *among) {
  static const struct zps_call call = {.kind = ZPS_CALL_BARRIER};
  pthread_mutex_lock(&among->collective->lock);
  const zenps_status_t status = zps_meeting_hold(among, &call, NULL, 0, false);
  pthread_mutex_unlock(&among->collective->lock);
  return zps_first_call(among->job, status);
}

zenps_status_t zenps_barrier(zenps_job_t *job) {
  struct zps_among among;
  const zenps_status_t status = among_all(job, "zenps_barrier", &among);
  return status == ZENPS_OK ? barrier(&among) : status;
}

zenps_status_t zenps_group_barrier(zenps_group_t *group) {
  struct zps_among among;
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
static zenps_status_t broadcast_long(const struct zps_among *among, unsigned char *data, size_t len, bool root) {
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

static zenps_status_t broadcast(const struct zps_among *among, unsigned char *data, size_t len, int root) {
  const struct zps_call call = {.kind = ZPS_CALL_BROADCAST, .root = (uint32_t)root, .len = len};
  const bool is_root = zenps_rank(among->job) == root;
  const size_t segments = len > ZPS_MEETING_DATA_MAX ? len - len % BYTES_PER_ROW : 0;
  const zenps_status_t status =
      zps_meeting_hold(among, &call, len > 0 ? data + segments : NULL, len - segments, is_root);
  if (status != ZENPS_OK || segments == 0) return status;
  return broadcast_long(among, data, segments, is_root);
}

static bool has_rank(const struct zps_among *among, int rank) {
  if (!among->group) return rank >= 0 && rank < zenps_world(among->job);
  for (uint32_t i = 0; i < among->group->n_ranks; i++)
    if ((int)among->group->ranks[i] == rank) return true;
  return false;
}

static zenps_status_t broadcast_alone(const struct zps_among *among, const char *call, void *data, size_t len,
                                      int root) {
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
  struct zps_among among;
  const zenps_status_t status = among_all(job, "zenps_broadcast", &among);
  return status == ZENPS_OK ? broadcast_alone(&among, "zenps_broadcast", data, len, root) : status;
}

zenps_status_t zenps_group_broadcast(zenps_group_t *group, void *data, size_t len, int root) {
  struct zps_among among;
  const zenps_status_t status = among_group(group, "zenps_group_broadcast", &among);
  return status == ZENPS_OK ? broadcast_alone(&among, "zenps_group_broadcast", data, len, root) : status;
}
