#include "server/membership/weights.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/fair.h"
#include "server/membership/members.h"

static bool is_blank(char c) {
  return c == ' ' || c == '\t';
}

/* The next entry of the list, without blanks around it. */
static const char *entry_of(const char **list, size_t *len_p) {
  const char *entry = *list;
  size_t len = strcspn(entry, ",");
  *list += len + (entry[len] == ',');
  while (len > 0 && is_blank(*entry)) entry++, len--;
  while (len > 0 && is_blank(entry[len - 1])) len--;
  *len_p = len;
  return entry;
}

/* The pattern of the entry of `len` bytes; false: it is none, or longer than a name. */
static bool pattern_of(const char *entry, size_t len, char pattern[ZPS_NAME_MAX + 1]) {
  const char *const colon = memrchr(entry, ':', len);
  const size_t pattern_len = colon ? (size_t)(colon - entry) : 0;
  if (pattern_len == 0 || pattern_len > ZPS_NAME_MAX) return false;
  memcpy(pattern, entry, pattern_len);
  pattern[pattern_len] = '\0';
  return true;
}

/* What stands behind the last colon; 0: no number from 1 to ZPS_FAIR_WEIGHT_MAX, in digits alone. */
static uint32_t weight_of(const char *entry, size_t len) {
  uint32_t weight = 0;
  const char *at = (const char *)memrchr(entry, ':', len) + 1;
  if (at == entry + len) return 0;
  for (; at < entry + len; at++) {
    if (*at < '0' || *at > '9') return 0;
    weight = 10 * weight + (uint32_t)(*at - '0');
    if (weight > ZPS_FAIR_WEIGHT_MAX) return 0;
  }
  return weight;
}

zps_err_t zps_weights_check(const char *list, struct zps_error *error) {
  char pattern[ZPS_NAME_MAX + 1];
  size_t len;
  while (list && *list) {
    const char *const entry = entry_of(&list, &len);
    if (!pattern_of(entry, len, pattern))
      return zps_fail(error, ZPS_ERR_INVALID, "%s: '%.*s' is no PATTERN:WEIGHT, such as 'train*:4'",
                      zps_config_label("job.weights"), (int)len, entry);
    if (weight_of(entry, len) == 0)
      return zps_fail(error, ZPS_ERR_INVALID, "%s: the weight in '%.*s' is no number from 1 to %u",
                      zps_config_label("job.weights"), (int)len, entry, ZPS_FAIR_WEIGHT_MAX);
  }
  return ZPS_OK;
}

uint32_t zps_weight_of(const char *list, const char *name) {
  char pattern[ZPS_NAME_MAX + 1];
  size_t len;
  while (list && *list) {
    const char *const entry = entry_of(&list, &len);
    if (pattern_of(entry, len, pattern) && fnmatch(pattern, name, 0) == 0) return weight_of(entry, len);
  }
  return 1;
}
