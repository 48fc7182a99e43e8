/* Writing without waiting for the reader, to descriptors that other processes share. */
#ifndef ZPS_BASE_NOWAIT_H
#define ZPS_BASE_NOWAIT_H

#include <stddef.h>
#include <sys/types.h>

/* Writes what there is room for now. Returns the number of bytes, or -1 with errno: EAGAIN when there is no room, EPIPE
 * without SIGPIPE when there is no reader. A pipe takes up to PIPE_BUF bytes in one piece or not at all.
 *
 * O_NONBLOCK stays as it is: it belongs to the open file, which this process shares with its shell and with others.
 * Regular files are written as usual. One case may still wait: /proc does not let this process open a terminal anew (or
 * a pipe, on Linux before 6.4), and another process fills it between our look and our write. */
ssize_t zps_write_nowait(int fd, const void *data, size_t size);

#endif
