#include "server/shard/flight.h"

#include "common/base/clock.h"
#include "server/shard/job.h"
#include "server/shard/machine.h"
#include "server/shard/pull.h"
#include "server/shard/round.h"
#include "server/shard/tensor.h"

static bool has_announced(const struct zps_shard_machine *machine, uint32_t rank) {
  for (uint32_t part = 0; part < machine->n_parts; part++)
    if (!zps_shard_machine_has(machine, rank, part)) return false;
  return true;
}

static bool has_pull(const struct zps_shard_round *round, uint32_t rank) {
  for (const struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
    if (pull->rank == rank) return true;
  return false;
}

static bool waits_for(const struct zps_shard_round *round, enum zps_flight_wait wait, uint32_t rank) {
  const struct zps_shard_machine *const machine = round->machine;
  if (zps_shard_machine_rank_gone(machine, rank)) return false;
  switch (wait) {
    case ZPS_FLIGHT_PUSH:
      return !has_announced(machine, rank);
    case ZPS_FLIGHT_BYTES:
      return machine->rank_here[rank] < machine->n_parts;
    case ZPS_FLIGHT_PULL:
      return zps_shard_machine_reads(machine, rank) || has_pull(round, rank);
    case ZPS_FLIGHT_SUM:
      break;
  }
  return false;
}

static void find_ranks(const struct zps_shard_round *round, enum zps_flight_wait wait,
                       struct zps_round_flight *flight) {
  flight->wait = wait;
  flight->n_ranks = 0;
  for (uint32_t rank = 0; rank < flight->world; rank++) {
    if (!waits_for(round, wait, rank)) continue;
    if (flight->n_ranks < ZPS_FLIGHT_RANKS_MAX) flight->ranks[flight->n_ranks] = rank;
    flight->n_ranks++;
  }
}

bool zps_shard_round_flight(const struct zps_shard_round *round, uint64_t now_ns, struct zps_round_flight *flight_p) {
  const struct zps_shard_machine *const machine = round->machine;
  const struct zps_tensor *const tensor = round->tensor;
  if (zps_shard_machine_over(machine) || zps_shard_machine_only_keeps(machine)) return false;
  *flight_p = (struct zps_round_flight){.job_id = tensor->job->id,
                                        .step = machine->config.step,
                                        .tensor = tensor->id,
                                        .world = machine->world,
                                        .name = tensor->name,
                                        .age_ns = now_ns > round->opened_ns ? now_ns - round->opened_ns : 0,
                                        .left_ns = ZPS_NEVER};
  if (machine->deadline_ns != ZPS_NEVER)
    flight_p->left_ns = machine->deadline_ns > now_ns ? machine->deadline_ns - now_ns : 0;
  if (machine->state == ZPS_SHARD_REDUCING) {
    find_ranks(round, ZPS_FLIGHT_SUM, flight_p);
  } else if (machine->state == ZPS_SHARD_PUBLISHED) {
    find_ranks(round, ZPS_FLIGHT_PULL, flight_p);
  } else {
    find_ranks(round, ZPS_FLIGHT_PUSH, flight_p);
    if (flight_p->n_ranks == 0) find_ranks(round, ZPS_FLIGHT_BYTES, flight_p);
  }
  return true;
}
