/*
 * How one rank takes part in one round: a pure state machine, step(state, event, now) -> actions.
 *
 * It knows no network, no memory and no clock: the driver (round.c) reports what happened as events and carries out the
 * actions that come back. Events may come in any order that a network, a pool of threads and a hostile peer can
 * produce; what cannot be right fails the round. Whatever happens, COMPLETE comes exactly once, and nothing after it.
 *
 *     IDLE > ENCODING > PUSHING > WAITING > PULLING > DONE | FAILED
 *     IDLE > EXCHANGING > DONE | FAILED
 *
 * The latter between workers (between.c): there "servers" are ranks, RETIRE and ABORT go to all of them, and DECODED
 * says that the whole program was carried out.
 */
#ifndef ZPS_WORKER_SCHEMES_SCHEME_H
#define ZPS_WORKER_SCHEMES_SCHEME_H

#include <stdint.h>

#include "common/base/err.h"

#define ZPS_SCHEME_ALL UINT32_MAX /* in place of a partition: all of them; of a server: none, or all */

enum zps_scheme_state {
  ZPS_SCHEME_IDLE,
  ZPS_SCHEME_ENCODING, /* nothing was announced yet */
  ZPS_SCHEME_PUSHING,  /* some partitions were announced */
  ZPS_SCHEME_WAITING,  /* all were, and no result came yet */
  ZPS_SCHEME_PULLING,
  ZPS_SCHEME_EXCHANGING, /* between workers: the program is being carried out */
  ZPS_SCHEME_DONE,
  ZPS_SCHEME_FAILED,
};

enum zps_scheme_event_type {
  ZPS_SCHEME_START,       /* the gradient is being scanned */
  ZPS_SCHEME_SCANNED,     /* the rows of scan `partition` of its scans are counted per partition */
  ZPS_SCHEME_WRITTEN,     /* `partition` is encoded */
  ZPS_SCHEME_RESULT,      /* the owner announced the sum of `partition` */
  ZPS_SCHEME_LANDED,      /* that sum is in our memory */
  ZPS_SCHEME_CLEARED,     /* the dense result is all zeros */
  ZPS_SCHEME_DECODED,     /* `partition` (or ALL) is in the trainer's result */
  ZPS_SCHEME_ABORTED,     /* `server` gave the round up, with `code` */
  ZPS_SCHEME_SERVER_LOST, /* `server` is gone */
  ZPS_SCHEME_FAIL,        /* it cannot go on here, with `code`: an error, a cancel, a failed job */
  ZPS_SCHEME_TICK,        /* time has passed */
};

struct zps_scheme_event {
  enum zps_scheme_event_type type;
  uint32_t partition;
  uint32_t server;
  zps_err_t code;
};

enum zps_scheme_action_type {
  ZPS_SCHEME_DO_WRITE,    /* encode every partition of scan `arg` */
  ZPS_SCHEME_DO_ANNOUNCE, /* tell the owner of `arg` (a partition) that it may read our contribution */
  ZPS_SCHEME_DO_READ,     /* fetch the sum of `arg` */
  ZPS_SCHEME_DO_CLEAR,    /* zero the dense result; of one stripe */
  ZPS_SCHEME_DO_DECODE,   /* put the sum of `arg` (or ALL) into the result */
  ZPS_SCHEME_DO_STRIPE,   /* put the sums of stripe `arg` into the result, and zeros where there are none; of a result
                             that is rows: in order, for when all are */
  ZPS_SCHEME_DO_RETIRE,   /* tell server `arg` that we have read all we need of it */
  ZPS_SCHEME_DO_ABORT,    /* tell server `arg` that the round failed here */
  ZPS_SCHEME_DO_COMPLETE, /* tell the trainer: `zps_scheme.code` */
};

struct zps_scheme_action {
  enum zps_scheme_action_type type;
  uint32_t arg;
};

/* What does not change from round to round. `owners` (n_parts of them, each < n_servers) is borrowed. */
struct zps_scheme_plan {
  uint32_t n_parts, n_servers;
  uint32_t n_stripes; /* each of as many consecutive partitions: parts of the result that are decoded at once */
  const uint32_t *owners;
  const char *tensor; /* for the log, borrowed */
};

struct zps_scheme_round {
  uint64_t step;
  uint64_t deadline_ns;
  uint32_t n_scans; /* 1, or n_stripes: after so many steps, in order, all partitions are scanned */
  bool is_apart;    /* the result's memory is not the gradient's: it may be written while that is still read */
  bool whole;       /* decode all partitions at once (DECODE ALL) instead of clearing the result and then one by one */
};

struct zps_scheme {
  const struct zps_scheme_ops *ops;
  struct zps_scheme_plan plan;
  struct zps_scheme_round round;
  enum zps_scheme_state state;
  zps_err_t code;                    /* once FAILED: why */
  uint32_t blame;                    /* server whose event failed the round, or ZPS_SCHEME_ALL */
  struct zps_scheme_action *actions; /* of the latest step */
  uint32_t n_actions, cap_actions;
};

struct zps_scheme_ops {
  const char *name;
  zps_err_t (*create)(const struct zps_scheme_plan *plan, struct zps_scheme **scheme_p) ZPS_MUSTCHECK;
  void (*destroy)(struct zps_scheme *scheme);
  void (*reset)(struct zps_scheme *scheme);
  void (*step)(struct zps_scheme *scheme, const struct zps_scheme_event *event, uint64_t now_ns);
  /* Does the round still need this server? For error texts: who was silent. */
  bool (*needs)(const struct zps_scheme *scheme, uint32_t server);
};

extern const struct zps_scheme_ops zps_scheme_balanced, zps_scheme_between;

zps_err_t zps_scheme_create(const struct zps_scheme_ops *ops, const struct zps_scheme_plan *plan,
                            struct zps_scheme **scheme_p) ZPS_MUSTCHECK;
void zps_scheme_destroy(struct zps_scheme *scheme); /* NULL is allowed */
/* Back to IDLE, for another round. */
void zps_scheme_reset(struct zps_scheme *scheme, const struct zps_scheme_round *round);
/* The actions are `scheme->actions[0 .. n_actions)`, to be carried out in order, valid until the next step. */
void zps_scheme_step(struct zps_scheme *scheme, const struct zps_scheme_event *event, uint64_t now_ns);
bool zps_scheme_needs(const struct zps_scheme *scheme, uint32_t server);
bool zps_scheme_over(const struct zps_scheme *scheme); /* DONE or FAILED */
const char *zps_scheme_state_name(enum zps_scheme_state state);
const char *zps_scheme_event_name(enum zps_scheme_event_type type);

/* For the schemes. */
zps_err_t zps_scheme_init(struct zps_scheme *scheme, const struct zps_scheme_ops *ops,
                          const struct zps_scheme_plan *plan, uint32_t cap_actions) ZPS_MUSTCHECK;
void zps_scheme_fini(struct zps_scheme *scheme);
void zps_scheme_act(struct zps_scheme *scheme, enum zps_scheme_action_type type, uint32_t arg);
/* The one place where a state changes. A change that the table of states does not know is a bug. */
void zps_scheme_set_state(struct zps_scheme *scheme, enum zps_scheme_state state, uint64_t now_ns);

#endif
