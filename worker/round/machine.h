/*
 * How one rank takes part in one round: a pure state machine, step(state, event, now) -> actions.
 *
 * It knows no network, no memory and no clock: the driver (life.c) reports what happened as events and carries out the
 * actions that come back. Events may come in any order that a network, a pool of threads and a hostile peer can
 * produce; what cannot be right fails the round. Whatever happens, COMPLETE comes exactly once, and nothing after it.
 *
 *     IDLE > ENCODING > PUSHING > WAITING > PULLING > DONE | FAILED
 *     IDLE > ENCODING > PUSHING > WAITING > DONE | FAILED          only_gives
 *     IDLE > WAITING > PULLING > DONE | FAILED                     only_takes
 *     IDLE > EXCHANGING > DONE | FAILED
 *
 * The last row is that of rounds between ranks (worker/peer/machine.c): there "servers" are ranks, RETIRE and ABORT
 * go to all of them, and DECODED says that the whole program was carried out.
 */
#ifndef ZPS_WORKER_ROUND_MACHINE_H
#define ZPS_WORKER_ROUND_MACHINE_H

#include <stdint.h>

#include "common/base/err.h"

#define ZPS_MACHINE_ALL UINT32_MAX /* in place of a partition: all of them; of a server: none, or all */

enum zps_round_machine_state {
  ZPS_MACHINE_IDLE,
  ZPS_MACHINE_ENCODING, /* nothing was announced yet */
  ZPS_MACHINE_PUSHING,  /* some partitions were announced */
  ZPS_MACHINE_WAITING,  /* all were, and no result came yet */
  ZPS_MACHINE_PULLING,
  ZPS_MACHINE_EXCHANGING, /* between ranks: the program is being carried out */
  ZPS_MACHINE_DONE,
  ZPS_MACHINE_FAILED,
};

enum zps_round_machine_event_type {
  ZPS_MACHINE_START,       /* the gradient is being scanned */
  ZPS_MACHINE_SCANNED,     /* the rows of scan `partition` of its scans are counted per partition; only_takes: there are
                            * none, and the result may be written */
  ZPS_MACHINE_WRITTEN,     /* `partition` is encoded */
  ZPS_MACHINE_TAKEN,       /* `server` has all contributions */
  ZPS_MACHINE_RESULT,      /* the owner announced the sum of `partition` */
  ZPS_MACHINE_LANDED,      /* the sum of `partition` is in our memory */
  ZPS_MACHINE_CLEARED,     /* the dense result is all zeros */
  ZPS_MACHINE_DECODED,     /* `partition` (or ALL) is in the trainer's result */
  ZPS_MACHINE_ABORTED,     /* `server` gave the round up, with `code` */
  ZPS_MACHINE_SERVER_LOST, /* `server` is gone */
  ZPS_MACHINE_REMAP,       /* plan.owners are others now, and the servers have forgotten the round */
  ZPS_MACHINE_FAIL,        /* it cannot go on here, with `code`: an error, a cancel, a failed job */
  ZPS_MACHINE_TICK,        /* time has passed */
};

struct zps_round_machine_event {
  enum zps_round_machine_event_type type;
  uint32_t partition;
  uint32_t server;
  zps_err_t code;
};

enum zps_round_machine_action_type {
  ZPS_MACHINE_DO_WRITE,    /* encode every partition of scan `arg` */
  ZPS_MACHINE_DO_ANNOUNCE, /* tell the owner of `arg` (a partition) that it may read our contribution */
  ZPS_MACHINE_DO_READ,     /* fetch the sum of `arg` */
  ZPS_MACHINE_DO_FORGET,   /* what was got of the sum of `arg` is for nothing: no transfer of it is under way */
  ZPS_MACHINE_DO_CLEAR,    /* zero the dense result; of one stripe */
  ZPS_MACHINE_DO_DECODE,   /* put the sum of `arg` (or ALL) into the result */
  ZPS_MACHINE_DO_STRIPE,   /* put the sums of stripe `arg` into the result, and zeros where there are none; of a result
                             that is rows: in order, for when all are */
  ZPS_MACHINE_DO_RETIRE,   /* tell server `arg` that we have read all we need of it */
  ZPS_MACHINE_DO_ABORT,    /* tell server `arg` that the round failed here */
  ZPS_MACHINE_DO_COMPLETE, /* tell the trainer: `zps_round_machine.code` */
};

