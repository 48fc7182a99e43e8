/*
 * Program options from one table: configuration file (INI), environment and command line flags.
 *
 * Every option is one row. From the row come the flag (--control-listen), the environment variable
 * (ZENPS_CONTROL_LISTEN), the file's key (listen = in section [control]), the text of --help, and by it the man page.
 * Precedence: flag, environment, file, default. A value that does not parse is refused with its origin (file and line,
 * variable, or flag), what was found and what would be right. An unknown key in a file is an error, so that a typo
 * cannot pass for a setting; where a known word is near, the error names it. -h is --help, unless a row has that
 * letter.
 *
 * A row may have another default for the profile "internet". It counts where the option with zps_profile_names has that
 * value and no source sets the row.
 */
#ifndef ZPS_BASE_CONFIG_H
#define ZPS_BASE_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

enum zps_opt_type {
  ZPS_OPT_STRING,   /* char *, owned by the configuration; NULL when unset and without default */
  ZPS_OPT_BOOL,     /* bool: yes/no, true/false, on/off, 1/0; as a flag also without a value */
  ZPS_OPT_UINT,     /* uint64_t within [min, max] */
  ZPS_OPT_DOUBLE,   /* double within [min, max] */
  ZPS_OPT_BYTES,    /* uint64_t; suffixes K, M, G are powers of 1024 */
  ZPS_OPT_DURATION, /* uint64_t milliseconds; suffixes ms, s, m, h; a bare number is seconds */
  ZPS_OPT_ENUM,     /* int: index into `values` */
  ZPS_OPT_GONE,     /* No field. Whoever sets it is refused, and `help` says why it is gone. --help leaves it out. */
};

enum { ZPS_PROFILE_TEXT_SIZE = 1024 };

enum zps_opt_flags {
  ZPS_OPT_RELOADABLE = 1 << 0, /* taken over by a running daemon on reload */
  ZPS_OPT_NO_FILE = 1 << 1,    /* not in the file (such as the path of the file) */
  ZPS_OPT_NO_ENV = 1 << 2,     /* not in the environment */
  ZPS_OPT_REQUIRED = 1 << 3,   /* an error when no source sets it */
  ZPS_OPT_FLAG_ONLY = ZPS_OPT_NO_FILE | ZPS_OPT_NO_ENV,
};

struct zps_opt {
  const char *name; /* "control.listen"; without a dot for options without a section */
  char short_flag;  /* '\0' for none */
  enum zps_opt_type type;
  size_t offset;             /* of the field in the configuration struct */
  const char *def;           /* default, in the form a user would write; NULL for zero/unset */
  const char *internet;      /* default of the profile "internet"; no STRING. NULL: `def` */
  const char *arg;           /* placeholder in --help, such as "HOST:PORT" */
  const char *help;          /* one sentence, with the unit */
  double min, max;           /* of numbers, bytes and milliseconds; both 0: unbounded */
  const char *const *values; /* ENUM: NULL-terminated */
  unsigned flags;
  const char *env_fallback; /* a foreign variable asked last, such as "WORLD_SIZE"; NULL for none */
};
/* A row for a member of the configuration struct, and what else the row has. */
#define ZPS_OPT_ROW(config, type_, member, ...) \
  { .type = (type_), .offset = offsetof(config, member), __VA_ARGS__ }

struct zps_opt_table {
  const char *program;        /* "zenpsd" */
  const char *summary;        /* one line */
  const char *args;           /* positional arguments in --help, such as "-- PROGRAM [ARG...]"; NULL for none */
  const char *description;    /* paragraphs after the options in --help; NULL for none */
  const struct zps_opt *opts; /* ends with a row whose name is NULL */
  size_t config_size;
  unsigned min_args, max_args; /* positional arguments */
  bool stop_at_first_arg;      /* leave everything from the first positional argument on alone (zenpsrun) */
  unsigned exits;              /* for --help: bits 1u << enum zps_exit that the program ends with; 0: not told */
  /* Where the first positional argument is a command: prints its help, for --help beside it; and for NULL the list of
   * commands, as a part of the program's own. NULL for none. */
  zps_err_t (*command_help)(const char *command, struct zps_error *error);
};

/* The rest of the command line, which zps_config_load leaves. `argv` points into the caller's argv. */
struct zps_config_rest {
  int argc;
  char **argv;
  bool exit_now;  /* --help or --version was served on stdout: exit with status 0 */
  bool file_read; /* false: no file was named, or the file behind "-" is missing */
};

/* Fills `config` (config_size bytes, zeroed by this call) from all sources. `file` (may be NULL) is the file's path;
 * when the table has an option "config" of type STRING, its value is taken instead. "-PATH" is a file that may be
 * missing. On failure `config` holds nothing to free. Prints only for --help and --version. argc 0 means: no command
 * line. */
zps_err_t zps_config_load(const struct zps_opt_table *table, int argc, char **argv, const char *file, void *config,
                          struct zps_config_rest *rest_p, struct zps_error *error) ZPS_MUSTCHECK;
/* An option as the user gave it, for errors about its value: "--control-dead", "ZENPS_CONTROL_DEAD", or "control.dead
 * (zenpsd.conf:3)". The name itself while no source has set it; its flag, if it cannot be in a file. From the last
 * zps_config_load() of a table that has the name. From any thread; the text stays as it is. */
const char *zps_config_label(const char *name);
/* The `values` of an ENUM that chooses a profile. The first one, "none", is its default. */
extern const char *const zps_profile_names[];
/* One line for users: the settings of the profile, and the sources that won over it. From the last zps_config_load() of
 * the table; `config` may have changed since. False: no profile, and no text. */
bool zps_config_profile_text(const struct zps_opt_table *table, const void *config, char *text, size_t size);
/* Frees the strings in `config` and zeroes it. */
void zps_config_fini(const struct zps_opt_table *table, void *config);
/* Takes over from `fresh` into `running` every RELOADABLE option; calls changed(ctx, name, reloadable) for each option
 * that differs, so that the caller can log what took effect and what needs a restart. */
zps_err_t zps_config_reload(const struct zps_opt_table *table, void *running, const void *fresh,
                            void (*changed)(void *ctx, const char *name, bool taken), void *ctx) ZPS_MUSTCHECK;

/* Parts of a help in the layout of --help, for commands that have their own: a title with an empty line before it, a
 * row under one, and paragraphs. */
void zps_config_help_title(const char *title);
void zps_config_help_row(const char *word, const char *text);
void zps_config_help_text(const char *text);

#endif
