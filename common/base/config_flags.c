/* The command line: getopt_long() reads it, for it says which word is wrong; argp lays out --help. */
#include <argp.h>
#include <config.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config_impl.h"

/* Values of getopt_long() above those of letters; option i is KEY_OPTION + i. */
enum { KEY_HELP = 256, KEY_VERSION, KEY_OPTION };

static const char *section_of(const struct zps_opt *opt, size_t *len_p) {
  const char *dot = strchr(opt->name, '.');
  *len_p = dot ? (size_t)(dot - opt->name) : 0;
  return opt->name;
}

static bool same_section(const struct zps_opt *a, const struct zps_opt *b) {
  size_t a_len, b_len;
  const char *x = section_of(a, &a_len), *y = section_of(b, &b_len);
  return a_len == b_len && memcmp(x, y, a_len) == 0;
}

/* What --help says of an option: its sentence, default and environment variable. NULL when out of memory. */
static char *describe(const struct zps_opt *opt) {
  char env[ZPS_OPT_NAME_SIZE] = "", *text;
  if (!(opt->flags & ZPS_OPT_NO_ENV)) zps_opt_env_name(opt, env);
  const bool def = opt->def && !(opt->type == ZPS_OPT_STRING && !*opt->def);
  if (asprintf(&text, "%s%s%s%s%s%s%s", opt->help, def || *env ? " [" : "", def ? "default: " : "", def ? opt->def : "",
               def && *env ? "; " : "", env, def || *env ? "]" : "") < 0)
    return NULL;
  return text;
}

static char *join_values(const struct zps_opt *opt) {
  size_t size = 1;
  for (const char *const *value = opt->values; *value; value++) size += strlen(*value) + 1;
  char *text = calloc(1, size), *end = text;
  for (const char *const *value = opt->values; text && *value; value++) {
    if (end != text) *end++ = '|';
    end = stpcpy(end, *value);
  }
  return text;
}

/* argp's table, with the strings that were made for it. */
struct help {
  struct argp_option *rows;
  char **strings;
  size_t n_rows, n_strings;
  bool failed;
};

static const char *keep(struct help *help, char *text) {
  if (text)
    help->strings[help->n_strings++] = text;
  else
    help->failed = true;
  return text;
}

static void add_option(struct help *help, const struct zps_opt *opt, int key) {
  char flag[ZPS_OPT_NAME_SIZE];
  zps_opt_flag_name(opt, flag);
  struct argp_option row = {.key = opt->short_flag ? opt->short_flag : key};
  row.name = keep(help, strdup(flag));
  row.doc = keep(help, describe(opt));
  row.arg = opt->arg;
  if (opt->type == ZPS_OPT_BOOL) {
    row.arg = opt->short_flag ? NULL : "yes|no";
    row.flags = OPTION_ARG_OPTIONAL;
  } else if (!row.arg) {
    row.arg = opt->type == ZPS_OPT_ENUM ? keep(help, join_values(opt)) : "VALUE";
  }
  help->rows[help->n_rows++] = row;
}

static void add_section(struct help *help, const struct zps_opt_table *table, size_t n_opts, size_t first) {
  size_t len;
  const char *section = section_of(&table->opts[first], &len);
  if (len > 0) {
    char *title;
    const int made = asprintf(&title, "Section [%.*s]:", (int)len, section);
    help->rows[help->n_rows++] = (struct argp_option){.doc = keep(help, made < 0 ? NULL : title)};
  }
  for (size_t i = first; i < n_opts; i++)
    if (same_section(&table->opts[i], &table->opts[first])) add_option(help, &table->opts[i], KEY_OPTION + (int)i);
}

static bool first_of_section(const struct zps_opt_table *table, size_t i) {
  for (size_t j = 0; j < i; j++)
    if (same_section(&table->opts[j], &table->opts[i])) return false;
  return true;
}

