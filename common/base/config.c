#include "common/base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config_impl.h"

static size_t count(const struct zps_opt_table *table) {
  size_t n = 0;
  while (table->opts[n].name) n++;
  return n;
}

static char **string_field(const struct zps_opt *opt, void *config) {
  return (char **)((char *)config + opt->offset);
}

static const char *environment(const char *name) {
  const char *text = getenv(name);
  return text && *text ? text : NULL;
}

static const char *own_environment(const struct zps_opt *opt, char name[ZPS_OPT_NAME_SIZE]) {
  zps_opt_env_name(opt, name);
  return opt->flags & ZPS_OPT_NO_ENV ? NULL : environment(name);
}

static zps_err_t set(struct zps_config_load *load, size_t i, const char *text, const char *said, const char *origin) {
  load->set[i] = true;
  snprintf(load->said[i], sizeof load->said[i], "%s", said);
  return zps_opt_set(&load->table->opts[i], load->config, text, origin, load->error);
}

static zps_err_t set_variable(struct zps_config_load *load, size_t i, const char *text, const char *name) {
  char origin[ZPS_OPT_NAME_SIZE + 32];
  snprintf(origin, sizeof origin, "the environment's %s", name);
  return set(load, i, text, name, origin);
}

static zps_err_t set_defaults(struct zps_config_load *load) {
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    if (!opt->def) continue;
    char origin[ZPS_OPT_NAME_SIZE + 32];
    snprintf(origin, sizeof origin, "the default of %s", opt->name);
    const zps_err_t err = zps_opt_set(opt, load->config, opt->def, origin, load->error);
    if (err) return err;
  }
  return ZPS_OK;
}

static zps_err_t set_from_file(struct zps_config_load *load, const char *path, bool *was_read) {
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    if (strcmp(opt->name, "config") != 0 || opt->type != ZPS_OPT_STRING) continue;
    char name[ZPS_OPT_NAME_SIZE];
    const char *own = load->flags[i] ? load->flags[i] : own_environment(opt, name);
    if (!own) own = opt->def;
    if (own) path = own;
  }
  if (!path || !*path) return ZPS_OK;
  const bool may_be_missing = *path == '-';
  return zps_config_file(load, path + may_be_missing, may_be_missing, was_read);
}

static zps_err_t set_from_environment(struct zps_config_load *load) {
  for (size_t i = 0; i < load->n_opts; i++) {
    char name[ZPS_OPT_NAME_SIZE];
    const char *const text = own_environment(&load->table->opts[i], name);
    const zps_err_t err = text ? set_variable(load, i, text, name) : ZPS_OK;
    if (err) return err;
  }
  return ZPS_OK;
}

static zps_err_t set_from_flags(struct zps_config_load *load) {
  for (size_t i = 0; i < load->n_opts; i++) {
    if (!load->flags[i]) continue;
    char name[ZPS_OPT_NAME_SIZE], origin[ZPS_OPT_NAME_SIZE + 2];
    zps_opt_flag_name(&load->table->opts[i], name);
    snprintf(origin, sizeof origin, "--%s", name);
    const zps_err_t err = set(load, i, load->flags[i], origin, origin);
    if (err) return err;
  }
  return ZPS_OK;
}

/* Foreign variables count only where no other source sets the option: otherwise their content is not ours to judge. */
static zps_err_t set_from_fallbacks(struct zps_config_load *load) {
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    const char *text = opt->env_fallback && !load->set[i] ? environment(opt->env_fallback) : NULL;
    const zps_err_t err = text ? set_variable(load, i, text, opt->env_fallback) : ZPS_OK;
    if (err) return err;
  }
  return ZPS_OK;
}

