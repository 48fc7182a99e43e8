/* Parses the rules string of the fault injector. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/fault.h"

static bool parse_probability(const char *text, double *value_p) {
  char *end;
  const double value = strtod(text, &end);
  if (end == text || *end || !(value >= 0 && value <= 1)) return false;
  *value_p = value;
  return true;
}

static bool parse_count(const char *text, uint64_t *value_p) {
  char *end;
  if (text[0] < '0' || text[0] > '9') return false;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (*end || errno) return false;
  *value_p = value;
  return true;
}

static bool parse_time(const char *text, uint64_t *ns_p) {
  static const struct {
    const char *unit;
    double ns;
  } units[] = {{"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
  char *end;
  const double value = strtod(text, &end);
  if (end == text || !(value >= 0 && value <= 3600)) return false;
  for (unsigned i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (strcmp(end, units[i].unit) == 0) {
      *ns_p = (uint64_t)(value * units[i].ns);
      return true;
    }
  }
  return false;
}

static bool parse_cut(const char *text, struct zps_fault_rules *rules) {
  return parse_probability(text, &rules->cut) || (parse_time(text, &rules->cut_ns) && rules->cut_ns > 0);
}

static bool parse_delay(char *text, struct zps_fault_rules *rules) {
  char *colon = strchr(text, ':');
  if (!colon) return false;
  *colon = '\0';
  const bool ok = parse_probability(text, &rules->delay) && parse_time(colon + 1, &rules->delay_ns);
  *colon = ':';
  return ok;
}

/* Parses one NAME=VALUE; on failure *right_p names the right form. */
static bool parse_rule(char *name, struct zps_fault_rules *rules, const char **right_p) {
  char *value = strchr(name, '=');
  *right_p =
      "rules are seed=N, again=P, delay=P:T, drop=P, reorder=P, cut=P, cut=T, claim=P, flip=P, kill=N, stall=N, "
      "hold=T, dmabuf=1 and gbit=N";
  if (!value) return false;
  const size_t len = (size_t)(value++ - name);
#define IS(rule) (len == sizeof(rule) - 1 && memcmp(name, rule, len) == 0)
  if (IS("seed") || IS("kill") || IS("stall") || IS("dmabuf") || IS("gbit")) {
    *right_p = "it takes a whole number";
    return parse_count(value, IS("seed")    ? &rules->seed
                              : IS("kill")  ? &rules->kill
                              : IS("stall") ? &rules->stall
                              : IS("gbit")  ? &rules->gbit
                                            : &rules->dmabuf);
  }
  if (IS("again") || IS("drop") || IS("flip") || IS("reorder") || IS("claim")) {
    *right_p = "it takes a probability, 0 to 1";
    return parse_probability(value, IS("again")   ? &rules->again
                                    : IS("drop")  ? &rules->drop
                                    : IS("flip")  ? &rules->flip
                                    : IS("claim") ? &rules->claim
                                                  : &rules->reorder);
  }
  if (IS("cut")) {
    *right_p = "it takes a probability, 0 to 1, or a time such as 1s, above 0 and of an hour at most";
    return parse_cut(value, rules);
  }
  if (IS("hold")) {
    *right_p = "it takes a time such as 3ms, 50us or 1s, of an hour at most";
    return parse_time(value, &rules->hold_ns);
  }
  if (IS("delay")) {
    *right_p = "it takes a probability and a time, such as 0.05:3ms";
    return parse_delay(value, rules);
  }
#undef IS
  return false;
}

zps_err_t zps_fault_parse(const char *text, struct zps_fault_rules *rules_p, struct zps_error *error) {
  struct zps_fault_rules rules = {.seed = 1};
  char *copy = strdup(text ? text : "");
  if (!copy) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the fault rules");
  zps_err_t code = ZPS_OK;
  char *rest = copy;
  for (char *rule; code == ZPS_OK && (rule = strsep(&rest, ",")) != NULL;) {
    const char *right;
    if (*rule && !parse_rule(rule, &rules, &right))
      code = zps_fail(error, ZPS_ERR_INVALID, "fault rule '%s' is wrong: %s", rule, right);
  }
  free(copy);
  if (code == ZPS_OK) *rules_p = rules;
  return code;
}