static const char *source_text(const struct zps_opt_table *table) {
  bool file = false, env = false;
  for (const struct zps_opt *opt = table->opts; opt->name; opt++) {
    file |= !(opt->flags & ZPS_OPT_NO_FILE);
    env |= !(opt->flags & ZPS_OPT_NO_ENV);
  }
  if (file)
    return "Each option is taken from its flag, else from its environment variable, else from the configuration file, "
           "where the lines '[SECTION]' and 'NAME = VALUE' set --SECTION-NAME (in NAME, _ stands for -).";
  return env ? "Each option is taken from its flag, else from its environment variable." : "";
}

/* The text around the options: the summary before, paragraphs after, a blank line between them. NULL: out of memory. */
static char *surrounding_text(const struct zps_opt_table *table) {
  char *text = NULL;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  if (!out) return NULL;
  fprintf(out, "%s\v", table->summary);
  for (const char *c = table->description; c && *c; c++) fputs(*c == '\n' ? "\n\n" : (char[]){*c, '\0'}, out);
  if (table->description) fputs("\n\n", out);
  fputs(source_text(table), out);
  if (fclose(out) == 0) return text;
  free(text);
  return NULL;
}

/* Those without a section first, for they need no title; argp keeps the order of titled groups. */
static void add_options(struct help *help, const struct zps_opt_table *table, size_t n_opts) {
  for (int titled = 0; titled < 2; titled++) {
    for (size_t i = 0; i < n_opts; i++) {
      size_t len;
      section_of(&table->opts[i], &len);
      if ((len > 0) == titled && first_of_section(table, i)) add_section(help, table, n_opts, i);
    }
  }
  help->rows[help->n_rows++] =
      (struct argp_option){.name = "help", .key = KEY_HELP, .doc = "give this list", .group = -1};
  help->rows[help->n_rows++] =
      (struct argp_option){.name = "version", .key = KEY_VERSION, .doc = "print the version", .group = -1};
}

static zps_err_t print_help(const struct zps_config_load *load) {
  const struct zps_opt_table *table = load->table;
  struct help help = {0};
  char *text = surrounding_text(table);
  help.rows = calloc(2 * load->n_opts + 3, sizeof *help.rows);
  help.strings = calloc(4 * load->n_opts + 1, sizeof *help.strings);
  help.failed = !text || !help.rows || !help.strings;
  if (!help.failed) add_options(&help, table, load->n_opts);
  if (!help.failed) {
    const struct argp argp = {.options = help.rows, .args_doc = table->args, .doc = text};
    char name[ZPS_OPT_NAME_SIZE];
    snprintf(name, sizeof name, "%s", table->program);
    argp_help(&argp, stdout, ARGP_HELP_STD_HELP, name);
  }
  for (size_t i = 0; i < help.n_strings; i++) free(help.strings[i]);
  free(help.strings);
  free(help.rows);
  free(text);
  return help.failed ? zps_fail(load->error, ZPS_ERR_NOMEM, "out of memory") : ZPS_OK;
}

static void print_version(const struct zps_opt_table *table) {
  printf("%s (zenps) %s\n", table->program, PACKAGE_VERSION);
}

/* getopt_long()'s tables. A letter of a BOOL takes no value, so that letters can be joined (-vj). */
struct syntax {
  struct option *longs;
  char (*names)[ZPS_OPT_NAME_SIZE];
  char *shorts;
};

