/* `why`: clocks that differ from the coordinator's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/ctl/why_impl.h"

#define LIMIT_MS 1e3      /* Log lines of two hosts get out of order. */
#define CRITICAL_MS 600e3 /* A new certificate of zenpsctl certs begins 10 min ago. */

static const char *const set_it =
    "set it there (timedatectl, chronyc tracking): certificates and tokens begin and end by it, and log lines of "
    "different hosts cannot be compared";

/* By how much it differs for certain; negative: it is behind. */
static double offset_ms(const zps_json *row) {
  const double ms = number(row, "clock_ms"), sure_ms = fabs(ms) - number(row, "clock_error_ms");
  return sure_ms > 0 ? copysign(sure_ms, ms) : 0;
}

struct clock {
  const zps_json *row;
  size_t at;
  bool is_ours; /* of a server, or of a rank of the job in question */
};

static int by_host(const void *a, const void *b) {
  const struct clock *const one = a, *const other = b;
  const int order = strcmp(text(one->row, "host"), text(other->row, "host"));
  if (order) return order;
  if (one->is_ours != other->is_ours) return one->is_ours ? -1 : 1;
  return (one->at > other->at) - (one->at < other->at);
}

/* One row for each host: its processes have the same clock. */
static size_t clocks_of(const struct why *why, struct clock *clocks, const zps_json *servers, const zps_json *ranks) {
  const size_t n_servers = zps_json_array_len(servers), n_rows = n_servers + zps_json_array_len(ranks);
  size_t n = 0, n_hosts = 0;
  for (size_t i = 0; i < n_rows; i++) {
    const zps_json *const row = i < n_servers ? zps_json_at(servers, i) : zps_json_at(ranks, i - n_servers);
    if (!zps_json_get(row, "clock_ms")) continue;
    clocks[n++] = (struct clock){.row = row, .at = i, .is_ours = i < n_servers || is_about(why, row)};
  }
  qsort(clocks, n, sizeof *clocks, by_host);
  for (size_t i = 0; i < n; i++)
    if (n_hosts == 0 || strcmp(text(clocks[i].row, "host"), text(clocks[n_hosts - 1].row, "host")) != 0)
      clocks[n_hosts++] = clocks[i];
  return n_hosts;
}

static void say(struct why *why, const zps_json *row) {
  const double ms = offset_ms(row);
  char name[90];
  if (*text(row, "name"))
    snprintf(name, sizeof name, "server %.60s", text(row, "name"));
  else
    snprintf(name, sizeof name, "rank %.0f of job %.60s", number(row, "rank"), text(row, "job"));
  zps_why_remedy(zps_why_found(why, fabs(ms) > CRITICAL_MS ? ZPS_FINDING_CRITICAL : ZPS_FINDING_WARNING, 35,
                               "the clock of host %.60s (%s) is %.1f s %s the coordinator's", text(row, "host"), name,
                               fabs(number(row, "clock_ms")) / 1000, ms > 0 ? "ahead of" : "behind"),
                 "%s", set_it);
}

/* Where most hosts differ in the same direction, the coordinator's clock is the wrong one. */
void zps_why_clocks(struct why *why) {
  const zps_json *const servers = zps_json_get(why->answers->members, "servers");
  const zps_json *const ranks = zps_json_get(why->answers->members, "ranks");
  struct clock *const clocks = calloc(zps_json_array_len(servers) + zps_json_array_len(ranks) + 1, sizeof *clocks);
  const size_t n = clocks ? clocks_of(why, clocks, servers, ranks) : 0;
  size_t n_ahead = 0, n_behind = 0;
  for (size_t i = 0; i < n; i++) {
    n_ahead += offset_ms(clocks[i].row) > LIMIT_MS;
    n_behind += offset_ms(clocks[i].row) < -LIMIT_MS;
  }
  const size_t n_most = n_ahead > n_behind ? n_ahead : n_behind;
  if (n > 2 && n_most * 2 > n)
    zps_why_remedy(zps_why_found(why, ZPS_FINDING_WARNING, 36,
                                 "the coordinator's clock is over %.0f s %s the clocks of %zu of %zu hosts",
                                 LIMIT_MS / 1000, n_behind > n_ahead ? "ahead of" : "behind", n_most, n),
                   "%s", set_it);
  else
    for (size_t i = 0; i < n; i++)
      if (clocks[i].is_ours && fabs(offset_ms(clocks[i].row)) > LIMIT_MS) say(why, clocks[i].row);
  free(clocks);
}
