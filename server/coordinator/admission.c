/*
 * Which connections may stay open: how many in all, and how many of one role from one origin; how long one may be
 * idle, and how long its client may take to come back.
 *
 * An origin is the name of a certificate, without TLS an address. A whole cluster may be behind an address, with a rank
 * on each of its processors. The limit for an origin only keeps it from taking everybody's room. Where there is no
 * room, an idle connection makes some: connections that say hello and stay keep nobody out.
 *
 * Administrators with a certificate and clients of the Unix socket have slots of their own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/container.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

#define IDLE_MS 60000u              /* of a server or rank that does not say that it lives */
#define IDLE_ADMIN_MS (15 * 60000u) /* zenpsctl asks again and again (--watch), as rarely as its user likes */

#define RESERVED_MAX 1024u /* connections of administrators with a certificate and of the Unix socket */

static const struct limit {
  enum zps_conn_role role;
  const char *name;
  unsigned of_place;
  size_t first_lines; /* a server that registers again names its jobs */
} limits[] = {{ZPS_CONN_SERVER, "servers", 2048, 256u << 10},
              {ZPS_CONN_WORKER, "ranks", 8192, 64u << 10},
              {ZPS_CONN_CTL, "administrators", 2048, 64u << 10}};

static const struct limit *limit_of(enum zps_conn_role role) {
  const struct limit *limit = limits;
  while (limit->role != role) limit++;
  return limit;
}

size_t zps_coordinator_first_lines(enum zps_conn_role role) {
  return limit_of(role)->first_lines;
}

/* NULL: it has no slots. */
static struct zps_slots_room *room_of(const struct zps_slots *slots, struct zps_origin origin, unsigned sort) {
  struct zps_slots_room *room = slots->rooms;
  while (room && !(room->sort == sort && zps_origin_is(&room->origin, &origin))) room = room->next;
  return room;
}

static bool take_slot(struct zps_slots *slots, struct zps_slot *slot, struct zps_origin origin, unsigned sort) {
  struct zps_slots_room *room = room_of(slots, origin, sort);
  if (!room) {
    room = malloc(sizeof *room);
    if (!room) return false;
    *room = (struct zps_slots_room){.slots = slots, .next = slots->rooms, .origin = origin, .sort = sort};
    slots->rooms = room;
  }
  *slot = (struct zps_slot){.room = room, .older = room->newest};
  *(room->newest ? &room->newest->newer : &room->oldest) = slot;
  room->newest = slot;
  room->n++;
  slots->n++;
  return true;
}

void zps_slots_leave(struct zps_slot *slot) {
  struct zps_slots_room *const room = slot->room;
  if (!room) return;
  *(slot->older ? &slot->older->newer : &room->oldest) = slot->newer;
  *(slot->newer ? &slot->newer->older : &room->newest) = slot->older;
  slot->room = NULL;
  room->slots->n--;
  if (--room->n > 0) return;
  struct zps_slots_room **link = &room->slots->rooms;
  while (*link != room) link = &(*link)->next;
  *link = room->next;
  free(room);
}

static bool has_reserved_slot(const struct zps_rpc_conn *rpc) {
  return zps_rpc_conn_is_unix(rpc) || zps_rpc_conn_certified(rpc) & ZPS_TLS_ADMIN;
}

/* Whether it is no server and no rank, nor asks to be one, and waits for no answer; or is closing. */
static bool is_spare(const struct zps_coordinator_conn *conn) {
  const struct zps_member_client *const client = &conn->client;
  if (!zps_rpc_conn_is_open(conn->rpc)) return true;
  return !client->server && !client->job && !client->asker && zps_rpc_conn_unanswered(conn->rpc) == 0;
}

/* The oldest that has asked nothing since its hello, else the oldest that waits for nothing; NULL: all are in use. */
static struct zps_coordinator_conn *idlest(const struct zps_slots_room *room) {
  struct zps_coordinator_conn *found = NULL;
  for (struct zps_slot *slot = room->oldest; slot; slot = slot->newer) {
    struct zps_coordinator_conn *const conn = zps_container_of(slot, struct zps_coordinator_conn, slot);
    if (!is_spare(conn)) continue;
    if (!conn->has_asked) return conn;
    if (!found) found = conn;
  }
  return found;
}

