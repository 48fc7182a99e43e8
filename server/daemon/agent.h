/*
 * The server role on the control plane: connects to the coordinator, registers, and carries out its calls on the shard.
 * Connects again whenever the connection is lost; jobs go on meanwhile, since the data plane does not need the
 * coordinator. Once connected again, jobs that the coordinator has closed meanwhile are closed; jobs of which it knows
 * nothing, since it has started again without its state, after a grace.
 */
#ifndef ZPS_SERVER_DAEMON_AGENT_H
#define ZPS_SERVER_DAEMON_AGENT_H

#include <uv.h>

#include "server/shard/shard.h"

struct zps_agent;

struct zps_agent_config {
  const char *coordinator, *name, *host; /* copied; coordinator: one address, or a list (common/control/addresses.h) */
  struct zps_tls *tls;                   /* to speak to the coordinator with; NULL: none. Borrowed, as is shard */
  struct zps_shard *shard;               /* borrowed until the agent is closed */
  uint64_t orphan_grace_ms;              /* for jobs of which a coordinator that has lost its state knows nothing */
  void *ctx;
  /* Registered, or (with why) no longer. */
  void (*on_change)(void *ctx, bool registered, const char *text);
};

zps_err_t zps_agent_create(uv_loop_t *loop, const struct zps_agent_config *config, struct zps_agent **agent_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
/* Asks the coordinator for no more jobs. */
void zps_agent_drain(struct zps_agent *agent);
/* Frees once the loop has run the close callbacks. NULL is allowed. */
void zps_agent_close(struct zps_agent *agent);

#endif
