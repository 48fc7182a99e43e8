/* Streams that wait for requests. */
#include "worker/api/job.h"
#include "worker/api/request.h"
#include "worker/base/error.h"
#include "worker/device/device.h"

/* The round may not have submitted all of its own work yet. */
static bool is_own(const struct zenps_request *request, const void *stream) {
  for (unsigned i = 0; i < 2; i++)
    if (request->streams[i].is_used && request->streams[i].stream == stream) return true;
  return false;
}

/* Under the job's lock: the word becomes the request's, if it still has something to wait for. *spare_p: what is not
 * needed of it. */
static struct zps_word note(struct zenps_request *request, struct zps_word *word, struct zps_word **spare_p) {
  const bool is_over = request->done || request->is_expired;
  *spare_p = is_over || request->word ? word : NULL;
  if (is_over) return (struct zps_word){0};
  if (!request->word) request->word = word;
  return *request->word;
}

zenps_status_t zenps_request_stream_wait(zenps_request_t *request, void *stream) {
  static const char call[] = "zenps_request_stream_wait";
  struct zps_worker_device *device;
  struct zps_word *word, *spare;
  struct zps_error error;
  if (!request) return zps_worker_fail(ZPS_ERR_INVALID, "%s: the request is NULL", call);
  struct zenps_job *const job = request->job;
  if (zps_worker_forked(job)) return zps_worker_fail_forked();
  pthread_mutex_lock(&job->lock);
  const bool done = request->done;
  pthread_mutex_unlock(&job->lock);
  if (done) return ZENPS_OK; /* the job may be closed by now */
  if (is_own(request, stream))
    return zps_worker_fail(ZPS_ERR_INVALID,
                           "%s: the operation's own work is submitted to that stream, and would wait for itself: give "
                           "gradient and result another stream, which waits for an event of this one",
                           call);
  zps_err_t code = zps_worker_device_get(job, -1, &device, &error);
  if (code == ZPS_OK && !device->device->ops->stream_wait_word)
    code = zps_fail(&error, ZPS_ERR_UNSUPPORTED, "device %s has no streams that wait", device->device->ops->kind);
  if (code == ZPS_OK) code = zps_words_take(&device->words, &word, &error);
  if (code != ZPS_OK) return zps_worker_fail(code, "%s: %s", call, error.text);
  pthread_mutex_lock(&job->lock);
  const struct zps_word is = note(request, word, &spare);
  pthread_mutex_unlock(&job->lock);
  zps_words_set(&device->words, spare);
  if (!is.at) return ZENPS_OK;
  code = device->device->ops->stream_wait_word(device->device, stream, is.at, is.value, &error);
  return code == ZPS_OK ? ZENPS_OK : zps_worker_fail(code, "%s: %s", call, error.text);
}
