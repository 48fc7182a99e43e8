/* Reads a text file line by line. Files whose name ends in .xz or .gz are decompressed on the way. A UTF-8
 * mark at the begin of the file is left out. Shared by zenps-perf (traces) and the examples (libsvm files, corpora). */
#ifndef ZPS_TOOLS_LINES_H
#define ZPS_TOOLS_LINES_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct zps_tools_lines;

zps_err_t zps_tools_lines_open(const char *path, struct zps_tools_lines **lines_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* Confines `lines`, just opened, to those that begin in part `part` (0..n_parts-1) of the file's bytes, cut evenly:
 * each line is in one part, numbers begin at 1 in each. ZPS_ERR_UNSUPPORTED, and nothing has changed, where a part
 * cannot be found without reading all before it: in compressed files and pipes. */
zps_err_t zps_tools_lines_part(struct zps_tools_lines *lines, uint64_t part, uint64_t n_parts,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* The next line has the number `before` + 1: for parts, once the lines of those before are counted. */
void zps_tools_lines_number_from(struct zps_tools_lines *lines, uint64_t before);
/* The number of lines that are left, whatever their bytes are. */
zps_err_t zps_tools_lines_count(struct zps_tools_lines *lines, uint64_t *n_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The next line without its newline, NUL-terminated, valid until the next call; the caller may change it.
 * ZPS_ERR_CLOSED at the end of the file (then `error` is untouched); ZPS_ERR_INVALID: the line has a NUL, or
 * 64 MiB, or what is read goes on for longer than may be kept (common/base/source.h). */
zps_err_t zps_tools_lines_next(struct zps_tools_lines *lines, char **line_p, size_t *len_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
uint64_t zps_tools_lines_number(const struct zps_tools_lines *lines); /* of the line last returned, from 1 */
void zps_tools_lines_close(struct zps_tools_lines *lines);            /* NULL is allowed */

#endif
