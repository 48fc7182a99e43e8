/*
 * The progress thread that daemon and library share: it owns one fabric endpoint with its slab and bulk engine, takes
 * commands from other threads, and hands decoded frames and timer ticks to its handler. Everything in a handler runs on
 * this thread, so the state behind it needs no locks.
 */
#ifndef ZPS_SESSION_ENGINE_H
#define ZPS_SESSION_ENGINE_H

#include "common/base/mishaps.h"
#include "common/net/bulk.h"
#include "common/net/net.h"
#include "common/net/slab.h"
#include "proto/wire.h"

struct zps_engine;
struct zps_link;

/* A request to the engine thread, embedded in the caller's object: no allocation, no limit, in the order posted. It is
 * the engine's from the post until it runs, and may then be freed or posted again, also by its own run(). */
struct zps_command {
  void (*run)(struct zps_command *command, void *handler_ctx);
  struct zps_command *next; /* the engine's */
};

struct zps_engine_handler {
  void *ctx;
  /* The link that a frame's header names, or NULL, for which the handler has the words: messages of no link are
   * dropped. It decides nothing yet, since anybody can write a header. */
  struct zps_link *(*find_link)(void *ctx, const struct zps_frame_header *header);
  /* A frame that is the peer's, in its turn, and that decoded cleanly. Malformed ones are logged (rate-limited),
   * counted and dropped by the engine. */
  void (*on_frame)(void *ctx, const struct zps_frame *frame);
  /* A connection is lost: zps_link_cut(). */
  void (*on_peer_error)(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text);
  /* After each batch of events and when the time last returned has come: flush links, check deadlines. Returns the next
   * deadline, or ZPS_NEVER. */
  uint64_t (*on_tick)(void *ctx, uint64_t now_ns);
  /* Before each sleep: whether peers may be reading this process's memory. NULL: none is. */
  bool (*is_read)(void *ctx);
};

struct zps_engine_config {
  const char *name;          /* of the thread */
  struct zps_net_config net; /* strings are borrowed during create */
  struct zps_bulk_config bulk;
  uint64_t memory_limit_bytes; /* of the slab; net.memory_limit_bytes follows it */
  uint64_t memory_cache_bytes;
};

/* Opens the fabric, then starts the thread, which calls the handler from the first command or event on. */
zps_err_t zps_engine_create(const struct zps_engine_config *config, const struct zps_engine_handler *handler,
                            struct zps_engine **engine_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Stops and joins the thread, then closes the fabric; commands not yet run are run first. The handler may be called
 * until this returns. NULL is allowed. */
void zps_engine_destroy(struct zps_engine *engine);

/* From any thread: runs `command` on the engine thread. Other threads must be through with posting before the engine is
 * destroyed; commands may post until the end. */
void zps_engine_post(struct zps_engine *engine, struct zps_command *command);
/* Posts a command and waits until it has run. ZPS_ERR_INVALID on the engine's own thread, which would wait for
 * itself. */
zps_err_t zps_engine_call(struct zps_engine *engine, struct zps_command *command) ZPS_MUSTCHECK;

/* Calls, but gives up (ZPS_ERR_TIMEOUT) when the thread does not begin with the command for so long; time in which this
 * process did not run does not count. The command will not run then. A command that has begun is waited for.
 * ZPS_ERR_NOMEM: there is no memory, and another call has the command that is kept for this case. */
zps_err_t zps_engine_call_within(struct zps_engine *engine, struct zps_command *command,
                                 uint64_t patience_ns) ZPS_MUSTCHECK;

/* Whether the thread runs, as another thread sees it: `turns` counts, and stands still while the thread sleeps. It is
 * `due` when it has something to do: it is in the middle of a turn, a command waits, or the time has come that its
 * handler asked for. One that is due and makes no turn is stuck. */
struct zps_engine_pulse {
  uint64_t turns;
  bool due;
};
struct zps_engine_pulse zps_engine_pulse(struct zps_engine *engine, uint64_t now_ns);

struct zps_net *zps_engine_net(struct zps_engine *engine); /* zps_net_info() of it is readable from any thread */
struct zps_slab *zps_engine_slab(struct zps_engine *engine);
struct zps_bulk *zps_engine_bulk(struct zps_engine *engine);
struct zps_mishaps zps_engine_mishaps(const struct zps_engine *engine);    /* from any thread */
struct zps_link_counts *zps_engine_link_counts(struct zps_engine *engine); /* for zps_link_ends */
void zps_engine_note_corrupt(struct zps_engine *engine);

#endif
