#define ZPS_LOG_COMPONENT "plane"
#include "worker/plane/plane.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/peer/peer.h"
#include "worker/api/tensor.h"

/* ------------------------------------------------------------ rounds */

static struct zps_round **bucket_of(struct zps_plane *plane, uint32_t tensor, uint64_t step) {
  return &plane->table[zps_hash_mix64(step ^ ((uint64_t)tensor << 40)) % ZPS_PLANE_BUCKETS];
}

struct zps_round *zps_plane_round_find(struct zps_plane *plane, uint32_t tensor, uint64_t step) {
  struct zps_round *round = *bucket_of(plane, tensor, step);
  while (round && (round->tensor->id != tensor || round->step != step)) round = round->hash_next;
  return round;
}

void zps_plane_round_add(struct zps_plane *plane, struct zps_round *round) {
  struct zps_round **bucket = bucket_of(plane, round->tensor->id, round->step);
  round->hash_next = *bucket;
  *bucket = round;
  round->all_next = plane->rounds;
  round->all_prev_p = &plane->rounds;
  if (plane->rounds) plane->rounds->all_prev_p = &round->all_next;
  plane->rounds = round;
  const uint64_t deadline_ns = round->machine->round.deadline_ns; /* at most the round's */
  if (deadline_ns < plane->next_deadline_ns) plane->next_deadline_ns = deadline_ns;
}

void zps_plane_round_remove(struct zps_plane *plane, struct zps_round *round) {
  struct zps_round **at = bucket_of(plane, round->tensor->id, round->step);
  while (*at != round) at = &(*at)->hash_next;
  *at = round->hash_next;
  *round->all_prev_p = round->all_next;
  if (round->all_next) round->all_next->all_prev_p = round->all_prev_p;
}

void zps_plane_fail(struct zps_plane *plane, const struct zps_frame_abort *failure) {
  if (plane->fail_code != ZPS_OK) return;
  plane->failure = *failure;
  plane->fail_code = failure->code;
  for (struct zps_round *round = plane->rounds; round; round = round->all_next) {
    if (zps_round_machine_over(round->machine)) continue;
    round->reason = *failure;
    zps_round_event(round, ZPS_MACHINE_FAIL, 0, 0, failure->code);
  }
}

/* ------------------------------------------------------------ servers */

void zps_plane_server_lost(struct zps_plane *plane, uint32_t server, const char *why) {
  struct zps_remote *lost = &plane->servers[server];
  if (lost->lost) return;
  lost->lost = true;
  if (!plane->closed) zps_log_warn("server %" PRIu32 " (%s) is lost: %s", server, lost->name, why);
  for (struct zps_round *round = plane->rounds; round; round = round->all_next) {
    if (round->exchange) continue;
    if (!zps_round_machine_over(round->machine) && zps_round_machine_needs(round->machine, server)) {
      snprintf(round->reason.text, sizeof round->reason.text, "server %" PRIu32 " (%s) is lost: %s", server, lost->name,
               why);
    }
    zps_round_event(round, ZPS_MACHINE_SERVER_LOST, 0, server, ZPS_OK);
  }
}

static void drop_lost(struct zps_remote *remote) {
  if (!remote->lost || !remote->peer) return;
  zps_net_peer_evict(remote->peer);
  zps_bulk_peer_remove(remote->bulk);
  zps_link_destroy(remote->link);
  remote->peer = NULL;
  remote->bulk = NULL;
  remote->link = NULL;
}

/* Apart from server_lost() and rank_lost(), which are called from inside the fabric's callbacks. */
void zps_plane_drop_lost(struct zps_plane *plane) {
  for (uint32_t s = 0; s < plane->n_servers; s++) drop_lost(&plane->servers[s]);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) drop_lost(&plane->ranks[r]);
}

static void lose(struct zps_remote *remote, const char *why) {
  if (remote->is_rank) {
    zps_plane_rank_lost(remote->plane, remote->index, why);
  } else {
    zps_plane_server_lost(remote->plane, remote->index, why);
  }
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  (void)ctx;
  char why[256];
  snprintf(why, sizeof why, "%s (%s)", text, zps_err_str(code));
  lose(zps_net_peer_ctx(peer), why);
}

/* ------------------------------------------------------------ frames */

/* Servers begin with job, tensor and step, as we do: what follows is the reason. */
static const char *reason_in(const char *text) {
  const char *step = strncmp(text, "job ", 4) == 0 ? strstr(text, ", step ") : NULL;
  const char *reason = step ? strstr(step, ": ") : NULL;
  return reason ? reason + 2 : text;
}

static void on_abort(struct zps_plane *plane, uint32_t server, const struct zps_frame_abort *abort) {
  struct zps_round *round = zps_plane_round_find(plane, abort->tensor, abort->step);
  if (!round || round->exchange) return;
  round->servers[server].over = true;
  zps_round_touch(round);
  if (zps_round_machine_over(round->machine)) return;
  round->reason = *abort;
  snprintf(round->reason.text, sizeof round->reason.text, "%s", reason_in(abort->text));
  zps_round_event(round, ZPS_MACHINE_ABORTED, 0, server, abort->code < ZPS_OK ? abort->code : ZPS_ERR_INTERNAL);
}