static bool make_syntax(const struct zps_config_load *load, struct syntax *syntax) {
  const size_t n = load->n_opts;
  syntax->longs = calloc(n + 3, sizeof *syntax->longs);
  syntax->names = calloc(n + 1, sizeof *syntax->names);
  syntax->shorts = calloc(1, 2 * n + 3);
  if (!syntax->longs || !syntax->names || !syntax->shorts) return false;
  char *end = stpcpy(syntax->shorts, load->table->stop_at_first_arg ? "+:" : ":");
  for (size_t i = 0; i < n; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    const bool flag = opt->type == ZPS_OPT_BOOL;
    zps_opt_flag_name(opt, syntax->names[i]);
    syntax->longs[i] =
        (struct option){syntax->names[i], flag ? optional_argument : required_argument, NULL, KEY_OPTION + (int)i};
    if (opt->short_flag) *end++ = opt->short_flag;
    if (opt->short_flag && !flag) *end++ = ':';
  }
  syntax->longs[n] = (struct option){"help", no_argument, NULL, KEY_HELP};
  syntax->longs[n + 1] = (struct option){"version", no_argument, NULL, KEY_VERSION};
  return true;
}

static size_t find(const struct zps_config_load *load, int key) {
  if (key >= KEY_OPTION) return (size_t)(key - KEY_OPTION);
  size_t i = 0;
  while (i < load->n_opts && load->table->opts[i].short_flag != key) i++;
  return i;
}

static zps_err_t refuse(const struct zps_config_load *load, int key, char **argv) {
  const char *program = load->table->program;
  if (key == ':') {
    const struct zps_opt *opt = &load->table->opts[find(load, optopt)];
    char flag[ZPS_OPT_NAME_SIZE], expected[200];
    zps_opt_flag_name(opt, flag);
    zps_opt_expected(opt, expected, sizeof expected);
    return zps_fail(load->error, ZPS_ERR_INVALID, "--%s lacks its value: must be %s", flag, expected);
  }
  if (optopt > 0 && optopt < KEY_HELP)
    return zps_fail(load->error, ZPS_ERR_INVALID, "unknown option -%c: %s --help lists what there is", optopt, program);
  if (optopt >= KEY_HELP)
    return zps_fail(load->error, ZPS_ERR_INVALID, "%.80s: the option takes no value", argv[optind - 1]);
  return zps_fail(load->error, ZPS_ERR_INVALID, "unknown or ambiguous option %.80s: %s --help lists what there is",
                  argv[optind - 1], program);
}

static zps_err_t check_args(const struct zps_config_load *load, const struct zps_config_rest *rest) {
  const struct zps_opt_table *table = load->table;
  const char *args = table->args ? table->args : "none";
  if ((unsigned)rest->argc < table->min_args)
    return zps_fail(load->error, ZPS_ERR_INVALID, "%d arguments, at least %u needed: %s %s", rest->argc,
                    table->min_args, table->program, args);
  if ((unsigned)rest->argc > table->max_args)
    return zps_fail(load->error, ZPS_ERR_INVALID, "unexpected argument '%.80s': %s takes %u (%s)",
                    rest->argv[table->max_args], table->program, table->max_args, args);
  return ZPS_OK;
}

zps_err_t zps_config_flags(struct zps_config_load *load, int argc, char **argv, struct zps_config_rest *rest) {
  struct syntax syntax = {0};
  zps_err_t err = ZPS_OK;
  if (!make_syntax(load, &syntax)) {
    err = zps_fail(load->error, ZPS_ERR_NOMEM, "out of memory");
    goto out;
  }
  optind = 0; /* glibc: start anew */
  opterr = 0;
  int key;
  while (!err && !rest->exit_now && (key = getopt_long(argc, argv, syntax.shorts, syntax.longs, NULL)) != -1) {
    if (key == KEY_HELP) {
      rest->exit_now = true;
      err = print_help(load);
    } else if (key == KEY_VERSION) {
      rest->exit_now = true;
      print_version(load->table);
    } else if (key == '?' || key == ':') {
      err = refuse(load, key, argv);
    } else {
      load->flags[find(load, key)] = optarg ? optarg : "yes";
    }
  }
  rest->argc = argc - optind;
  rest->argv = argv + optind;
  if (!err && !rest->exit_now) err = check_args(load, rest);
out:
  free(syntax.longs);
  free(syntax.names);
  free(syntax.shorts);
  return err;
}
