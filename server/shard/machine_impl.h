/* Shared by the files of the machine: machine.c, and machine_quorum.c, which has the rules of rounds with a quorum. */
#ifndef ZPS_SERVER_SHARD_MACHINE_IMPL_H
#define ZPS_SERVER_SHARD_MACHINE_IMPL_H

#include "server/shard/machine.h"

enum slot { SLOT_NONE, SLOT_ANNOUNCED, SLOT_HERE, SLOT_LATE };
enum rank_flag {
  RANK_PUSHED = 1,
  RANK_DONE = 2,
  RANK_GONE = 4,
  RANK_IDLE = 8,
  RANK_APART = 16,
  RANK_TAKEN = 32,
  RANK_PULLED = 64,
  RANK_LATE = 128 /* the sum is made without it; with TAKEN: it was told all, or gives only */
};

static inline uint8_t *zps_machine_slot(const struct zps_shard_machine *machine, uint32_t part, uint32_t rank) {
  return &machine->slots[(size_t)part * machine->world + rank];
}

/* machine.c */

/* The rank's slots of this kind. */
uint32_t zps_machine_count(const struct zps_shard_machine *machine, uint32_t rank, enum slot slot);
void zps_machine_set_state(struct zps_shard_machine *machine, enum zps_shard_machine_state state);
void zps_machine_act(struct zps_shard_machine_actions *actions, enum zps_shard_machine_action_type type, uint32_t rank,
                     uint32_t part);
/* Ends the round for all ranks. The caller adds to the text. */
struct zps_frame_abort *zps_machine_abort(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions,
                                          zps_err_t code);
/* Ends it for the rank alone. */
struct zps_frame_abort *zps_machine_refuse(struct zps_shard_machine *machine, uint32_t rank,
                                           struct zps_shard_machine_actions *actions, zps_err_t code);
void zps_machine_name(struct zps_frame_abort *abort, uint32_t rank);
/* Retires the round if no rank needs it. */
void zps_machine_retire(struct zps_shard_machine *machine, struct zps_shard_machine_actions *actions);

/* machine_quorum.c */

/* Closes the round if it has a quorum, and nothing is to be waited for. */
void zps_machine_close_if_due(struct zps_shard_machine *machine, uint64_t now_ns,
                              struct zps_shard_machine_actions *actions);
/* The rank gives up or is gone. False: the round cannot close without it. */
bool zps_machine_leave_out(struct zps_shard_machine *machine, uint32_t rank, enum rank_flag why, uint64_t now_ns,
                           struct zps_shard_machine_actions *actions);
/* The events DECIDED and TOLD. */
void zps_machine_decided(struct zps_shard_machine *machine, const struct zps_shard_machine_event *event,
                         struct zps_shard_machine_actions *actions);
void zps_machine_notified(struct zps_shard_machine *machine, uint32_t rank, struct zps_shard_machine_actions *actions);

#endif
