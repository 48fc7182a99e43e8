/*
 * The exit codes of all programs, in one table: mains end with these, --help lists those that a program has, and a test
 * holds zenps(7) equal to it. zenpsrun passes on a rank's code, 128 plus the number of the signal for one that a signal
 * ended.
 */
#ifndef ZPS_BASE_EXIT_H
#define ZPS_BASE_EXIT_H

#include "common/base/err.h"

#define ZPS_EXIT_MAP(X)                                                                              \
  X(OK, 0, "what was asked for was done")                                                            \
  X(FAILED, 1, "it failed on the way; the error says why")                                           \
  X(USAGE, 2, "an option, argument, variable or configuration file is wrong: nothing was begun")     \
  X(UNREACHABLE, 3, "nobody answers at the coordinator's address, or the connection to it was lost") \
  X(REFUSED, 4, "the coordinator answered, and refused: another version, or something that it does not do")

enum zps_exit {
#define X(name, value, text) ZPS_EXIT_##name = (value),
  ZPS_EXIT_MAP(X)
#undef X
};

/* For zps_opt_table.exits. */
#define ZPS_EXITS_LOCAL (1u << ZPS_EXIT_OK | 1u << ZPS_EXIT_FAILED | 1u << ZPS_EXIT_USAGE)
#define ZPS_EXITS_CLIENT (ZPS_EXITS_LOCAL | 1u << ZPS_EXIT_UNREACHABLE | 1u << ZPS_EXIT_REFUSED)

/* Of a program that could not join a job, or get an answer from the coordinator. */
static inline enum zps_exit zps_exit_of(zps_err_t code) {
  switch (code) {
    case ZPS_OK:
      return ZPS_EXIT_OK;
    case ZPS_ERR_INVALID:
      return ZPS_EXIT_USAGE;
    case ZPS_ERR_CONNECT:
    case ZPS_ERR_TIMEOUT:
    case ZPS_ERR_CLOSED:
    case ZPS_ERR_IO:
      return ZPS_EXIT_UNREACHABLE;
    case ZPS_ERR_REFUSED:
    case ZPS_ERR_VERSION:
    case ZPS_ERR_RANK_TAKEN:
    case ZPS_ERR_SHAPE:
      return ZPS_EXIT_REFUSED;
    default:
      return ZPS_EXIT_FAILED;
  }
}

#endif
