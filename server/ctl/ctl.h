/*
 * zenpsctl: what its files share. main.c has the options; verbs.c the commands and their help; show.c prints one
 * answer, through table.c and derive.c; watch.c asks once or again and again, and screen.c draws on a terminal;
 * change.c has the commands that change something.
 */
#ifndef ZPS_SERVER_CTL_CTL_H
#define ZPS_SERVER_CTL_CTL_H

#include <errno.h>
#include <stdio.h>

#include "common/base/config.h"
#include "common/base/exit.h"
#include "common/control/json.h"
#include "common/tls/tls.h"

enum zps_ctl_format { ZPS_CTL_TABLE, ZPS_CTL_JSON };

struct zps_ctl_options {
  char *endpoint;
  int output; /* enum zps_ctl_format */
  uint64_t watch_ms, timeout_ms, wait_ms;
  bool all, internal;
  char *reason;
  char *listen, *allow; /* of export; NULL: its default, nobody */
  char *tls_ca, *tls_cert, *tls_key, *tls_crl;
  struct zps_tls *tls; /* made of those files; NULL: no TLS */
  const char *job;     /* the argument [JOB] of commands that ask; NULL: all jobs */
};

/* Options that only some commands take, for zps_ctl_verb.takes. */
enum { ZPS_CTL_ALL = 1 << 0, ZPS_CTL_INTERNAL = 1 << 1, ZPS_CTL_WAIT = 1 << 2, ZPS_CTL_LISTEN = 1 << 3 };

/* A command that changes something: it is told once, and with --wait asked about until it is done. */
struct zps_ctl_change {
  const char *args; /* shown by help */
  unsigned min_args, max_args;
  const char *wants; /* named in the error when there are too few */
  /* What the coordinator is told. */
  zps_err_t (*params)(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                      struct zps_error *error);
  /* The method whose answers say whether it is done; NULL: it takes no --wait. */
  const char *asks;
  /* Whether there is nothing to wait for any more, by the first answer and the last one; *err_p: it came to nothing. */
  bool (*is_over)(const zps_json *told, const zps_json *now, zps_err_t *err_p, struct zps_error *error);
  /* Why it is not, after so many seconds: ZPS_ERR_TIMEOUT. */
  zps_err_t (*expired)(const zps_json *told, const zps_json *now, double seconds, struct zps_error *error);
};
extern const struct zps_ctl_change zps_ctl_drain, zps_ctl_undrain, zps_ctl_rebalance, zps_ctl_kick;

struct zps_client;

struct zps_ctl_verb {
  const char *name;
  const char *method;      /* the coordinator's; NULL: it is not asked */
  const char *summary;     /* one line */
  const char *about;       /* paragraphs */
  const char *examples[3]; /* ends with NULL */
  unsigned takes;
  bool takes_job;                      /* it only asks, and may be asked of one job */
  const struct zps_ctl_change *change; /* NULL: it only asks */
  /* Asks several methods, and makes one answer of theirs; NULL: `method` alone is asked. */
  zps_err_t (*gather)(struct zps_client *client, const struct zps_ctl_options *options, zps_json **result_p,
                      struct zps_error *error);
  /* Runs until a signal ends it; NULL: it ends by itself. */
  enum zps_exit (*serve)(const struct zps_ctl_options *options, struct zps_error *error);
  /* It asks no coordinator, and has options of its own; `argv` begins with its name. NULL: it is none of those. */
  zps_err_t (*run)(int argc, char **argv, FILE *out, struct zps_error *error);
};

/* What was printed has arrived; else ZPS_ERR_IO. */
static inline zps_err_t zps_ctl_flush(FILE *out, struct zps_error *error) {
  if (fflush(out) == 0 && !ferror(out)) return ZPS_OK;
  return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot print the answer");
}

/* show.c: prints a value, indented or as one line. NULL: there was no memory for it. */
zps_err_t zps_ctl_print_json(FILE *out, const zps_json *value, bool one_line) ZPS_MUSTCHECK;

