#include "worker/plane/watch.h"

#include "common/base/clock.h"

enum {
  PERIODS = 10, /* to the time after which a process is dead */
  LOOKS = 10,   /* after the question */
  NEARLY = LOOKS - 2,
  AGAIN = 5, /* looks */
  LATE = 2,  /* periods */
};

void zps_watch_init(struct zps_watch *watch, struct zps_watched *servers, uint32_t n, uint64_t dead_ms,
                    uint64_t now_ns) {
  *watch = (struct zps_watch){.period_ns = dead_ms * ZPS_NS_PER_MS / PERIODS,
                              .due_ns = ZPS_NEVER,
                              .looked_ns = now_ns,
                              .n = n,
                              .servers = servers};
  if (watch->period_ns > 0) watch->due_ns = now_ns + watch->period_ns;
}

/* Of a server, at a regular look. */
static void count(struct zps_watched *server, bool counts) {
  const bool is_heard = server->is_heard;
  server->is_heard = false;
  if (is_heard || !counts) server->n_silent = 0;
  if (is_heard) server->is_asked = false;
  if (is_heard || !counts || server->is_off || server->is_lost) return;
  if (server->is_asked) server->n_silent++;
  server->must_ask = !server->is_asked;
  server->is_asked = true;
}

static void count_all(struct zps_watch *watch, bool waits, uint64_t now_ns) {
  const bool is_late = now_ns - watch->looked_ns > LATE * watch->period_ns;
  for (uint32_t i = 0; i < watch->n; i++) count(&watch->servers[i], waits && !is_late);
  watch->looked_ns = now_ns;
  watch->due_ns = now_ns + watch->period_ns;
  watch->n_since++;
}

static bool any_out_of_reach(const struct zps_watch *watch) {
  for (uint32_t i = 0; i < watch->n; i++) {
    const struct zps_watched *const server = &watch->servers[i];
    if (!server->is_off && (server->is_lost || server->n_silent >= LOOKS)) return true;
  }
  return false;
}

bool zps_watch_look(struct zps_watch *watch, bool waits, uint64_t now_ns) {
  bool any = false, has_changed = false;
  for (uint32_t i = 0; i < watch->n; i++) watch->servers[i].must_ask = false;
  if (watch->period_ns > 0 && now_ns >= watch->due_ns) count_all(watch, waits, now_ns);
  watch->is_news = false;
  const bool all_count = any_out_of_reach(watch);
  for (uint32_t i = 0; i < watch->n; i++) {
    struct zps_watched *const server = &watch->servers[i];
    const bool is_suspect = all_count && !server->is_off && (server->is_lost || server->n_silent >= NEARLY);
    has_changed = has_changed || is_suspect != server->is_suspect;
    server->is_suspect = is_suspect;
    any = any || is_suspect;
  }
  const bool says = has_changed || (any && watch->n_since >= AGAIN);
  if (says) watch->n_since = 0;
  return says;
}
