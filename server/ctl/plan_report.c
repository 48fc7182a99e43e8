#include <stdlib.h>
#include <string.h>

#include "server/ctl/ctl.h"
#include "server/ctl/plan.h"

static bool asked(const struct zps_ctl_plan *plan, unsigned scheme) {
  return plan->schemes >> scheme & 1;
}

static double time_of(const struct zps_ctl_plan *plan, uint32_t n, enum zps_plan_scheme scheme) {
  const struct zps_plan_input input = zps_ctl_plan_at(plan, n);
  struct zps_plan_cost cost;
  zps_plan_predict(&input, scheme, &cost);
  return cost.time_s;
}

static zps_json *report_profile(const struct zps_ctl_plan *plan) {
  const struct zps_plan_profile *profile = &plan->input.profile;
  zps_json *gamma = zps_json_array(), *skew = zps_json_array();
  for (unsigned p = 0; p < plan->n_points; p++) {
    gamma = zps_json_append(gamma, zps_json_real(zps_plan_gamma(profile, plan->points[p])));
    skew = zps_json_append(skew, zps_json_real(zps_plan_skew(profile, plan->points[p])));
  }
  zps_json *to = zps_json_set_u64(zps_json_object(), "rows", plan->input.tensor.rows);
  to = zps_json_set_u64(to, "width", plan->input.tensor.width);
  to = zps_json_set_real(to, "density", profile->density);
  to = zps_json_set_real(to, "block_density", zps_plan_blocks(profile, plan->input.tensor.width, profile->density));
  return zps_json_set(zps_json_set(to, "gamma", gamma), "skew", skew);
}

static zps_json *report_times(const struct zps_ctl_plan *plan) {
  zps_json *rows = zps_json_array();
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)s;
    if (!asked(plan, s)) continue;
    zps_json *times = zps_json_array();
    for (unsigned p = 0; p < plan->n_points; p++)
      times = zps_json_append(times, zps_json_real(1e3 * time_of(plan, plan->points[p], scheme)));
    zps_json *row = zps_json_set_str(zps_json_object(), "scheme", zps_plan_scheme_name(scheme));
    row = zps_json_set_bool(row, "lossy", zps_plan_scheme_lossy(scheme));
    rows = zps_json_append(rows, zps_json_set(row, "time_ms", times));
  }
  return rows;
}

static zps_json *report_one(const struct zps_plan_cost *cost, enum zps_plan_scheme scheme, double dense_s) {
  const struct {
    const char *key;
    double value;
  } members[] = {
      {"time_ms", cost->time_s * 1e3},
      {"latency_ms", cost->latency_s * 1e3},
      {"wire_ms", cost->wire_s * 1e3},
      {"compute_ms", cost->compute_s * 1e3},
      {"speedup", cost->time_s > 0 ? dense_s / cost->time_s : 0},
      {"messages", cost->messages},
      {"rank_out_bytes", cost->rank_out},
      {"rank_in_bytes", cost->rank_in},
      {"host_out_bytes", cost->host_out},
      {"host_in_bytes", cost->host_in},
      {"server_out_bytes", cost->server_out},
      {"server_in_bytes", cost->server_in},
  };
  zps_json *row = zps_json_set_str(zps_json_object(), "scheme", zps_plan_scheme_name(scheme));
  for (unsigned i = 0; i < sizeof members / sizeof members[0]; i++)
    row = zps_json_set_real(row, members[i].key, members[i].value);
  return row;
}

/* At `workers` ranks, the fastest first. */
static zps_json *report_costs(const struct zps_ctl_plan *plan) {
  struct zps_plan_cost costs[ZPS_PLAN_SCHEMES];
  enum zps_plan_scheme order[ZPS_PLAN_SCHEMES];
  unsigned n = 0;
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    if (!asked(plan, s)) continue;
    zps_plan_predict(&plan->input, (enum zps_plan_scheme)s, &costs[s]);
    unsigned at = n++;
    for (; at > 0 && costs[order[at - 1]].time_s > costs[s].time_s; at--) order[at] = order[at - 1];
    order[at] = (enum zps_plan_scheme)s;
  }
  const double dense_s = time_of(plan, plan->workers, ZPS_PLAN_RING);
  zps_json *rows = zps_json_array();
  for (unsigned i = 0; i < n; i++) rows = zps_json_append(rows, report_one(&costs[order[i]], order[i], dense_s));
  return rows;
}

