/*
 * The common part of a tensor's rounds between ranks: their scheme, the ranks that take part, and the scheme's state
 * from round to round.
 */
#ifndef ZPS_WORKER_PEER_TENSOR_H
#define ZPS_WORKER_PEER_TENSOR_H

#include "proto/control_scheme.h"
#include "worker/schemes/peer_scheme.h"

struct zps_nested_service;
struct zps_peer_round;

struct zps_peer_tensor {
  const struct zps_peer_scheme *scheme;
  struct zps_peer_plan plan;
  uint32_t *hosts, *racks;            /* per position of the plan */
  uint32_t *ranks;                    /* per position of the plan, of a group: numbers in the job */
  bool *near;                         /* per rank, where there are any (zps_peer_plan) */
  char name[ZPS_SCHEME_NAME_MAX + 1]; /* with that of a nested one: "hierarchical:balanced" */
  /* Where masters of hosts push for the hosts' ranks. */
  uint32_t *masters, n_masters;     /* ranks, ascending */
  struct zps_nested_service *inner; /* carries out their rounds over servers; NULL on other ranks */

  /* Engine thread. */
  void *state;
  uint64_t n_begun;               /* rounds */
  struct zps_peer_round *current; /* stateful: has begun and is not over; */
  struct zps_peer_round *queued;  /* those wait for their turn */
};

#endif
