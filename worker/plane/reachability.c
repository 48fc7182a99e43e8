/* Servers that cannot be reached: what the plane sees of them goes to the watch, and what the watch finds to the
 * owner. */
#define ZPS_LOG_COMPONENT "plane"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/plane/plane.h"

zps_err_t zps_plane_watch_open(struct zps_plane *plane, uint64_t dead_ms) {
  plane->signs = calloc(plane->n_servers + 1u, sizeof *plane->signs);
  struct zps_watched *const servers = calloc(plane->n_servers + 1u, sizeof *servers);
  if (!plane->signs || !servers) {
    free(servers);
    return ZPS_ERR_NOMEM;
  }
  plane->dead_ns = dead_ms * ZPS_NS_PER_MS;
  zps_watch_init(&plane->watch, servers, plane->n_servers, dead_ms, zps_clock_ns());
  return ZPS_OK;
}

static struct zps_watched *watched(const struct zps_remote *remote) {
  const struct zps_watch *const watch = &remote->plane->watch;
  return !remote->is_rank && remote->index < watch->n ? &watch->servers[remote->index] : NULL;
}

void zps_plane_watch_lost(struct zps_remote *remote) {
  struct zps_watched *const server = watched(remote);
  if (server) server->is_lost = remote->plane->watch.is_news = true;
}

void zps_plane_off(struct zps_remote *server) {
  struct zps_watched *const of = watched(server);
  if (of) of->is_off = server->plane->watch.is_news = true;
}

void zps_plane_watch_renew(const struct zps_remote *server) {
  struct zps_watched *const of = watched(server);
  if (!of) return;
  *of = (struct zps_watched){.is_suspect = of->is_suspect}; /* the next look reports the change */
  server->plane->watch.is_news = true;
  server->plane->signs[server->index] = 0;
}

/* Frames need not be due to count: a server whose frames are lost again and again still answers, and is there. */
static void hear(struct zps_plane *plane) {
  for (uint32_t s = 0; s < plane->watch.n; s++) {
    const struct zps_remote *const server = &plane->servers[s];
    if (!server->link || !server->bulk) continue;
    const uint64_t signs = zps_link_signs(server->link) + zps_bulk_peer_landed(server->bulk);
    if (signs != plane->signs[s]) plane->watch.servers[s].is_heard = true;
    plane->signs[s] = signs;
  }
}

/* A server that nothing ever came from may be kept from connecting to this rank. */
static void explain_silence(const struct zps_plane *plane, uint32_t s, char *why, size_t size) {
  const double silent_s = (double)(plane->watch.servers[s].n_silent * plane->watch.period_ns) / (double)ZPS_NS_PER_S;
  const char *const provider = zps_net_info(zps_engine_net(plane->engine))->provider;
  const bool may_be_kept_out = plane->signs[s] == 0 && strcmp(provider, "tls") != 0;
  snprintf(why, size, "no frame has come for %.1f s, though one was asked for%s", silent_s,
           may_be_kept_out
               ? ", and none before: behind NAT or a firewall, set fabric.encrypt = yes for servers and ranks"
               : "");
}

static void say(struct zps_plane *plane) {
  char why[256] = "";
  uint32_t n = 0;
  uint32_t *const suspects = calloc(plane->watch.n + 1u, sizeof *suspects);
  if (!suspects) {
    plane->watch.n_since = UINT32_MAX / 2; /* with the next look */
    return;
  }
  for (uint32_t s = 0; s < plane->watch.n; s++) {
    const struct zps_watched *const of = &plane->watch.servers[s];
    if (!of->is_suspect) continue;
    if (n == 0 && of->is_lost)
      snprintf(why, sizeof why, "%s", plane->servers[s].why);
    else if (n == 0)
      explain_silence(plane, s, why, sizeof why);
    suspects[n++] = s;
  }
  if (n > 0) zps_log_debug("%" PRIu32 " servers are out of reach (%s)", n, why);
  plane->reach.suspect(plane->reach.ctx, suspects, n, why);
  free(suspects);
}

uint64_t zps_plane_watch_tick(struct zps_plane *plane, uint64_t now_ns) {
  struct zps_watch *const watch = &plane->watch;
  if (!plane->reach.suspect || plane->closed || plane->shut) return ZPS_NEVER;
  if (!zps_watch_is_due(watch, now_ns)) return watch->due_ns;
  hear(plane);
  const bool says = zps_watch_look(watch, plane->reach.waits(plane->reach.ctx), now_ns);
  for (uint32_t s = 0; s < watch->n; s++)
    if (watch->servers[s].must_ask && plane->servers[s].link) zps_link_ask(plane->servers[s].link);
  if (says) say(plane);
  return watch->due_ns;
}