/* Which exact scheme is fastest, from which n to which. */
static zps_json *report_fastest(const struct zps_ctl_plan *plan) {
  const unsigned exact = plan->schemes & zps_plan_lossless();
  zps_json *rows = zps_json_array();
  if (!exact) return rows;
  uint32_t from = 2;
  enum zps_plan_scheme last = ZPS_PLAN_AUTO;
  for (uint32_t n = 2; n <= plan->workers_max + 1; n++) {
    const struct zps_plan_input input = zps_ctl_plan_at(plan, n);
    const enum zps_plan_scheme now = n > plan->workers_max ? ZPS_PLAN_AUTO : zps_plan_fastest(&input, exact);
    if (now != last && last != ZPS_PLAN_AUTO) {
      zps_json *row = zps_json_set_u64(zps_json_object(), "from", from);
      row = zps_json_set_u64(row, "to", n - 1);
      rows = zps_json_append(rows, zps_json_set_str(row, "scheme", zps_plan_scheme_name(last)));
    }
    if (now != last) from = n;
    last = now;
  }
  return rows;
}

/* More than rounding apart. */
static bool slower_than_ring(const struct zps_ctl_plan *plan, uint32_t n, enum zps_plan_scheme scheme) {
  return time_of(plan, n, scheme) > time_of(plan, n, ZPS_PLAN_RING) * (1 + 1e-6);
}

/* Where a scheme gets slower, or no slower, than a dense ring: the n from which it is so up to the most. */
static zps_json *report_crossings(const struct zps_ctl_plan *plan) {
  zps_json *rows = zps_json_array();
  for (unsigned s = 0; s < ZPS_PLAN_SCHEMES; s++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)s;
    if (!asked(plan, s) || scheme == ZPS_PLAN_RING) continue;
    uint32_t n = plan->workers_max;
    const bool slower = slower_than_ring(plan, n, scheme);
    while (n > 2 && slower_than_ring(plan, n - 1, scheme) == slower) n--;
    zps_json *row = zps_json_set_str(zps_json_object(), "scheme", zps_plan_scheme_name(scheme));
    row = zps_json_set_bool(row, "slower", slower);
    rows = zps_json_append(rows, zps_json_set_u64(row, "from", n));
  }
  return rows;
}

/* The fewest servers within 5% of the best number, for the balanced scheme. */
static zps_json *report_servers(const struct zps_ctl_plan *plan) {
  zps_json *rows = zps_json_array();
  for (unsigned p = 0; p < plan->n_points; p++) {
    const struct zps_plan_input input = zps_ctl_plan_at(plan, plan->points[p]);
    const uint32_t per_host = input.cluster.ranks_per_host;
    const uint32_t hosts = (plan->points[p] + per_host - 1) / per_host;
    const uint32_t most = input.cluster.servers_apart ? 4 * hosts : hosts;
    rows = zps_json_append_u64(rows, zps_plan_servers_worth(&input, ZPS_PLAN_BALANCED, most, 1.05));
  }
  return rows;
}

zps_json *zps_ctl_plan_report(const struct zps_ctl_plan *plan) {
  zps_json *points = zps_json_array();
  for (unsigned p = 0; p < plan->n_points; p++) points = zps_json_append_u64(points, plan->points[p]);
  zps_json *report = zps_json_set_u64(zps_json_object(), "workers", plan->workers);
  report = zps_json_set(report, "n", points);
  report = zps_json_set(report, "profile", report_profile(plan));
  report = zps_json_set(report, "schemes", report_times(plan));
  report = zps_json_set(report, "costs", report_costs(plan));
  report = zps_json_set(report, "fastest", report_fastest(plan));
  report = zps_json_set(report, "against_ring", report_crossings(plan));
  return zps_json_set(report, "servers_worth", report_servers(plan));
}

