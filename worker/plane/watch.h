/*
 * Servers out of reach over the data plane. Two kinds are: the fabric has lost them, or they were asked for a frame and
 * have been silent for as long as a process may be before it is dead (control.dead). The fabric need not notice: a
 * network that drops packets looks like a slow one to it.
 *
 * Silence is counted in looks, ten to that time. A server that was silent since the last look is asked, and is out of
 * reach ten looks later. A late look shows that this process itself was stopped, or had no processor, and frames may
 * wait to be read: so all counts begin anew then. When one server is out of reach, servers with two looks less of
 * silence count as well: so a rank that is itself cut off names all at once.
 *
 * Pure; of the engine thread.
 */
#ifndef ZPS_WORKER_PLANE_WATCH_H
#define ZPS_WORKER_PLANE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

struct zps_watched {
  bool is_heard;   /* something has come since the last look: set by the owner */
  bool is_lost;    /* the fabric has lost it: set by the owner, with zps_watch.is_news */
  bool is_off;     /* it is in the job no longer: set by the owner */
  bool must_ask;   /* after a look: ask it for a frame */
  bool is_asked;   /* it was asked for a frame that has not come yet */
  bool is_suspect; /* after a look: it is out of reach */
  unsigned n_silent;
};

struct zps_watch {
  uint64_t period_ns; /* between looks; 0: silence is not counted */
  uint64_t due_ns, looked_ns;
  unsigned n_since; /* looks since it was last told who is out of reach */
  bool is_news;
  uint32_t n;
  struct zps_watched *servers; /* n of them, the owner's */
};

/* `dead_ms`: 0 counts no silence. */
void zps_watch_init(struct zps_watch *watch, struct zps_watched *servers, uint32_t n, uint64_t dead_ms,
                    uint64_t now_ns);
static inline bool zps_watch_is_due(const struct zps_watch *watch, uint64_t now_ns) {
  return watch->is_news || now_ns >= watch->due_ns;
}
/* `waits`: something is to come from servers; else their silence says nothing. Whether the coordinator is to be told
 * who is out of reach: others than before, or still some and it was told a while ago. */
bool zps_watch_look(struct zps_watch *watch, bool waits, uint64_t now_ns);

#endif
