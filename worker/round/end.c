#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/choice/auto.h"
#include "worker/api/job.h"
#include "worker/plane/plane.h"
#include "worker/api/request.h"
#include "worker/round/round.h"
#include "worker/api/tensor.h"

static void say_silent(const struct zps_round *round, char *text, size_t size) {
  const struct zps_plane *plane = round->plane;
  bool any_announced = false, first = true;
  for (uint32_t s = 0; s < plane->n_servers; s++) any_announced |= round->servers[s].announced;
  zps_text_add(text, size, "the deadline of %" PRIu64 " ms passed ",
               (uint64_t)((round->deadline_ns - round->start_ns) / ZPS_NS_PER_MS));
  if (!any_announced) {
    zps_text_add(text, size, "before the gradient was encoded");
    return;
  }
  zps_text_add(text, size, "without the sums of");
  for (uint32_t s = 0; s < plane->n_servers; s++) {
    if (!zps_round_machine_needs(round->machine, s)) continue;
    zps_text_add(text, size, "%s server %" PRIu32 " (%s)", first ? "" : ",", s, plane->servers[s].name);
    first = false;
  }
  if (first) zps_text_add(text, size, " no server: they are here, but not decoded");
}

void zps_served_explain(struct zps_round *round) {
  char *text = round->reason.text;
  const uint32_t blame = round->machine->blame;
  if (text[0] != '\0' || round->machine->code == ZPS_OK) return;
  if (round->machine->code == ZPS_ERR_TIMEOUT) {
    say_silent(round, text, sizeof round->reason.text);
    return;
  }
  if (blame != ZPS_MACHINE_ALL) {
    zps_text_add(text, sizeof round->reason.text, "server %" PRIu32 " (%s): ", blame,
                 round->plane->servers[blame].name);
  }
  zps_text_add(text, sizeof round->reason.text, "%s", zps_err_str(round->machine->code));
}

/* The round may be done, and its result not get to where the caller wants it. */
static zps_err_t code_of(const struct zps_round *round) {
  if (round->machine->state != ZPS_MACHINE_DONE) return round->machine->code;
  return round->has_work_error ? round->work_error.code : ZPS_OK;
}

static void describe(const struct zps_round *round, zenps_error_t *error) {
  const struct zenps_tensor *tensor = round->tensor;
  const zps_err_t code = code_of(round);
  memset(error, 0, sizeof *error);
  error->status = (zenps_status_t)code;
  error->step = round->step;
  error->needed = round->needed;
  snprintf(error->tensor, sizeof error->tensor, "%s", tensor->name);
  for (uint32_t i = 0; i < round->reason.n_ranks && i < sizeof error->missing_ranks / sizeof error->missing_ranks[0];
       i++) {
    error->missing_ranks[error->n_missing++] = round->reason.ranks[i];
  }
  zps_text_add(error->text, sizeof error->text, "job %s, tensor %s, step %" PRIu64 ": ", tensor->job->options.job,
               tensor->name, round->step);
  zps_text_add(error->text, sizeof error->text, "%s", round->reason.text);
}

static uint64_t span(uint64_t from_ns, uint64_t to_ns) {
  return from_ns && to_ns > from_ns ? to_ns - from_ns : 0;
}

static void fill_stats(struct zps_round *round, uint64_t now_ns) {
  zenps_request_stats_t *stats = &round->stats;
  stats->struct_size = sizeof *stats;
  const struct zenps_tensor *tensor = round->tensor;
  stats->partitions = tensor->part.n_parts;
  stats->scheme = tensor->scheme ? tensor->scheme->scheme->name : tensor->served->name;
  stats->bound_bytes = (uint64_t)(round->bound_bytes + 0.5);
  stats->total_ns = now_ns - round->start_ns;
  stats->encode_ns = span(round->start_ns, round->announced_first_ns);
  stats->push_ns = span(round->announced_first_ns, round->announced_last_ns);
  stats->wait_ns = span(round->announced_last_ns, round->result_first_ns);
  stats->pull_ns = span(round->result_first_ns, round->landed_last_ns);
  stats->decode_ns = span(round->landed_last_ns, now_ns);
}

bool zps_round_finish(struct zps_round *round, uint64_t now_ns) {
  struct zenps_job *job = round->tensor->job;
  struct zenps_request *request = round->request;
  void (*const then)(struct zenps_request *, const struct zps_round *) = request->then;
  const bool ok = code_of(round) == ZPS_OK;
  zenps_error_t error = {0};
  fill_stats(round, now_ns);
  zps_staging_finish(round, ok);
  zps_device_pull_finish(round, ok);
  if (!ok) {
    describe(round, &error);
    zps_row_arrays_give(round->tensor, &round->row_arrays);
  } else {
    round->out->nnz = round->stats.nnz_out;
    if (round->row_arrays.rows.data) {
      round->out->row_ids = round->row_arrays.rows.data;
      round->out->values = round->row_arrays.values.data;
    }
  }
  pthread_mutex_lock(&job->lock);
  request->error = error;
  request->stats = round->stats;
  request->row_arrays = round->row_arrays;
  request->round = NULL;
  zps_worker_memory_unuse(&request->memory);
  request->done = true;
  zps_telemetry_round(round->tensor, round->step, &round->stats, ok);
  if (ok && round->tensor->automatic) zps_automatic_round_done(round->tensor->automatic, round->tensor, &round->stats);
  round->serving = ok && !round->ops->quiet(round);
  job->n_serving += round->serving;
  pthread_mutex_unlock(&job->lock);
  round->row_arrays = (struct zps_row_arrays){0};
  round->request = NULL;
  round->finished = true;
  if (then) then(request, round); /* without it, the request may be gone */
  return !then;
}
