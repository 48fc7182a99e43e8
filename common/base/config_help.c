/* --help and --version. The layout is what help2man reads: titles flush left and ending in a colon, two blanks or more
 * between an option and its text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config_impl.h"
#include "common/base/exit.h"

enum { WIDTH = 79, TEXT_COLUMN = 29 };

/* The words of `text`, which begins at `column`; later lines begin at `indent`, and a newline begins a paragraph. */
static void print_words(const char *text, int column, int indent) {
  bool line_begins = true;
  while (*text) {
    const int len = (int)strcspn(text, " \n");
    if (!line_begins && column + 1 + len > WIDTH) {
      column = printf("\n%*s", indent, "") - 1;
      line_begins = true;
    }
    column += printf("%s%.*s", line_begins ? "" : " ", len, text);
    text += len;
    line_begins = *text == '\n';
    if (line_begins) column = printf("\n\n%*s", indent, "") - 2;
    text += strspn(text, " \n");
  }
  putchar('\n');
}

static size_t section_len(const struct zps_opt *opt) {
  const char *const dot = strchr(opt->name, '.');
  return dot ? (size_t)(dot - opt->name) : 0;
}

static bool same_section(const struct zps_opt *a, const struct zps_opt *b) {
  const size_t len = section_len(a);
  return len == section_len(b) && memcmp(a->name, b->name, len) == 0;
}

/* The option as it is typed; returns the column after it. */
static int print_flag(const struct zps_opt *opt) {
  char name[ZPS_OPT_NAME_SIZE];
  zps_opt_flag_name(opt, name);
  int column = opt->short_flag ? printf("  -%c, --%s", opt->short_flag, name) : printf("      --%s", name);
  if (opt->type == ZPS_OPT_BOOL) {
    if (!opt->short_flag) column += printf("[=yes|no]");
  } else if (opt->type == ZPS_OPT_ENUM && !opt->arg) {
    for (const char *const *value = opt->values; *value; value++)
      column += printf("%c%s", value == opt->values ? '=' : '|', *value);
  } else {
    column += printf("=%s", opt->arg ? opt->arg : "VALUE");
  }
  return column;
}

void zps_config_help_text(const char *text) {
  if (!text || !*text) return;
  putchar('\n');
  print_words(text, 0, 0);
}

void zps_config_help_title(const char *title) {
  printf("\n%s:\n", title);
}

static void print_text(int column, const char *text) {
  if (column > TEXT_COLUMN - 2) column = printf("\n") - 1;
  printf("%*s", TEXT_COLUMN - column, "");
  print_words(text, TEXT_COLUMN, TEXT_COLUMN);
}

void zps_config_help_row(const char *word, const char *text) {
  print_text(printf("  %s", word), text);
}

static zps_err_t print_option(const struct zps_opt *opt, struct zps_error *error) {
  char env[ZPS_OPT_NAME_SIZE] = "", *text;
  if (!(opt->flags & ZPS_OPT_NO_ENV)) zps_opt_env_name(opt, env);
  const bool def = opt->def && !(opt->type == ZPS_OPT_STRING && !*opt->def);
  const char *const internet = opt->internet ? opt->internet : "";
  if (asprintf(&text, "%s%s%s%s%s%s%s%s%s%s", opt->help, def || *internet || *env ? " [" : "", def ? "default: " : "",
               def ? opt->def : "", def && *internet ? "; " : "", *internet ? "internet: " : "", internet,
               (def || *internet) && *env ? "; " : "", env, def || *internet || *env ? "]" : "") < 0)
    return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  print_text(print_flag(opt), text);
  free(text);
  return ZPS_OK;
}

static zps_err_t print_section(const struct zps_config_load *load, const struct zps_opt *first) {
  zps_err_t err = ZPS_OK;
  if (section_len(first) > 0) printf("\nSection [%.*s]:\n", (int)section_len(first), first->name);
  for (const struct zps_opt *opt = first; opt->name && !err; opt++)
    if (same_section(opt, first) && opt->type != ZPS_OPT_GONE) err = print_option(opt, load->error);
  return err;
}

static bool first_of_section(const struct zps_opt_table *table, const struct zps_opt *opt) {
  const struct zps_opt *first = table->opts;
  while (!same_section(first, opt)) first++;
  return first == opt;
}

/* Those without a section first, for they need no title. */
static zps_err_t print_options(const struct zps_config_load *load) {
  zps_err_t err = ZPS_OK;
  for (int titled = 0; titled < 2; titled++) {
    for (const struct zps_opt *opt = load->table->opts; opt->name && !err; opt++)
      if ((section_len(opt) > 0) == titled && opt->type != ZPS_OPT_GONE && first_of_section(load->table, opt))
        err = print_section(load, opt);
  }
  return err;
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
  return env ? "Each option is taken from its flag, else from its environment variable." : NULL;
}

static void print_exits(const struct zps_opt_table *table) {
  static const struct {
    int code;
    const char *text;
  } exits[] = {
#define X(name, value, text) {value, text},
      ZPS_EXIT_MAP(X)
#undef X
  };
  if (!table->exits) return;
  zps_config_help_title("Exit status");
  for (unsigned i = 0; i < sizeof exits / sizeof exits[0]; i++)
    if (table->exits >> exits[i].code & 1) print_text(printf("  %d", exits[i].code), exits[i].text);
}

zps_err_t zps_config_print_help(const struct zps_config_load *load) {
  const struct zps_opt_table *const table = load->table;
  printf("Usage: %s [OPTION...]%s%s\n", table->program, table->args ? " " : "", table->args ? table->args : "");
  print_words(table->summary, 0, 0);
  zps_err_t err = table->command_help ? table->command_help(NULL, load->error) : ZPS_OK;
  if (err) return err;
  if (table->command_help)
    zps_config_help_title("Options");
  else
    putchar('\n');
  err = print_options(load);
  if (err) return err;
  putchar('\n');
  print_text(printf(zps_config_h_is_help(table) ? "  -h, --help" : "      --help"), "give this list");
  print_text(printf("      --version"), "print the version");
  zps_config_help_text(table->description);
  zps_config_help_text(source_text(table));
  print_exits(table);
  return ZPS_OK;
}