struct zps_round_machine_action {
  enum zps_round_machine_action_type type;
  uint32_t arg;
};

/* The part that does not change from round to round. `owners` (n_parts of them, each < n_servers) is borrowed. */
struct zps_round_machine_plan {
  uint32_t n_parts, n_servers;
  uint32_t n_stripes; /* each of as many consecutive partitions: parts of the result that are decoded at once */
  const uint32_t *owners;
  const char *tensor; /* for the log, borrowed */
};

struct zps_round_machine_start {
  uint64_t step;
  uint64_t deadline_ns;
  uint32_t n_scans; /* 1, or n_stripes: after so many steps, in order, all partitions are scanned */
  bool is_apart;    /* the result's memory is not the gradient's: it may be written while that is still read */
  bool only_gives;  /* no sums come: the owners say that they have the contributions (TAKEN) */
  bool only_takes;  /* sums come, and nothing is pushed for them */
  bool gives_again; /* only_gives, of what an earlier round of the step has encoded: servers that have it are told that
                     * this rank wants no sum (RETIRE) */
  bool whole;       /* decode all partitions at once (DECODE ALL) instead of clearing the result and then one by one */
};

struct zps_round_machine {
  const struct zps_round_machine_ops *ops;
  struct zps_round_machine_plan plan;
  struct zps_round_machine_start round;
  enum zps_round_machine_state state;
  zps_err_t code;                           /* once FAILED: why */
  uint32_t blame;                           /* server whose event failed the round, or ZPS_MACHINE_ALL */
  struct zps_round_machine_action *actions; /* of the latest step */
  uint32_t n_actions, cap_actions;
};

struct zps_round_machine_ops {
  const char *name;
  zps_err_t (*create)(const struct zps_round_machine_plan *plan, struct zps_round_machine **scheme_p) ZPS_MUSTCHECK;
  void (*destroy)(struct zps_round_machine *machine);
  void (*reset)(struct zps_round_machine *machine);
  void (*step)(struct zps_round_machine *machine, const struct zps_round_machine_event *event, uint64_t now_ns);
  /* Whether the round still needs this server: error texts name the servers that were silent. */
  bool (*needs)(const struct zps_round_machine *machine, uint32_t server);
};

extern const struct zps_round_machine_ops zps_served_machine, zps_peer_machine;

zps_err_t zps_round_machine_create(const struct zps_round_machine_ops *ops, const struct zps_round_machine_plan *plan,
                                   struct zps_round_machine **scheme_p) ZPS_MUSTCHECK;
void zps_round_machine_destroy(struct zps_round_machine *machine); /* NULL is allowed */
/* Back to IDLE, for another round. */
void zps_round_machine_reset(struct zps_round_machine *machine, const struct zps_round_machine_start *round);
/* The actions are `machine->actions[0 .. n_actions)`, to be carried out in order, valid until the next step. */
void zps_round_machine_step(struct zps_round_machine *machine, const struct zps_round_machine_event *event,
                            uint64_t now_ns);
bool zps_round_machine_needs(const struct zps_round_machine *machine, uint32_t server);
bool zps_round_machine_over(const struct zps_round_machine *machine); /* DONE or FAILED */
const char *zps_round_machine_state_name(enum zps_round_machine_state state);

/* For the machines of the two kinds. */
zps_err_t zps_round_machine_init(struct zps_round_machine *machine, const struct zps_round_machine_ops *ops,
                                 const struct zps_round_machine_plan *plan, uint32_t cap_actions) ZPS_MUSTCHECK;
void zps_round_machine_fini(struct zps_round_machine *machine);
void zps_round_machine_act(struct zps_round_machine *machine, enum zps_round_machine_action_type type, uint32_t arg);
/* The one place where a state changes. A change that the table of states does not know is a bug. */
void zps_round_machine_set_state(struct zps_round_machine *machine, enum zps_round_machine_state state,
                                 uint64_t now_ns);

#endif
