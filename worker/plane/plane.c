#define ZPS_LOG_COMPONENT "plane"
#include "worker/plane/plane.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

/* ------------------------------------------------------------ losses */

void zps_plane_lose(struct zps_remote *remote, const char *why) {
  struct zps_plane *plane = remote->plane;
  if (remote->lost) return;
  remote->lost = true;
  snprintf(remote->why, sizeof remote->why, "%s", why);
  if (!plane->closed && !plane->shut && !remote->left_ns)
    zps_log_warn(ZPS_REMOTE_FMT " is lost: %s", ZPS_REMOTE_ARGS(remote), remote->why);
  zps_plane_watch_lost(remote);
  plane->handler.on_lost(plane->handler.ctx, remote, remote->why);
}

void zps_plane_remote_drop(struct zps_remote *remote) {
  if (!remote->lost || !remote->peer) return;
  zps_net_peer_evict(remote->peer);
  zps_bulk_peer_remove(remote->bulk);
  zps_link_destroy(remote->link);
  remote->peer = NULL;
  remote->bulk = NULL;
  remote->link = NULL;
}

/* A function of its own, since zps_plane_lose() is called from inside the fabric's callbacks. */
void zps_plane_drop_lost(struct zps_plane *plane) {
  for (uint32_t s = 0; s < plane->n_servers; s++) zps_plane_remote_drop(&plane->servers[s]);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) zps_plane_remote_drop(&plane->ranks[r]);
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  const struct zps_plane *const plane = ctx;
  const struct zps_remote *const remote = zps_net_peer_ctx(peer);
  if (remote->lost || !remote->link || !zps_link_cut(remote->link)) return;
  if (!plane->closed && !plane->shut && !remote->left_ns)
    zps_log_info("the connection to " ZPS_REMOTE_FMT " is lost, and made anew: %s (%s)", ZPS_REMOTE_ARGS(remote), text,
                 zps_err_str(code));
}

/* ------------------------------------------------------------ frames */

static struct zps_remote *find_rank(const struct zps_plane *plane, uint32_t rank) {
  return plane->ranks && rank < plane->world && rank != plane->rank ? &plane->ranks[rank] : NULL;
}

static struct zps_remote *find_server_tagged(const struct zps_plane *plane, uint32_t tag) {
  for (uint32_t s = 0; s < plane->n_servers; s++)
    if (plane->servers[s].tag == tag) return &plane->servers[s];
  return NULL;
}

/* A server's tag is its number in the job; a rank's is the number of servers and the rank. A server that took another's
 * place has one of its own, above these, so that the first one's frames, if it lives, are nobody's. */
static struct zps_remote *find_sender(const struct zps_plane *plane, const struct zps_frame_header *header) {
  const uint32_t tag = header->tag, src = header->src & ~ZPS_WIRE_SRC_SERVER;
  if (header->is_short) {
    if (tag < plane->n_servers) return plane->servers[tag].tag == tag ? &plane->servers[tag] : NULL;
    struct zps_remote *const rank = find_rank(plane, tag - plane->n_servers);
    return rank ? rank : find_server_tagged(plane, tag);
  }
  if (header->job != plane->job_id) return NULL;
  if (!(header->src & ZPS_WIRE_SRC_SERVER)) return find_rank(plane, src);
  return src < plane->n_servers && header->epoch >= plane->servers[src].since ? &plane->servers[src] : NULL;
}

static bool may_send(const struct zps_remote *sender, enum zps_frame_type type) {
  if (type == ZPS_FRAME_ABORT) return true;
  if (sender->is_rank) return type == ZPS_FRAME_PEER || type == ZPS_FRAME_DONE;
  return type == ZPS_FRAME_RESULT || type == ZPS_FRAME_TAKEN || type == ZPS_FRAME_FOUND || type == ZPS_FRAME_MISSED ||
         type == ZPS_FRAME_CLOSED;
}

static struct zps_link *find_link(void *ctx, const struct zps_frame_header *header) {
  const struct zps_remote *sender = find_sender(ctx, header);
  if (sender) return sender->lost ? NULL : sender->link;
  zps_log_warn_of_strangers("dropped a %s frame of job 0x%016" PRIx64 " from 0x%" PRIx32 ", tag %" PRIu32
                            ": no server or rank of ours",
                            zps_frame_type_name(header->type), header->job, header->src, header->tag);
  return NULL;
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  struct zps_plane *plane = ctx;
  const struct zps_frame_header *header = &frame->header;
  struct zps_remote *sender = find_sender(plane, header);
  struct zps_error error;
  if (!sender || sender->lost || !sender->link) return;
  const zps_err_t err = zps_link_received(sender->link, header, &error);
  if (err == ZPS_ERR_STALE) {
    /* A server was lost, and one of the two has not heard of it when it sends or gets this. */
    zps_log_debug("dropped a frame of " ZPS_REMOTE_FMT ": %s", ZPS_REMOTE_ARGS(sender), error.text);
  } else if (err != ZPS_OK) {
    zps_plane_lose(sender, error.text);
  } else if (may_send(sender, header->type)) {
    plane->handler.on_frame(plane->handler.ctx, sender, frame);
  } else if (header->type != ZPS_FRAME_CREDIT) {
    zps_log_warn_limited("dropped a %s frame of " ZPS_REMOTE_FMT ": %s", zps_frame_type_name(header->type),
                         ZPS_REMOTE_ARGS(sender),
                         sender->is_rank ? "ranks send none to each other" : "servers send none");
  }
}

/* ------------------------------------------------------------ the tick */

static void progress(struct zps_remote *remote, bool waits, uint64_t now_ns, uint64_t *next_ns) {
  if (remote->lost || !remote->link) return;
  const uint64_t link_ns = zps_link_tick(remote->link, now_ns, waits);
  if (link_ns < *next_ns) *next_ns = link_ns;
  zps_link_progress(remote->link);
  struct zps_error error;
  const uint64_t dead_ns = remote->is_rank ? remote->plane->dead_ns : 0; /* servers are watched (watch.h) */
  if (zps_link_check(remote->link, now_ns, dead_ns, &error) == ZPS_OK) return;
  zps_plane_lose(remote, error.text);
  *next_ns = now_ns; /* to act on it */
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  struct zps_plane *plane = ctx;
  if (now_ns >= plane->left_due_ns) plane->left_due_ns = zps_plane_check_left(plane, now_ns);
  uint64_t next_ns = plane->handler.on_tick(plane->handler.ctx, now_ns);
  const uint64_t watch_ns = zps_plane_watch_tick(plane, now_ns);
  if (watch_ns < next_ns) next_ns = watch_ns;
  zps_plane_drop_lost(plane);
  const bool waits = plane->reach.waits && plane->reach.waits(plane->reach.ctx);
  for (uint32_t s = 0; s < plane->n_servers; s++) progress(&plane->servers[s], waits, now_ns, &next_ns);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) progress(&plane->ranks[r], false, now_ns, &next_ns);
  return plane->left_due_ns < next_ns ? plane->left_due_ns : next_ns;
}

static bool is_read(void *ctx) {
  const struct zps_plane *plane = ctx;
  return plane->handler.is_read && plane->handler.is_read(plane->handler.ctx);
}

struct zps_engine_handler zps_plane_engine_handler(struct zps_plane *plane) {
  return (struct zps_engine_handler){.ctx = plane,
                                     .find_link = find_link,
                                     .on_frame = on_frame,
                                     .on_peer_error = on_peer_error,
                                     .on_tick = on_tick,
                                     .is_read = is_read};
}
