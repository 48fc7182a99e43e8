/* The declarations that the simulator's files share: a rank's state within a round, the messages under way, and servers
 * between hosts. */
#ifndef ZPS_TESTS_SIM_IMPL_H
#define ZPS_TESTS_SIM_IMPL_H

#include "common/base/rng.h"
#include "tests/support/sim.h"
#include "worker/schemes/run.h"

/* A stream that is there. */
struct sim_stream {
  void *bytes; /* NULL: those of another one */
  struct zps_compute_out out;
  struct zps_slice_view view;
};

struct sim_message {
  uint32_t from, to, tag; /* positions */
  void *bytes;
  struct zps_compute_out out;
};

struct sim_rank {
  struct zps_peer_plan plan;
  struct zps_compute compute;
  struct zps_own *own;
  void *state;
  uint64_t n_built; /* rounds */
  struct zps_program program;
  struct zps_run run;
  struct sim_stream *streams;
  uint32_t n_streams;
  struct sim_message *messages; /* announced, or not yet asked for */
  uint32_t n_messages;
  uint32_t *due;
  uint32_t n_due;
  uint32_t serving; /* the SERVE that it waits in; UINT32_MAX: none */
  char *result;
  bool *covered;
  uint64_t n_rows;
  int64_t *contributed; /* rows */
  uint32_t n_contributed;
};

/* The messages of all ranks that have been sent and not yet been announced. */
struct sim_network {
  struct zps_rng rng;
  struct sim_message *messages;
  uint32_t n;
  struct zps_compute_scratch *scratch;
};

/* A stream that is there, as the compute code takes it. */
static inline struct zps_compute_in sim_rank_in(const struct sim_rank *rank, uint32_t stream) {
  return (struct zps_compute_in){rank->program.streams[stream].lo, rank->program.streams[stream].hi,
                                 rank->streams[stream].view};
}

/* `instr` is a SERVE: the rank pushes. The last one to do so is when sums are made, in order of positions, and pulled
 * by all of them. */
void sim_serve(struct sim *sim, struct sim_network *network, struct sim_rank *rank, uint32_t instr);

#endif
