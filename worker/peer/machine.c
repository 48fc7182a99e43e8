/* The machine of a round between ranks. The program says what happens in the round (schemes/run.h); the machine says
 * how the round ends. */
#include <stdlib.h>

#include "worker/round/machine.h"

static void between_destroy(struct zps_round_machine *machine) {
  zps_round_machine_fini(machine);
  free(machine);
}

static zps_err_t between_create(const struct zps_round_machine_plan *plan, struct zps_round_machine **scheme_p) {
  struct zps_round_machine *machine = calloc(1, sizeof *machine);
  if (!machine) return ZPS_ERR_NOMEM;
  const zps_err_t err = zps_round_machine_init(machine, &zps_peer_machine, plan, 2);
  if (err != ZPS_OK) {
    free(machine);
    return err;
  }
  *scheme_p = machine;
  return ZPS_OK;
}

static void between_reset(struct zps_round_machine *machine) {
  (void)machine;
}

static void end(struct zps_round_machine *machine, zps_err_t code, uint32_t blame, uint64_t now_ns) {
  machine->code = code;
  machine->blame = blame;
  zps_round_machine_set_state(machine, code == ZPS_OK ? ZPS_MACHINE_DONE : ZPS_MACHINE_FAILED, now_ns);
  zps_round_machine_act(machine, code == ZPS_OK ? ZPS_MACHINE_DO_RETIRE : ZPS_MACHINE_DO_ABORT, ZPS_MACHINE_ALL);
  zps_round_machine_act(machine, ZPS_MACHINE_DO_COMPLETE, 0);
}

static void between_step(struct zps_round_machine *machine, const struct zps_round_machine_event *event,
                         uint64_t now_ns) {
  if (machine->state == ZPS_MACHINE_IDLE) {
    if (event->type == ZPS_MACHINE_START) zps_round_machine_set_state(machine, ZPS_MACHINE_EXCHANGING, now_ns);
    return;
  }
  switch (event->type) {
    case ZPS_MACHINE_DECODED:
      end(machine, ZPS_OK, ZPS_MACHINE_ALL, now_ns);
      break;
    case ZPS_MACHINE_ABORTED:
      end(machine, event->code, event->server, now_ns);
      break;
    case ZPS_MACHINE_FAIL:
      end(machine, event->code, ZPS_MACHINE_ALL, now_ns);
      break;
    case ZPS_MACHINE_SERVER_LOST:
      end(machine, ZPS_ERR_PEER_LOST, event->server, now_ns);
      break;
    case ZPS_MACHINE_TICK:
      if (now_ns >= machine->round.deadline_ns) end(machine, ZPS_ERR_TIMEOUT, ZPS_MACHINE_ALL, now_ns);
      break;
    default:
      end(machine, ZPS_ERR_INTERNAL, ZPS_MACHINE_ALL, now_ns);
      break;
  }
}

/* The program knows which ranks it waits for. */
static bool between_needs(const struct zps_round_machine *machine, uint32_t rank) {
  return rank < machine->plan.n_servers;
}

const struct zps_round_machine_ops zps_peer_machine = {.name = "between workers",
                                                       .create = between_create,
                                                       .destroy = between_destroy,
                                                       .reset = between_reset,
                                                       .step = between_step,
                                                       .needs = between_needs};
