/* The life of a round between workers. What happens in it is a program's business (run.h); here is how it ends. */
#include <stdlib.h>

#include "worker/schemes/scheme.h"

static void between_destroy(struct zps_scheme *scheme) {
  zps_scheme_fini(scheme);
  free(scheme);
}

static zps_err_t between_create(const struct zps_scheme_plan *plan, struct zps_scheme **scheme_p) {
  struct zps_scheme *scheme = calloc(1, sizeof *scheme);
  if (!scheme) return ZPS_ERR_NOMEM;
  const zps_err_t err = zps_scheme_init(scheme, &zps_scheme_between, plan, 2);
  if (err != ZPS_OK) {
    free(scheme);
    return err;
  }
  *scheme_p = scheme;
  return ZPS_OK;
}

static void between_reset(struct zps_scheme *scheme) {
  (void)scheme;
}

static void end(struct zps_scheme *scheme, zps_err_t code, uint32_t blame, uint64_t now_ns) {
  scheme->code = code;
  scheme->blame = blame;
  zps_scheme_set_state(scheme, code == ZPS_OK ? ZPS_SCHEME_DONE : ZPS_SCHEME_FAILED, now_ns);
  zps_scheme_act(scheme, code == ZPS_OK ? ZPS_SCHEME_DO_RETIRE : ZPS_SCHEME_DO_ABORT, ZPS_SCHEME_ALL);
  zps_scheme_act(scheme, ZPS_SCHEME_DO_COMPLETE, 0);
}

static void between_step(struct zps_scheme *scheme, const struct zps_scheme_event *event, uint64_t now_ns) {
  if (scheme->state == ZPS_SCHEME_IDLE) {
    if (event->type == ZPS_SCHEME_START) zps_scheme_set_state(scheme, ZPS_SCHEME_EXCHANGING, now_ns);
    return;
  }
  switch (event->type) {
    case ZPS_SCHEME_DECODED:
      end(scheme, ZPS_OK, ZPS_SCHEME_ALL, now_ns);
      break;
    case ZPS_SCHEME_ABORTED:
      end(scheme, event->code, event->server, now_ns);
      break;
    case ZPS_SCHEME_FAIL:
      end(scheme, event->code, ZPS_SCHEME_ALL, now_ns);
      break;
    case ZPS_SCHEME_SERVER_LOST:
      end(scheme, ZPS_ERR_PEER_LOST, event->server, now_ns);
      break;
    case ZPS_SCHEME_TICK:
      if (now_ns >= scheme->round.deadline_ns) end(scheme, ZPS_ERR_TIMEOUT, ZPS_SCHEME_ALL, now_ns);
      break;
    default:
      end(scheme, ZPS_ERR_INTERNAL, ZPS_SCHEME_ALL, now_ns);
      break;
  }
}

/* The program knows whom it waits for. */
static bool between_needs(const struct zps_scheme *scheme, uint32_t rank) {
  return rank < scheme->plan.n_servers;
}

const struct zps_scheme_ops zps_scheme_between = {.name = "between workers",
                                                  .create = between_create,
                                                  .destroy = between_destroy,
                                                  .reset = between_reset,
                                                  .step = between_step,
                                                  .needs = between_needs};
