/*
 * The file by which others see that this process is ready (control.ready_file): it exists exactly while that is so. The
 * process keeps it locked (flock), so that a file that was left behind is known from one that a running daemon holds.
 * Used from the loop's thread.
 */
#ifndef ZPS_SERVER_DAEMON_READY_H
#define ZPS_SERVER_DAEMON_READY_H

#include "common/base/err.h"

struct zps_ready {
  const char *path; /* borrowed; NULL: there is no such file, and nothing happens */
  int fd;           /* of the file while it is there, else -1 */
  bool ended;
};

/* Removes the file of a process that was killed, and proves that the file can be made. */
zps_err_t zps_ready_init(struct zps_ready *ready, const char *path, struct zps_error *error) ZPS_MUSTCHECK;
/* Makes the file or removes it. Failures are logged. */
void zps_ready_set(struct zps_ready *ready, bool is_ready);
/* Removes the file for good: later calls change nothing. */
void zps_ready_end(struct zps_ready *ready);

#endif
