#include "worker/tools/output.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/nowait.h"

static void put(struct zps_output *output, const char *data, size_t len) {
  if (output->start + output->len + len > sizeof output->data) {
    memmove(output->data, output->data + output->start, output->len);
    output->start = 0;
  }
  if (output->len + len > sizeof output->data) {
    output->n_lost += len; /* our own lines, while the queue is full */
    return;
  }
  memcpy(output->data + output->start + output->len, data, len);
  output->len += len;
}

/* Up to the next end of a line or of a part, and that. */
static size_t part_len(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    if (text[i] == '\n' || text[i] == '\r') return i + 1;
  return len;
}

static void add_part(struct zps_output *output, const char *label, const char *part, size_t len) {
  const char end = part[len - 1];
  const bool is_empty = len == 1 && (end == '\r' || (end == '\n' && output->line == ZPS_LINE_RETURNED));
  if (label && output->line != ZPS_LINE_BEGUN && !is_empty) {
    char prefix[ZPS_STREAM_LABEL + 4];
    put(output, prefix, (size_t)snprintf(prefix, sizeof prefix, "[%.*s] ", ZPS_STREAM_LABEL, label));
  }
  put(output, part, len);
  if (end == '\n')
    output->line = ZPS_LINE_ENDED;
  else if (end != '\r')
    output->line = ZPS_LINE_BEGUN;
  else if (output->line != ZPS_LINE_ENDED || len > 1)
    output->line = ZPS_LINE_RETURNED;
}

void zps_output_add(struct zps_output *output, const void *owner, const char *label, const char *text, size_t len) {
  if (len == 0) return;
  if (output->line != ZPS_LINE_ENDED && output->owner != owner) {
    put(output, "\n", 1);
    output->line = ZPS_LINE_ENDED;
  }
  output->owner = owner;
  for (size_t n; len > 0; text += n, len -= n) add_part(output, label, text, n = part_len(text, len));
}

/* Ends a line that this owner has begun. */
static void end_line(struct zps_output *output, const void *owner) {
  if (output->owner == owner && output->line != ZPS_LINE_ENDED) zps_output_add(output, owner, NULL, "\n", 1);
}

/* Whole lines, as many as a pipe takes in one piece: others may write to it, too. */
static size_t piece_len(const struct zps_output *output) {
  const char *const data = output->data + output->start;
  if (output->len <= PIPE_BUF) return output->len;
  const char *const newline = memrchr(data, '\n', PIPE_BUF);
  return newline ? (size_t)(newline - data) + 1 : PIPE_BUF;
}

void zps_output_write(struct zps_output *output) {
  while (output->len > 0) {
    const size_t len = piece_len(output);
    ssize_t n = zps_write_nowait(output->fd, output->data + output->start, len);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      if (output->n_lost == 0) output->why = errno;
      output->n_lost += len;
      n = (ssize_t)len;
    }
    output->start += (size_t)n;
    output->len -= (size_t)n;
  }
  output->start = 0;
}

/* ------------------------------------------------------------ of a process */

static void pass_on(struct zps_stream *stream, size_t len) {
  zps_output_add(stream->output, stream, stream->label, stream->buf, len);
  stream->len -= len;
  memmove(stream->buf, stream->buf + len, stream->len);
}

void zps_stream_close(struct zps_stream *stream) {
  if (stream->fd < 0) return;
  pass_on(stream, stream->len);
  end_line(stream->output, stream);
  zps_output_write(stream->output);
  close(stream->fd);
  stream->fd = -1;
}

void zps_stream_read(struct zps_stream *stream) {
  while (stream->output->len < ZPS_OUTPUT_FULL) {
    const size_t before = stream->len;
    const ssize_t n = read(stream->fd, stream->buf + before, sizeof stream->buf - before);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      zps_stream_close(stream);
      return;
    }
    stream->len += (size_t)n;
    stream->n_read += (size_t)n;
    if (before == 0) stream->since_ns = zps_clock_ns();
    size_t ended = stream->len;
    while (ended > 0 && stream->buf[ended - 1] != '\n' && stream->buf[ended - 1] != '\r') ended--;
    if (ended == 0 && stream->len == sizeof stream->buf) ended = stream->len;
    if (ended > 0) {
      pass_on(stream, ended);
      stream->since_ns = zps_clock_ns();
    }
    zps_output_write(stream->output);
  }
}

int zps_stream_look(struct zps_stream *stream, uint64_t now_ns) {
  if (stream->fd < 0 || stream->len == 0 || stream->output->len >= ZPS_OUTPUT_FULL) return -1;
  if (stream->n_read % ZPS_STREAM_BLOCK == 0) return -1; /* a full buffer was flushed in the middle of a line */
  const uint64_t end_ns = stream->since_ns + ZPS_STREAM_WAIT_MS * ZPS_NS_PER_MS;
  if (now_ns < end_ns) return (int)((end_ns - now_ns) / ZPS_NS_PER_MS) + 1;
  pass_on(stream, stream->len);
  zps_output_write(stream->output);
  return -1;
}
