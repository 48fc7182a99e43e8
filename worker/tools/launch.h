/*
 * Child processes of one run: started, their output forwarded with a label, their ends collected.
 *
 * A reader of stdout or stderr that stops holds back the children that write there, once a queue is full, and nothing
 * else: ends are still collected and signals obeyed. Output that nobody will ever read is dropped and counted.
 *
 * Single-threaded: zps_launch_pump() does everything. Children die with us (PR_SET_PDEATHSIG), start with the signal
 * mask and dispositions of a fresh process, and each leads a process group, so that a stop reaches what they started.
 */
#ifndef ZPS_TOOLS_LAUNCH_H
#define ZPS_TOOLS_LAUNCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/base/err.h"

struct zps_launch;

/* In the order in which they are stopped. */
enum zps_child_kind { ZPS_CHILD_RANK, ZPS_CHILD_SERVER, ZPS_CHILD_COORDINATOR };

struct zps_child {
  enum zps_child_kind kind;
  unsigned number; /* rank, or server number */
  char label[24];  /* in front of every line */
  pid_t pid;
  bool running;
  uint64_t started_ns;
  int status;     /* of wait(), once it is not running */
  uint64_t ended; /* 1 for the first child that was seen to have ended, 2 for the second, ... */
  uint64_t ended_ns;
  int sent; /* the last signal that zps_launch_signal() sent it; 0: none */
};

/* `prefix`: put "[label] " in front of each line. */
zps_err_t zps_launch_create(bool prefix, struct zps_launch **launch_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Kills what still runs, without mercy, prints what it wrote, and frees. Waits for a reader that has stopped, until a
 * signal asks for a stop. NULL is allowed. */
void zps_launch_destroy(struct zps_launch *launch);
/* Runs argv[0] (searched in PATH) with the environment plus `env` (NULL-terminated "NAME=VALUE"s). */
zps_err_t zps_launch_start(struct zps_launch *launch, enum zps_child_kind kind, unsigned number, const char *label,
                           char *const *argv, const char *const *env, const struct zps_child **child_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Waits up to `timeout_ms` (-1: for ever) for output, an end or a signal, and handles it. Returns the signal that this
 * process was asked to stop with (SIGINT, SIGTERM, SIGHUP), or 0. */
int zps_launch_pump(struct zps_launch *launch, int timeout_ms);
/* Adds a piece of a line to stderr, behind the output of children so far. The last piece ends with '\n'. */
void zps_launch_say(struct zps_launch *launch, const char *fmt, ...) ZPS_PRINTF(2, 3);
void zps_launch_signal(struct zps_launch *launch, enum zps_child_kind kind, int signal_number);
/* Pumps until no child of the kind runs, at most `grace_ms`, then kills the rest. */
void zps_launch_stop(struct zps_launch *launch, enum zps_child_kind kind, unsigned grace_ms);
unsigned zps_launch_running(const struct zps_launch *launch, enum zps_child_kind kind);
/* The child of the kind that was the first, after `ended` (zps_child.ended; 0: of all), to end otherwise than with
 * status 0, or NULL. One that a signal killed, which was not sent from here, comes ahead of those that exited up to a
 * second before: others may hear of a death, and exit of it, ahead of its end. */
const struct zps_child *zps_launch_first_failure(const struct zps_launch *launch, enum zps_child_kind kind,
                                                 uint64_t ended);
/* The child of the kind whose end was seen next after `ended` (zps_child.ended; 0: the first of all), or NULL. */
const struct zps_child *zps_launch_next_end(const struct zps_launch *launch, enum zps_child_kind kind, uint64_t ended);
/* "exited with code 3" or "was killed by signal 9 (Killed)". */
const char *zps_child_end_text(const struct zps_child *child, char *buf, size_t size);

#endif
