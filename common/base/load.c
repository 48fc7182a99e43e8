#include "common/base/load.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

static uint64_t share(uint64_t part_ns, uint64_t whole_ns) {
  const uint64_t thousandths = whole_ns > 0 ? part_ns * 1000 / whole_ns : 0;
  return thousandths < 1000 ? thousandths : 1000;
}

struct zps_load zps_load_measure(struct zps_load_probe *probe, uint64_t now_ns) {
  struct zps_load_probe now = {.at_ns = now_ns};
  FILE *const file = fopen("/proc/self/schedstat", "re");
  const bool is_known = file && fscanf(file, "%" SCNu64 " %" SCNu64, &now.busy_ns, &now.starved_ns) == 2;
  struct zps_load load = {0};
  if (file) fclose(file);
  if (!is_known) return load;
  if (probe->at_ns > 0 && now_ns > probe->at_ns)
    load = (struct zps_load){.busy = share(now.busy_ns - probe->busy_ns, now_ns - probe->at_ns),
                             .starved = share(now.starved_ns - probe->starved_ns, now_ns - probe->at_ns)};
  *probe = now;
  return load;
}
