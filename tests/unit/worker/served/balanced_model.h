/* The knowledge of a driver of the balanced machine about a small round: the events that may come next, and whether the
 * machine's actions are right. */
#ifndef ZPS_TESTS_WORKER_SERVED_BALANCED_MODEL_H
#define ZPS_TESTS_WORKER_SERVED_BALANCED_MODEL_H

#include "worker/round/machine.h"

enum { N_PARTS = 3, N_SERVERS = 3, MAX_EVENTS = 16 };
#define DEADLINE 1000u

/* Server 2 owns nothing, and must never hear of the round. */
extern const uint32_t model_owners[N_PARTS];
/* When server 0 is lost. */
extern const uint32_t model_other_owners[N_PARTS];
extern const struct zps_round_machine_plan model_plan, model_striped_plan; /* striped: each partition is a stripe */

struct kind {
  const struct zps_round_machine_plan *plan;
  uint32_t n_scans;
  bool whole, apart;
};

/* The events that have happened, and the actions of the machine so far. */
struct model {
  struct zps_round_machine *machine;
  struct kind kind;
  uint32_t n_parts, n_scanned;
  bool whole;
  unsigned progress[N_PARTS]; /* 0 encoding, 1 written, 2 result, 3 landed, 4 decoded */
  unsigned writes, completes;
  bool announce[N_PARTS], read[N_PARTS], decode[N_PARTS], clear, cleared, decode_all, decoded_all;
  unsigned retired[N_SERVERS], aborted[N_SERVERS];
  const uint32_t *owners;
  bool again[N_PARTS], forgotten[N_PARTS]; /* since a remap: the owner is to announce what is here; it may be got anew */
};

void model_begin(struct model *model, struct zps_round_machine *machine, const struct kind *kind);
/* Server 0 is lost, and the others have forgotten the round. */
void model_remap(struct model *model);
/* An event that a correct driver or peer may produce. */
void model_feed(struct model *model, struct zps_round_machine_event event, uint64_t now);
/* Fails the test if an action of the last step is wrong at this point. */
void model_check_actions(struct model *model);
/* The events that a correct driver and correct peers can produce next. */
unsigned model_enabled(const struct model *model, struct zps_round_machine_event *events);

#endif
