/*
 * The rule of a line's fields: the subject that a sentence begins with is among them. Sentences of the daemon begin so:
 *
 *   job 'x': rank 2 (host ...   job 'x': server 1 's1' ...   job 'x': tensor 3 't' ...   server 's1' is ...
 *   job x, tensor t, step 7: ...   ERR_MISSING: job x, tensor t, step 7: ...
 */
#ifndef ZPS_TESTS_LOG_FIELDS_H
#define ZPS_TESTS_LOG_FIELDS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

/* The name at `at`, in quotes or up to one of ",: ". */
static inline const char *log_fields_name(const char *at, char name[200]) {
  const bool is_quoted = *at == '\'';
  at += is_quoted;
  const size_t n = strcspn(at, is_quoted ? "'" : ",: ");
  snprintf(name, 200, "%.*s", (int)n, at);
  return at + n + is_quoted;
}

static inline bool log_fields_are(const char *field, const char *name) {
  return field && strcmp(field, name) == 0;
}

/* What the sentence begins with and a field lacks; NULL: nothing. Sentences of the library are not asked. */
static inline const char *log_fields_fault(const struct zps_log_line *line) {
  static const char *const components[] = {"members", "coordinator", "shard", "agent"};
  const struct zps_log_fields *const fields = &line->fields;
  const char *at = line->text;
  char name[200];
  bool is_asked = false;
  for (unsigned i = 0; i < 4; i++) is_asked = is_asked || strcmp(line->component, components[i]) == 0;
  if (!is_asked) return NULL;
  if (strncmp(at, "ERR_", 4) == 0) {
    const size_t n = strcspn(at, ":");
    snprintf(name, sizeof name, "%.*s", (int)n, at);
    if (strcmp(zps_err_name(fields->code), name) != 0) return "code";
    at += n + 2;
  }
  if (strncmp(at, "job ", 4) == 0 && strncmp(at, "job 0x", 6) != 0) {
    at = log_fields_name(at + 4, name);
    if (!log_fields_are(fields->job, name)) return "job";
    while (*at == ' ' || *at == ':' || *at == ',' || strncmp(at, "0x", 2) == 0)
      at += *at == '0' ? strcspn(at, ": ") : 1;
  }
  if (strncmp(at, "rank ", 5) == 0 && at[5] >= '0' && at[5] <= '9')
    return fields->has_rank && fields->rank == strtoul(at + 5, NULL, 10) ? NULL : "rank";
  if (strncmp(at, "server ", 7) == 0 && strcspn(at, "'") < 14) {
    log_fields_name(strchr(at, '\''), name);
    return log_fields_are(fields->server, name) ? NULL : "server";
  }
  if (strncmp(at, "tensor ", 7) != 0) return NULL;
  at += 7;
  if (*at >= '0' && *at <= '9' && strcspn(at, "'") < 10) at = strchr(at, '\'');
  at = log_fields_name(at, name);
  if (!log_fields_are(fields->tensor, name)) return "tensor";
  if (strncmp(at, ", step ", 7) != 0) return NULL;
  return fields->has_step && fields->step == strtoull(at + 7, NULL, 10) ? NULL : "step";
}

#endif
