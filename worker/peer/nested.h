/*
 * A round over servers within one between ranks, as a service: the API, which has tensors and requests, carries it out,
 * and gives the service to the tensor's scheme. Engine thread.
 */
#ifndef ZPS_WORKER_PEER_NESTED_H
#define ZPS_WORKER_PEER_NESTED_H

#include "common/base/err.h"
#include "worker/round/round.h"
#include "zenps/zenps.h"

struct zps_nested_round;

struct zps_nested_service {
  uint32_t tensor; /* number of the inner tensor */
  /* Begins a round: inner->step, seen_to, in, out, timeout_ms, over are set. Not ZPS_OK: over() is not called. */
  zps_err_t (*begin)(struct zps_nested_service *service, struct zps_nested_round *inner) ZPS_MUSTCHECK;
  /* Whether `round`, which has begun here, is the one. */
  bool (*is_round)(const struct zps_nested_round *inner, const struct zps_round *round);
  /* Where it has not begun yet: it will not. over() follows all the same. */
  void (*cancel)(struct zps_nested_round *inner);
  /* Frees what begin() has made; after over(), or a begin() that failed. */
  void (*end)(struct zps_nested_round *inner);
};

struct zps_nested_round {
  uint64_t step, timeout_ms;
  uint64_t seen_to;       /* of the round that it is within (worker/round/round.h) */
  const zenps_grad_t *in; /* borrowed until over() */
  zenps_grad_t *out;      /* rows, which are the service's until end() */
  /* It is over: `round` lives on until this returns. */
  void (*over)(struct zps_nested_round *inner, const struct zps_round *round, const zenps_error_t *error);
  void *handle; /* the service's; NULL: nothing was begun */
};

#endif