/* A server's tag is its number in the job; a rank's is the number of servers and the rank. */
static struct zps_remote *find_sender(const struct zps_plane *plane, const struct zps_frame_header *header) {
  uint64_t tag = header->tag;
  if (!header->is_short) {
    if (header->job != plane->job_id) return NULL;
    const bool is_server = header->src & ZPS_WIRE_SRC_SERVER;
    tag = header->src & ~ZPS_WIRE_SRC_SERVER;
    if (is_server && tag >= plane->n_servers) return NULL;
    if (!is_server) tag += plane->n_servers;
  }
  if (tag < plane->n_servers) return &plane->servers[tag];
  tag -= plane->n_servers;
  return plane->ranks && tag < plane->world && tag != plane->rank ? &plane->ranks[tag] : NULL;
}

static void on_server_frame(struct zps_plane *plane, const struct zps_remote *server, const struct zps_frame *frame) {
  if (frame->header.type == ZPS_FRAME_RESULT) {
    struct zps_round *round = zps_plane_round_find(plane, frame->u.round.tensor, frame->u.round.step);
    if (round && !round->exchange) zps_served_result(round, server->index, frame);
  } else if (frame->header.type == ZPS_FRAME_ABORT) {
    on_abort(plane, server->index, &frame->u.abort);
  } else if (frame->header.type != ZPS_FRAME_CREDIT) {
    zps_log_warn_limited("dropped a %s frame of server %" PRIu32 " (%s): servers send none",
                         zps_frame_type_name(frame->header.type), server->index, server->name);
  }
}

static void on_frame(void *ctx, const struct zps_frame *frame) {
  struct zps_plane *plane = ctx;
  const struct zps_frame_header *header = &frame->header;
  struct zps_remote *sender = find_sender(plane, header);
  if (!sender) {
    zps_log_warn_limited("dropped a %s frame of job 0x%016" PRIx64 " from 0x%" PRIx32 ", tag %" PRIu32
                         ": no server or rank of ours",
                         zps_frame_type_name(header->type), header->job, header->src, header->tag);
    return;
  }
  struct zps_error error;
  if (sender->lost || !sender->link) return;
  const zps_err_t err = zps_link_received(sender->link, header, &error);
  if (err == ZPS_ERR_STALE) {
    zps_log_warn_limited("dropped a frame of %s %" PRIu32 " (%s): %s", sender->is_rank ? "rank" : "server",
                         sender->index, sender->name, error.text);
  } else if (err != ZPS_OK) {
    lose(sender, error.text);
  } else if (sender->is_rank) {
    zps_plane_rank_frame(plane, sender, frame);
  } else {
    on_server_frame(plane, sender, frame);
  }
}

/* ------------------------------------------------------------ the tick */

static void check_deadlines(struct zps_plane *plane, uint64_t now_ns) {
  if (now_ns < plane->next_deadline_ns) return;
  uint64_t next_ns = zps_plane_check_left(plane, now_ns);
  for (struct zps_round *round = plane->rounds; round; round = round->all_next) {
    const uint64_t at_ns = zps_round_tick(round, now_ns);
    if (at_ns < next_ns) next_ns = at_ns;
  }
  plane->next_deadline_ns = next_ns;
}

static void settle_dirty(struct zps_plane *plane, uint64_t now_ns) {
  struct zps_round *again = NULL;
  struct zps_round *round;
  while ((round = plane->dirty) != NULL) {
    plane->dirty = round->dirty_next;
    if (!plane->dirty) plane->dirty_tail = &plane->dirty;
    round->dirty = false;
    if (zps_round_settle(round, now_ns) && !round->dirty) {
      round->dirty = true;
      round->dirty_next = again;
      again = round;
    }
  }
  while (again) { /* their frames wait for credit: the next tick */
    round = again;
    again = round->dirty_next;
    round->dirty = false;
    zps_round_touch(round);
  }
}

static void progress(struct zps_remote *remote) {
  if (!remote->lost && remote->link) zps_link_progress(remote->link);
}

static uint64_t on_tick(void *ctx, uint64_t now_ns) {
  struct zps_plane *plane = ctx;
  check_deadlines(plane, now_ns);
  do { /* what is done while settling may want memory, or free some */
    zps_plane_pump(plane);
    settle_dirty(plane, now_ns);
  } while (plane->pump);
  zps_plane_drop_lost(plane);
  for (uint32_t s = 0; s < plane->n_servers; s++) progress(&plane->servers[s]);
  for (uint32_t r = 0; plane->ranks && r < plane->world; r++) progress(&plane->ranks[r]);
  if (now_ns >= plane->age_ns) plane->age_ns = zps_worker_tensors_age(plane, now_ns);
  return plane->age_ns < plane->next_deadline_ns ? plane->age_ns : plane->next_deadline_ns;
}

struct zps_engine_handler zps_plane_handler(struct zps_plane *plane) {
  return (struct zps_engine_handler){
      .ctx = plane, .on_frame = on_frame, .on_peer_error = on_peer_error, .on_tick = on_tick};
}