/* Of the largest room that has one. */
static struct zps_coordinator_conn *idlest_of_all(const struct zps_slots *slots) {
  struct zps_coordinator_conn *found = NULL;
  unsigned most = 0;
  for (const struct zps_slots_room *room = slots->rooms; room; room = room->next) {
    struct zps_coordinator_conn *const conn = room->n > most ? idlest(room) : NULL;
    if (!conn) continue;
    found = conn;
    most = room->n;
  }
  return found;
}

zps_err_t zps_coordinator_admit(struct zps_coordinator *coordinator, const struct zps_rpc_conn *rpc,
                                enum zps_conn_role role, struct zps_error *error) {
  const struct limit *limit = limit_of(role);
  const bool is_reserved = has_reserved_slot(rpc);
  const struct zps_slots *const slots = &coordinator->slots[is_reserved];
  const struct zps_slots_room *const room = room_of(slots, zps_rpc_conn_owner(rpc), role);
  const unsigned others = coordinator->config.max_conns ? coordinator->config.max_conns : ZPS_COORDINATOR_CONNS_MAX,
                 max = is_reserved ? RESERVED_MAX : others;
  const bool room_is_full = room && room->n >= limit->of_place;
  if (!room_is_full && slots->n < max) return ZPS_OK;
  struct zps_coordinator_conn *const idle = room_is_full ? idlest(room) : idlest_of_all(slots);
  if (idle) {
    zps_log_about(.peer = zps_rpc_conn_peer(idle->rpc));
    zps_log_warn_limited("%s: closed, to make room: it is in no job, and its origin has %u connections",
                         zps_rpc_conn_peer(idle->rpc), idle->slot.room->n);
    zps_slots_leave(&idle->slot);
    zps_rpc_close(idle->rpc, false);
    return ZPS_OK;
  }
  if (!room_is_full)
    return zps_fail(error, ZPS_ERR_AGAIN, "the coordinator has %u connections, the most there can be", slots->n);
  const char *const certificate = zps_rpc_conn_certificate(rpc);
  if (*certificate)
    return zps_fail(error, ZPS_ERR_AGAIN, "%u connections of %s have its certificate (%s), the most there can be",
                    room->n, limit->name, certificate);
  return zps_fail(error, ZPS_ERR_AGAIN, "%u connections of %s come from its address, the most there can be", room->n,
                  limit->name);
}

bool zps_coordinator_take_slot(struct zps_coordinator_conn *conn) {
  struct zps_slots *const slots = &conn->coordinator->slots[has_reserved_slot(conn->rpc)];
  return take_slot(slots, &conn->slot, zps_rpc_conn_owner(conn->rpc), conn->role);
}

bool zps_coordinator_is_idle(const struct zps_coordinator_conn *conn, uint64_t now_ns) {
  const uint64_t allowed_ns = (conn->role == ZPS_CONN_CTL ? IDLE_ADMIN_MS : IDLE_MS) * ZPS_NS_PER_MS;
  const uint64_t heard_ns = zps_rpc_conn_heard_ns(conn->rpc);
  return !conn->watched_ns && zps_rpc_conn_unanswered(conn->rpc) == 0 && now_ns > heard_ns &&
         now_ns - heard_ns > allowed_ns;
}

/* When a process dies its connections end, so such an end is taken for a death. Not where the client has said that it
 * is none, where the network alone ended the connection, or where this side did, which has no memory for what comes or
 * goes: the client connects again, and hears what counts. A client that was lost by decision is none any more. */
uint64_t zps_coordinator_grace_ms(const struct zps_coordinator_conn *conn, zps_err_t code) {
  const struct zps_coordinator_config *config = &conn->coordinator->config;
  const bool lives = conn->returns || code == ZPS_ERR_TIMEOUT || code == ZPS_ERR_NOMEM || code == ZPS_OK;
  return lives && config->dead_ms > config->resume_grace_ms ? config->dead_ms : config->resume_grace_ms;
}

/* libuv takes a connection that there is no descriptor for, closes it, and tells nobody. */
void zps_coordinator_check_descriptors(void) {
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (fd >= 0)
    close(fd);
  else if (errno == EMFILE || errno == ENFILE)
    zps_log_warn_limited(
        "no descriptors are left (%s): new connections are refused until some are closed; open ones go on",
        errno == EMFILE ? "RLIMIT_NOFILE; systemd: LimitNOFILE=" : "of the whole machine: fs.file-max");
}