static zps_err_t check_required(struct zps_config_load *load) {
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *opt = &load->table->opts[i];
    if (!(opt->flags & ZPS_OPT_REQUIRED) || load->set[i] || opt->def) continue;
    char flag[ZPS_OPT_NAME_SIZE], env[ZPS_OPT_NAME_SIZE], expected[200];
    zps_opt_flag_name(opt, flag);
    zps_opt_env_name(opt, env);
    zps_opt_expected(opt, expected, sizeof expected);
    if (opt->flags & ZPS_OPT_NO_ENV)
      return zps_fail(load->error, ZPS_ERR_INVALID, "--%s is missing: must be %s", flag, expected);
    return zps_fail(load->error, ZPS_ERR_INVALID, "%s is not set: give --%s or the environment's %s%s; it must be %s",
                    opt->name, flag, env, opt->flags & ZPS_OPT_NO_FILE ? "" : ", or set it in the file", expected);
  }
  return ZPS_OK;
}

static zps_err_t load_all(struct zps_config_load *load, int argc, char **argv, const char *file,
                          struct zps_config_rest *rest) {
  zps_err_t err = argc > 0 ? zps_config_flags(load, argc, argv, rest) : ZPS_OK;
  if (err || rest->exit_now) return err;
  err = set_defaults(load);
  if (!err) err = set_from_file(load, file, &rest->file_read);
  if (!err) err = set_from_environment(load);
  if (!err) err = set_from_flags(load);
  if (!err) err = set_from_fallbacks(load);
  if (!err) err = zps_config_profile(load);
  if (!err) err = check_required(load);
  return err;
}

zps_err_t zps_config_load(const struct zps_opt_table *table, int argc, char **argv, const char *file, void *config,
                          struct zps_config_rest *rest_p, struct zps_error *error) {
  struct zps_config_load load = {.table = table, .n_opts = count(table), .config = config, .error = error};
  struct zps_config_rest rest = {0};
  memset(config, 0, table->config_size);
  load.flags = calloc(load.n_opts + 1, sizeof *load.flags);
  load.set = calloc(load.n_opts + 1, sizeof *load.set);
  load.said = calloc(load.n_opts + 1, sizeof *load.said);
  const zps_err_t err = load.flags && load.set && load.said ? load_all(&load, argc, argv, file, &rest)
                                                            : zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  if (!err) zps_config_note_labels(&load);
  free(load.flags);
  free(load.set);
  free(load.said);
  if (err) zps_config_fini(table, config);
  if (!err && rest_p) *rest_p = rest;
  return err;
}

void zps_config_fini(const struct zps_opt_table *table, void *config) {
  for (const struct zps_opt *opt = table->opts; opt->name; opt++)
    if (opt->type == ZPS_OPT_STRING) free(*string_field(opt, config));
  memset(config, 0, table->config_size);
}

static bool same(const struct zps_opt *opt, const void *a, const void *b) {
  if (opt->type != ZPS_OPT_STRING) return memcmp(a, b, zps_opt_field_size(opt->type)) == 0;
  const char *x = *(char *const *)a, *y = *(char *const *)b;
  return x && y ? strcmp(x, y) == 0 : x == y;
}

zps_err_t zps_config_reload(const struct zps_opt_table *table, void *running, const void *fresh,
                            void (*changed)(void *ctx, const char *name, bool taken), void *ctx) {
  for (const struct zps_opt *opt = table->opts; opt->name; opt++) {
    void *to = (char *)running + opt->offset;
    const void *from = (const char *)fresh + opt->offset;
    if (same(opt, to, from)) continue;
    const bool taken = opt->flags & ZPS_OPT_RELOADABLE;
    if (taken && opt->type == ZPS_OPT_STRING) {
      const char *text = *(char *const *)from;
      char *copy = text ? strdup(text) : NULL;
      if (text && !copy) return ZPS_ERR_NOMEM;
      free(*(char **)to);
      *(char **)to = copy;
    } else if (taken) {
      memcpy(to, from, zps_opt_field_size(opt->type));
    }
    if (changed) changed(ctx, opt->name, taken);
  }
  return ZPS_OK;
}
