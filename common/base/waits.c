#include "common/base/waits.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"

#define LOOK_NS (20 * ZPS_NS_PER_MS)
/* Turns that say something, and what they count for beside earlier ones. */
#define TURNS_LEAST 4
#define FRESH 0.25

void zps_waits_init(struct zps_waits *waits) {
  *waits = (struct zps_waits){.fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)};
}

void zps_waits_fini(struct zps_waits *waits) {
  if (waits->fd >= 0) close(waits->fd);
  waits->fd = -1;
}

void zps_waits_take(struct zps_waits *waits, const char *line) {
  uint64_t ran_ns, waited_ns, turns;
  if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64, &ran_ns, &waited_ns, &turns) != 3) return;
  const bool known = waits->turns > 0;
  if (known && (turns < waits->turns + TURNS_LEAST || waited_ns < waits->waited_ns)) return;
  if (known) {
    const double fresh_ns = (double)(waited_ns - waits->waited_ns) / (double)(turns - waits->turns);
    waits->mean_ns += FRESH * (fresh_ns - waits->mean_ns);
  }
  waits->waited_ns = waited_ns;
  waits->turns = turns;
}

uint64_t zps_waits_look(struct zps_waits *waits, uint64_t now_ns) {
  if (waits->fd >= 0 && now_ns - waits->looked_ns >= LOOK_NS) {
    char line[96];
    const ssize_t len = pread(waits->fd, line, sizeof line - 1, 0);
    line[len > 0 ? len : 0] = '\0';
    zps_waits_take(waits, line);
    waits->looked_ns = now_ns;
  }
  return (uint64_t)waits->mean_ns;
}
