/* Shared by the files of the configuration: names and values of one option, and the sources. */
#ifndef ZPS_BASE_CONFIG_IMPL_H
#define ZPS_BASE_CONFIG_IMPL_H

#include "common/base/config.h"
#include "common/base/did_you_mean.h"

enum { ZPS_OPT_NAME_SIZE = 96, ZPS_OPT_SAID_SIZE = 320 };

/* The state of loading one configuration. */
struct zps_config_load {
  const struct zps_opt_table *table;
  size_t n_opts;
  void *config;
  const char **flags;              /* per option: the text that the command line gives, or NULL */
  bool *set;                       /* per option: some source has set it */
  char (*said)[ZPS_OPT_SAID_SIZE]; /* per option: its name as that source gives it; "": none has set it */
  struct zps_error *error;
};

/* "server.memory_limit" -> "server-memory-limit". */
void zps_opt_flag_name(const struct zps_opt *opt, char name[ZPS_OPT_NAME_SIZE]);
/* "server.memory_limit" -> "ZENPS_SERVER_MEMORY_LIMIT". */
void zps_opt_env_name(const struct zps_opt *opt, char name[ZPS_OPT_NAME_SIZE]);
/* A text for values that would be right for the option, such as "a whole number from 1 to 8". */
void zps_opt_expected(const struct zps_opt *opt, char *text, size_t size);
/* -h asks for help unless an option of the program has that letter. */
bool zps_config_h_is_help(const struct zps_opt_table *table);
/* Parses `text` into the option's field. `origin` starts the error's text: "--rows", "zenpsd.conf:3: rows". */
zps_err_t zps_opt_set(const struct zps_opt *opt, void *config, const char *text, const char *origin,
                      struct zps_error *error) ZPS_MUSTCHECK;

/* The bytes of a value of the type in the configuration struct. */
size_t zps_opt_field_size(enum zps_opt_type type);

/* Sets the defaults of the chosen profile. After all sources. */
zps_err_t zps_config_profile(struct zps_config_load *load) ZPS_MUSTCHECK;
/* For zps_config_label(). */
void zps_config_note_labels(const struct zps_config_load *load);

/* Command line: fills load->flags, the rest, and serves --help and --version. */
zps_err_t zps_config_flags(struct zps_config_load *load, int argc, char **argv,
                           struct zps_config_rest *rest) ZPS_MUSTCHECK;
zps_err_t zps_config_print_help(const struct zps_config_load *load) ZPS_MUSTCHECK;
/* Configuration file. A file that may be missing, and is, counts as empty and leaves *was_read false. */
zps_err_t zps_config_file(struct zps_config_load *load, const char *path, bool may_be_missing,
                          bool *was_read) ZPS_MUSTCHECK;

#endif