/* verbs.c. An unknown name is refused with the one that was meant. */
zps_err_t zps_ctl_verb_find(const char *name, const struct zps_ctl_verb **verb_p,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* In the order of the help; NULL behind the last. */
const struct zps_ctl_verb *zps_ctl_verb_at(unsigned index);
/* The meaning of a column; NULL: it has no description. */
const char *zps_ctl_column_help(const char *noun, const char *array, const char *key);
/* --help of one command, or with NULL the list of all: a zps_opt_table's command_help. */
zps_err_t zps_ctl_help(const char *command, struct zps_error *error);

/* Commands that ask no coordinator. `argv` begins with the command's word. ZPS_ERR_INVALID: a word, an option or what a
 * file holds is wrong. */

/* Such a command: its options, and what it does with them. */
struct zps_ctl_apart {
  const struct zps_opt_table *table;
  zps_err_t (*run)(const void *options, const struct zps_config_rest *rest, FILE *out, struct zps_error *error);
};
/* `options` is room for the table's options. */
zps_err_t zps_ctl_apart_run(const struct zps_ctl_apart *apart, int argc, char **argv, void *options, FILE *out,
                            struct zps_error *error) ZPS_MUSTCHECK;

/* An authority and certificates for a cluster (common/tls), and what one says. */
zps_err_t zps_ctl_certs_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;
/* What a coordinator's journal holds, and whether one could start from it. Writes nothing. ZPS_ERR_IO: the journal
 * cannot be read, or is damaged; `error` has the byte. */
zps_err_t zps_ctl_state_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;
/* Makes and shows keys and tokens, which let ranks into jobs (common/token). */
zps_err_t zps_ctl_token_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;

/* An answer, and when it came. `result` NULL: none. */
struct zps_ctl_sample {
  zps_json *result;
  uint64_t at_ns;
};

/* show.c. Takes over an answer that came at `at_ns`, and adds what follows from it and from the sample before, which
 * may hold none. NULL: no memory. */
zps_json *zps_ctl_take(const struct zps_ctl_verb *verb, zps_json *result, const struct zps_ctl_sample *before,
                       uint64_t at_ns);
/* Prints no time. */
zps_err_t zps_ctl_show(FILE *out, const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                       const struct zps_ctl_sample *now) ZPS_MUSTCHECK;

/* table.c: one table per array of rows, aligned, without colour, for people and for awk alike. A cell without text is
 * "-". `noun` chooses the columns. */
zps_err_t zps_ctl_table_print(FILE *out, const char *noun, const zps_json *result) ZPS_MUSTCHECK;
/* Bytes with a unit, in four digits at the most. */
#define ZPS_CTL_BYTES_MAX 16
const char *zps_ctl_bytes_text(double bytes, char text[ZPS_CTL_BYTES_MAX]);
/* Calls `each` with every column of the noun's tables, from left to right. */
void zps_ctl_table_columns(const char *noun,
                           void (*each)(void *ctx, const char *array, const char *key, const char *title), void *ctx);

/* screen.c: writes `frame` (lines that end with '\n') over what is on a terminal of this size, without its scrolling or
 * wrapping a line, and clears what is left of the one before. Lines that do not fit in are counted in the last one. */
void zps_ctl_screen_draw(FILE *out, const char *frame, unsigned rows, unsigned columns);
/* Whether `fd` is a terminal that can be drawn on, and its size. */
bool zps_ctl_screen_size(int fd, unsigned *rows_p, unsigned *columns_p);

/* change.c: `verb` changes something; with --wait not before it is done, or the time is over. */
enum zps_exit zps_ctl_change(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb, char **args,
                             unsigned n_args, struct zps_error *error);

/* why.c: what is wrong with the cluster, or with one job. Asks twice, some seconds apart, since a late rank and a slow
 * server show in what happens in between. The answer has `state` ("ok", "warning" or "critical"), and `findings`. */
zps_err_t zps_ctl_why_gather(struct zps_client *client, const struct zps_ctl_options *options, zps_json **result_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* Prints such an answer for people: `is_brief` in one line. */
void zps_ctl_why_print(FILE *out, const zps_json *result, bool is_brief);
/* The exit status that such an answer stands for, as Nagios has it: 0 ok, 1 warning, 2 critical. */
enum zps_exit zps_ctl_why_exit(const zps_json *result);

/* export.c: serves metrics of the cluster over HTTP, until SIGINT or SIGTERM. */
enum zps_exit zps_ctl_export(const struct zps_ctl_options *options, struct zps_error *error);

/* watch.c: a connection to the coordinator that the options name. */
zps_err_t zps_ctl_connect(const struct zps_ctl_options *options, struct zps_client **client_p,
                          struct zps_error *error) ZPS_MUSTCHECK;
/* The exit status for an answer that is an error: the coordinator refused, unless it was not there. */
enum zps_exit zps_ctl_exit_of(zps_err_t code);
/* Asks and prints to stdout, with --watch until a signal ends the process. */
enum zps_exit zps_ctl_ask(const struct zps_ctl_options *options, const struct zps_ctl_verb *verb,
                          struct zps_error *error);

#endif