static void print_reals(FILE *out, const char *title, const zps_json *numbers) {
  fprintf(out, "%-20s", title);
  for (size_t i = 0; i < zps_json_array_len(numbers); i++) {
    char text[32];
    fprintf(out, "  %9.4g", strtod(zps_json_text(zps_json_at(numbers, i), text, sizeof text), NULL));
  }
  fputc('\n', out);
}

static void print_costs(FILE *out, const zps_json *rows) {
  static const char *const keys[] = {"rank_out_bytes", "rank_in_bytes",    "host_out_bytes",
                                     "host_in_bytes",  "server_out_bytes", "server_in_bytes"};
  fprintf(out, "%-20s %10s %10s %10s %10s %8s %8s %9s %9s %9s %9s %9s %9s\n", "SCHEME", "TIME/ms", "LATENCY/ms",
          "WIRE/ms", "COMPUTE/ms", "SPEEDUP", "MESSAGES", "RANK-OUT", "RANK-IN", "HOST-OUT", "HOST-IN", "SRV-OUT",
          "SRV-IN");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *row = zps_json_at(rows, i);
    fprintf(out, "%-20s %10.4g %10.3g %10.4g %10.4g %8.3g %8.0f", zps_json_opt_str(row, "scheme", "?"),
            zps_json_opt_real(row, "time_ms", 0), zps_json_opt_real(row, "latency_ms", 0),
            zps_json_opt_real(row, "wire_ms", 0), zps_json_opt_real(row, "compute_ms", 0),
            zps_json_opt_real(row, "speedup", 0), zps_json_opt_real(row, "messages", 0));
    for (unsigned k = 0; k < sizeof keys / sizeof keys[0]; k++) {
      char text[ZPS_CTL_BYTES_MAX];
      fprintf(out, " %9s", zps_ctl_bytes_text(zps_json_opt_real(row, keys[k], 0), text));
    }
    fputc('\n', out);
  }
}

static void print_findings(FILE *out, const zps_json *report) {
  const zps_json *rows = zps_json_get(report, "fastest");
  fputs("\nfastest exact scheme:", out);
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *row = zps_json_at(rows, i);
    fprintf(out, "%s %s for %llu..%llu", i ? "," : "", zps_json_opt_str(row, "scheme", "?"),
            (unsigned long long)zps_json_opt_u64(row, "from", 0), (unsigned long long)zps_json_opt_u64(row, "to", 0));
  }
  fputs("\n\nagainst a dense ring, up to the most ranks:\n", out);
  rows = zps_json_get(report, "against_ring");
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *row = zps_json_at(rows, i);
    char slower[8];
    zps_json_text(zps_json_get(row, "slower"), slower, sizeof slower);
    fprintf(out, "  %-20s %s from %llu on\n", zps_json_opt_str(row, "scheme", "?"),
            strcmp(slower, "true") == 0 ? "slower" : "no slower", (unsigned long long)zps_json_opt_u64(row, "from", 0));
  }
}

void zps_ctl_plan_print(FILE *out, const zps_json *report) {
  const zps_json *profile = zps_json_get(report, "profile"), *rows = zps_json_get(report, "schemes");
  fprintf(out, "%llu rows of %llu, density %.4g, blocks of 256 %.4g\n\n",
          (unsigned long long)zps_json_opt_u64(profile, "rows", 0),
          (unsigned long long)zps_json_opt_u64(profile, "width", 0), zps_json_opt_real(profile, "density", 0),
          zps_json_opt_real(profile, "block_density", 0));
  print_reals(out, "RANKS", zps_json_get(report, "n"));
  print_reals(out, "densification", zps_json_get(profile, "gamma"));
  print_reals(out, "skew", zps_json_get(profile, "skew"));
  print_reals(out, "servers worth having", zps_json_get(report, "servers_worth"));
  fputs("\nmilliseconds:\n", out);
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const zps_json *row = zps_json_at(rows, i);
    print_reals(out, zps_json_opt_str(row, "scheme", "?"), zps_json_get(row, "time_ms"));
  }
  fprintf(out, "\n%llu ranks, bytes of whoever has most:\n",
          (unsigned long long)zps_json_opt_u64(report, "workers", 0));
  print_costs(out, zps_json_get(report, "costs"));
  print_findings(out, report);
}
