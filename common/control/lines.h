/* Cuts a byte stream into lines, with a limit on their length. Pure: no socket in sight. */
#ifndef ZPS_CONTROL_LINES_H
#define ZPS_CONTROL_LINES_H

#include <stddef.h>

#include "common/base/err.h"

struct zps_lines {
  char *buf;
  size_t start, end, cap; /* bytes [start, end) are not yet handed out */
  size_t scanned;         /* no newline before this position */
  size_t limit;
};

/* `limit`: bytes of the longest line, without its newline. May be changed later by the owner. */
void zps_lines_init(struct zps_lines *lines, size_t limit);
void zps_lines_fini(struct zps_lines *lines);
/* The place for the next bytes, at least one of them; NULL when memory is short. Invalidates the last line. */
char *zps_lines_room(struct zps_lines *lines, size_t *room_p);
void zps_lines_added(struct zps_lines *lines, size_t n_bytes);
/* When no line is under way the buffer is given back: a connection that is idle costs none. Invalidates the last line.
 */
void zps_lines_settle(struct zps_lines *lines);
/* The next complete line, without "\n" or "\r\n", not NUL-terminated. ZPS_ERR_AGAIN when there is none;
 * ZPS_ERR_PROTOCOL when a line is longer than the limit. */
zps_err_t zps_lines_next(struct zps_lines *lines, const char **line_p, size_t *len_p) ZPS_MUSTCHECK;

#endif
