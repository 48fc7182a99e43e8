/* Shared by the rules of `why`: the findings so far, and how a rule adds one. */
#ifndef ZPS_SERVER_CTL_WHY_IMPL_H
#define ZPS_SERVER_CTL_WHY_IMPL_H

#include <string.h>

#include "server/ctl/late.h"
#include "server/ctl/why.h"

#define ZPS_FINDINGS_MAX 64u
#define ZPS_QUOTED_MAX 515u /* a name of 128 bytes, all of them quotes */

enum zps_finding_grade { ZPS_FINDING_WARNING = 1, ZPS_FINDING_CRITICAL = 2 };

struct zps_finding {
  enum zps_finding_grade grade;
  double weight; /* of two findings of the same grade the heavier one comes first */
  char evidence[400], remedy[900];
};

struct why {
  const struct zps_ctl_why_answers *answers;
  const char *job; /* NULL: all */
  unsigned n;
  struct zps_finding findings[ZPS_FINDINGS_MAX];
};

static inline bool is_about(const struct why *why, const zps_json *row) {
  return !why->job || strcmp(text(row, "job"), why->job) == 0;
}

/* Adds a finding with its evidence; beyond the most, one that nobody sees. */
struct zps_finding *zps_why_found(struct why *why, enum zps_finding_grade grade, double weight, const char *format, ...)
    ZPS_PRINTF(4, 5);
void zps_why_remedy(struct zps_finding *finding, const char *format, ...) ZPS_PRINTF(2, 3);
/* A name as a word of a shell command that an operator copies: whoever named it may have chosen any bytes. */
const char *zps_why_quoted(const char *name, char buf[ZPS_QUOTED_MAX]);

/* why_rounds.c: rounds that wait. */
void zps_why_rounds(struct why *why);
/* why_servers.c: servers that do not answer, have no memory left, or cannot be reached. */
void zps_why_servers(struct why *why);
void zps_why_barred(struct why *why);
/* why_slow.c: servers and ranks that are slower than the others, between two answers. */
void zps_why_slow_servers(struct why *why);
void zps_why_late(struct why *why);
/* why_ends.c: jobs that have failed, and what runs out. */
void zps_why_failed(struct why *why);
void zps_why_failing(struct why *why);
void zps_why_ends(struct why *why);
void zps_why_versions(struct why *why);
/* why_clocks.c: clocks of servers and ranks that differ from the coordinator's. */
void zps_why_clocks(struct why *why);

#endif
