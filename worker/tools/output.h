/*
 * What a run prints: one queue for stdout, one for stderr, or one for both when they are the same file.
 *
 * No call waits for a reader. A queue that is full is a reason to read no more of the processes that write there: they
 * wait in its place, and nothing of theirs is lost. Single-threaded.
 */
#ifndef ZPS_TOOLS_OUTPUT_H
#define ZPS_TOOLS_OUTPUT_H

#include <stddef.h>
#include <stdint.h>

enum {
  ZPS_OUTPUT_FULL = 64 * 1024,
  ZPS_STREAM_BYTES = 8192,
  ZPS_STREAM_BLOCK = 4096, /* buffers of C's stdio and of Python are multiples of it */
  ZPS_STREAM_LABEL = 24,
  ZPS_OUTPUT_ROOM = ZPS_OUTPUT_FULL + ZPS_STREAM_BYTES * (ZPS_STREAM_LABEL + 8), /* every byte read may be a line */
  ZPS_STREAM_WAIT_MS = 200                                                       /* for the rest of a line */
};

struct zps_output {
  int fd;
  enum { ZPS_LINE_ENDED, ZPS_LINE_BEGUN, ZPS_LINE_RETURNED /* by '\r' */ } line;
  const void *owner; /* of the line that was begun */
  int why;           /* errno of the first loss */
  size_t n_lost;     /* bytes */
  size_t start, len; /* of what waits in `data` */
  char data[ZPS_OUTPUT_ROOM];
};

/* Adds text of `owner`, and `label` in front of its lines (NULL: none). A line of another owner that has not ended is
 * ended first, so that no line is of two. */
void zps_output_add(struct zps_output *output, const void *owner, const char *label, const char *text, size_t len);
/* Writes what the reader takes now. What nobody will ever read, or no disk has room for, is dropped and counted. */
void zps_output_write(struct zps_output *output);

/* What a process writes to stdout or stderr. */
struct zps_stream {
  int fd; /* does not block; -1 after its end */
  struct zps_output *output;
  const char *label;
  uint64_t since_ns; /* since when the first byte of `buf` waits for the end of its line */
  uint64_t n_read;   /* bytes so far */
  size_t len;
  char buf[ZPS_STREAM_BYTES];
};

/* Passes on the lines that came, and parts of lines that '\r' ends. Closes it at its end. */
void zps_stream_read(struct zps_stream *stream);
/* Passes on a part of a line that has waited for ZPS_STREAM_WAIT_MS, if the process flushed it on purpose. Returns for
 * how many ms it waits yet; -1: none. */
int zps_stream_look(struct zps_stream *stream, uint64_t now_ns);
void zps_stream_close(struct zps_stream *stream);

#endif
