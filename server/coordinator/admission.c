/* Which connections may stay open: how many there may be, in all, and of one role from one address; how long one may
 * be that nobody uses, and how long the client of one that has ended may take to come back.
 *
 * Behind one address there may be a whole cluster, a rank of a job on each of its processors: a limit for an address
 * keeps it from taking everybody's room, and no more. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "server/coordinator/coordinator_impl.h"

#define ZPS_LOG_COMPONENT "coordinator"
#include "common/base/log.h"

#define IDLE_MS 60000u              /* of a server or rank that does not say that it lives */
#define IDLE_ADMIN_MS (15 * 60000u) /* zenpsctl asks again and again (--watch), as rarely as its user likes */

static const struct limit {
  enum zps_conn_role role;
  const char *name;
  unsigned of_place;
  size_t first_lines; /* a server that registers again names its jobs */
} limits[] = {{ZPS_CONN_SERVER, "servers", 2048, 256u << 10},
              {ZPS_CONN_WORKER, "ranks", 8192, 64u << 10},
              {ZPS_CONN_CTL, "administrators", 256, 64u << 10}};

static const struct limit *limit_of(enum zps_conn_role role) {
  const struct limit *limit = limits;
  while (limit->role != role) limit++;
  return limit;
}

size_t zps_coordinator_first_lines(enum zps_conn_role role) {
  return limit_of(role)->first_lines;
}

zps_err_t zps_coordinator_admit(const struct zps_coordinator *coordinator, const struct zps_rpc_conn *rpc,
                                enum zps_conn_role role, struct zps_error *error) {
  const struct limit *limit = limit_of(role);
  const struct zps_place place = zps_rpc_conn_place(rpc);
  const unsigned max = coordinator->config.max_conns ? coordinator->config.max_conns : ZPS_COORDINATOR_CONNS_MAX;
  unsigned n_here = 0;
  if (coordinator->n_conns >= max)
    return zps_fail(error, ZPS_ERR_AGAIN, "the coordinator has %u connections, the most there can be",
                    coordinator->n_conns);
  for (const struct zps_coordinator_conn *conn = coordinator->conns; conn; conn = conn->next)
    n_here += conn->role == role && zps_place_is(&conn->place, &place);
  if (n_here < limit->of_place) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_AGAIN, "%u connections of %s come from its address, the most there can be", n_here,
                  limit->name);
}

bool zps_coordinator_is_idle(const struct zps_coordinator_conn *conn, uint64_t now_ns) {
  const uint64_t allowed_ns = (conn->role == ZPS_CONN_CTL ? IDLE_ADMIN_MS : IDLE_MS) * ZPS_NS_PER_MS;
  const uint64_t heard_ns = zps_rpc_conn_heard_ns(conn->rpc);
  return !conn->watched_ns && zps_rpc_conn_asked(conn->rpc) == 0 && now_ns > heard_ns && now_ns - heard_ns > allowed_ns;
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
        "no descriptors are left (%s): connections are turned away until some are closed, those that are "
        "open go on",
        errno == EMFILE ? "RLIMIT_NOFILE; systemd: LimitNOFILE=" : "of the whole machine: fs.file-max");
}
