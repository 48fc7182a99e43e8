/* The command line. */
#include <config.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config_impl.h"

/* Values of getopt_long() above those of letters; option i is KEY_OPTION + i. */
enum { KEY_HELP = 256, KEY_VERSION, KEY_OPTION };

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
  syntax->shorts = calloc(1, 2 * n + 4);
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
  if (zps_config_h_is_help(load->table)) *end = 'h';
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

/* `word` is a long option as it was typed, maybe with its value. */
static zps_err_t refuse_unknown(const struct zps_config_load *load, const struct syntax *syntax, const char *word) {
  const char *const name = word + strspn(word, "-");
  struct zps_near near;
  char meant[2 * ZPS_OPT_NAME_SIZE];
  zps_near_begin(&near, name, strcspn(name, "="));
  for (const struct option *option = syntax->longs; option->name; option++) zps_near_try(&near, option->name);
  return zps_fail(load->error, ZPS_ERR_INVALID, "unknown or ambiguous option %.80s: %s%s --help lists what there is",
                  word, zps_near_say(&near, "did you mean --", "? ", meant, sizeof meant), load->table->program);
}

static zps_err_t refuse(const struct zps_config_load *load, const struct syntax *syntax, int key, char **argv) {
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
  return refuse_unknown(load, syntax, argv[optind - 1]);
}

/* The command's help, where there are commands and one was named; else the program's. */
static zps_err_t give_help(const struct zps_config_load *load, const struct zps_config_rest *rest) {
  const struct zps_opt_table *table = load->table;
  return table->command_help && rest->argc > 0 ? table->command_help(rest->argv[0], load->error)
                                               : zps_config_print_help(load);
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
  const bool h_is_help = zps_config_h_is_help(load->table);
  bool help = false; /* later arguments may still name the command to explain, and are not judged */
  while (!err && !rest->exit_now && (key = getopt_long(argc, argv, syntax.shorts, syntax.longs, NULL)) != -1) {
    if (key == KEY_HELP || (key == 'h' && h_is_help)) {
      help = true;
      if (!load->table->command_help) break;
    } else if (help) {
      continue;
    } else if (key == KEY_VERSION) {
      rest->exit_now = true;
      printf("%s (zenps) %s\n", load->table->program, PACKAGE_VERSION);
    } else if (key == '?' || key == ':') {
      err = refuse(load, &syntax, key, argv);
    } else {
      load->flags[find(load, key)] = optarg ? optarg : "yes";
    }
  }
  rest->argc = argc - optind;
  rest->argv = argv + optind;
  if (!err && help) {
    rest->exit_now = true;
    err = give_help(load, rest);
  }
  if (!err && !rest->exit_now) err = check_args(load, rest);
out:
  free(syntax.longs);
  free(syntax.names);
  free(syntax.shorts);
  return err;
}
