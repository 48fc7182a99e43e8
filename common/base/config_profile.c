/* Profiles: other defaults, for one kind of network. */
#include <stdio.h>
#include <string.h>

#include "common/base/config_impl.h"

enum { NONE, INTERNET };
const char *const zps_profile_names[] = {"none", "internet", NULL};

/* Behind the names of options that a profile has set. */
#define BY_PROFILE " (profile internet)"

static bool is_internet(const struct zps_opt_table *table, const void *config) {
  for (const struct zps_opt *opt = table->opts; opt->name; opt++)
    if (opt->values == zps_profile_names) return *(const int *)((const char *)config + opt->offset) == INTERNET;
  return false;
}

zps_err_t zps_config_profile(struct zps_config_load *load) {
  if (!is_internet(load->table, load->config)) return ZPS_OK;
  for (size_t i = 0; i < load->n_opts; i++) {
    const struct zps_opt *const opt = &load->table->opts[i];
    if (!opt->internet || load->set[i]) continue;
    char origin[ZPS_OPT_NAME_SIZE + sizeof BY_PROFILE];
    snprintf(origin, sizeof origin, "%s%s", opt->name, BY_PROFILE);
    snprintf(load->said[i], sizeof load->said[i], "%s", origin);
    load->set[i] = true;
    const zps_err_t err = zps_opt_set(opt, load->config, opt->internet, origin, load->error);
    if (err) return err;
  }
  return ZPS_OK;
}

/* Whether the option has the profile's value, whoever has set it. */
static bool has_its_value(const struct zps_opt *opt, const void *config) {
  uint64_t own = 0, internet = 0;
  struct zps_opt at_zero = *opt;
  struct zps_error error;
  at_zero.offset = 0;
  if (opt->type == ZPS_OPT_STRING || zps_opt_set(&at_zero, &internet, opt->internet, opt->name, &error)) return false;
  memcpy(&own, (const char *)config + opt->offset, zps_opt_field_size(opt->type));
  return own == internet;
}

bool zps_config_profile_text(const struct zps_opt_table *table, const void *config, char *text, size_t size) {
  if (!is_internet(table, config)) return false;
  size_t used = (size_t)snprintf(text, size, "profile internet");
  const char *comma = ": ";
  for (const struct zps_opt *opt = table->opts; opt->name && used < size; opt++) {
    if (!opt->internet) continue;
    const char *const said = zps_config_label(opt->name);
    if (has_its_value(opt, config))
      used += (size_t)snprintf(text + used, size - used, "%s%s = %s", comma, opt->name, opt->internet);
    else
      used += (size_t)snprintf(text + used, size - used, "%s%s as %s says", comma, opt->name,
                               strstr(said, BY_PROFILE) ? "the program" : said);
    comma = ", ";
  }
  return true;
}
