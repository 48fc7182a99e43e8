/* Shared by model*.c and predict.c: the terms that a prediction adds up. */
#ifndef ZPS_PLAN_MODEL_IMPL_H
#define ZPS_PLAN_MODEL_IMPL_H

#include "common/plan/model.h"

struct zps_plan_round {
  const struct zps_plan_input *in;
  struct zps_plan_cost *cost;
  double n, per_host, hosts; /* ranks, R but at most n, and hosts of that many */
  bool serving;              /* the next computing is a server's */
};

/* What the rank with most does in a phase that is one way: bytes of the other way are another rank's. */
enum zps_plan_part { ZPS_PLAN_BOTH_WAYS, ZPS_PLAN_SENDS, ZPS_PLAN_GETS };

/* One phase of a scheme between ranks. */
struct zps_plan_phase {
  double messages; /* one after another, of each rank */
  double out, in;  /* bytes of the rank with most */
  double mean;     /* bytes of a rank on average, out or in; 0: as the greater of both */
  double local;    /* share of them that stays in the host */
  enum zps_plan_part part;
};

void zps_plan_add_phase(struct zps_plan_round *round, const struct zps_plan_phase *phase);
#define zps_plan_phase(round, ...) zps_plan_add_phase(round, &(struct zps_plan_phase){__VA_ARGS__})
/* Latency of `messages` messages, one after another, of `bytes` each. */
void zps_plan_wait(struct zps_plan_round *round, const struct zps_plan_link *link, double messages, double bytes);
/* Latency of `steps` messages of `bytes` each; every message waits for the one before, and nothing is sent ahead. */
void zps_plan_steps(struct zps_plan_round *round, const struct zps_plan_link *link, double steps, double bytes);
void zps_plan_wire(struct zps_plan_round *round, double bytes, double bandwidth);
/* Seconds that one of a host's processes takes to hand `bytes` to the fabric or take them from it. */
double zps_plan_move_s(const struct zps_plan_round *round, double bytes);

/* Share of a rank's peers that are on its host. */
double zps_plan_local(const struct zps_plan_round *round);
/* Rows in the union of k ranks. */
double zps_plan_rows(const struct zps_plan_round *round, double k);
/* Rows of the densest of `parts` even parts in the union of k ranks. */
double zps_plan_hot_rows(const struct zps_plan_round *round, double k, double parts);
/* All values of `rows` rows. */
double zps_plan_dense_bytes(const struct zps_plan_round *round, double rows);
/* ceil(log2(n)). */
double zps_plan_log2(double n);

/* Computing at a rank, or at a server: this many nanoseconds of a core. */
void zps_plan_compute(struct zps_plan_round *round, double ns);
void zps_plan_encode(struct zps_plan_round *round, double rows);
void zps_plan_reduce(struct zps_plan_round *round, double rows);
void zps_plan_decode(struct zps_plan_round *round, double rows);
void zps_plan_add_dense(struct zps_plan_round *round, double rows);

/* An allgather of blocks, of which the greatest has `hot` bytes and all together `total`: by recursive doubling; or
 * as worker/schemes does it, which is straight to everybody, n - 1 messages, unless the papers' is meant. */
void zps_plan_doubling(struct zps_plan_round *round, double hot, double total);
void zps_plan_allgather(struct zps_plan_round *round, double hot, double total);
/* The second half of a split: as an allgather, but by doubling, as worker/schemes/gather_ranges.h chooses it, where no
 * result can have more than ZPS_PLAN_DOUBLING_BYTES. */
void zps_plan_gather_ranges(struct zps_plan_round *round, double hot, double total);
/* Dense blocks travel in pieces, so many that each is a megabyte: as many more messages. */
void zps_plan_lanes(struct zps_plan_round *round);

void zps_plan_served(struct zps_plan_round *round, enum zps_plan_scheme scheme);
void zps_plan_dense(struct zps_plan_round *round, enum zps_plan_scheme scheme);
void zps_plan_sparse(struct zps_plan_round *round, enum zps_plan_scheme scheme);
void zps_plan_topk(struct zps_plan_round *round, enum zps_plan_scheme scheme);

#endif
