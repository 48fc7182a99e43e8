/*
 * One worker's rounds over fake servers. A server here adds what the test calls the other ranks' share, row by row, to
 * the worker's push, and answers with the sums: by itself (`answers`), or when the test says so.
 *
 * Gradients are of floats, ROWS x WIDTH at most.
 */
#ifndef ZPS_TESTS_WORKER_SERVED_SERVED_RIG_H
#define ZPS_TESTS_WORKER_SERVED_SERVED_RIG_H

#include "tests/unit/worker/round/worker_rig.h"
#include "worker/served/served.h"

#include "tests/unit/gpu/gpu_rig.h"

enum { SERVED_WIDTH = 2, SERVED_ROWS_MAX = 1 << 18, SERVED_BEGUN_MAX = 16 };

struct served_config {
  struct rig_config worker; /* n_servers: 0 means 1 */
  uint64_t rows;
  uint32_t n_parts;
  enum zps_codec_policy codec; /* 0: auto */
  const char *scheme;          /* NULL: balanced */
  const char *device; /* library of the device whose memory gradients and results are in; NULL: in host memory */
};

/* The things that a server does with a round by itself. */
struct served_server {
  struct served_rig *rig;
  bool answers;     /* with all sums, when all of its partitions have come; to an ABORT with one of its own */
  bool reads_only;  /* sums are for the worker to read, also small ones */
  bool joins;       /* small sums travel joined */
  bool takes_gifts; /* takes gifts like pushes */
  uint64_t n_rows;  /* rows that came with `step` */
  uint64_t step;    /* the step at hand */
  uint32_t n_came;  /* partitions of it */
  uint32_t n_back;  /* times that an earlier step came behind a later one */
};

struct served_rig {
  struct worker_rig worker;
  struct zps_round_tensor tensor;
  uint32_t owners[RIG_PARTS_MAX];
  struct served_server servers[RIG_FAKES_MAX];
  struct fake *at[RIG_FAKES_MAX]; /* the fake of server `s`: worker.servers[s], unless the test says otherwise */
  float in[SERVED_ROWS_MAX * SERVED_WIDTH], out[SERVED_ROWS_MAX * SERVED_WIDTH];
  float others[SERVED_ROWS_MAX * SERVED_WIDTH]; /* their share */
  float sum[SERVED_ROWS_MAX * SERVED_WIDTH];    /* of the pushes that came, and of the others' share */
  bool has_row[SERVED_ROWS_MAX];
  struct rig_request request;            /* for tests of one round */
  struct gpu_rig gpu;                    /* of rounds on a device */
  void *on_device[2 * SERVED_BEGUN_MAX]; /* gradients and results */
  unsigned n_on_device;
};

void served_open(struct served_rig *rig, const struct served_config *config);
void served_close(struct served_rig *rig);
/* Every `every`-th row of the gradient, and of the others' share, is not zero; those of the others are shifted by one.
 */
void served_draw(struct served_rig *rig, unsigned every);
/* A dense gradient, and a dense result in request->out.values; NULL: in rig->out. On a device, where at most
 * SERVED_BEGUN_MAX rounds are begun: new memory for each. */
void served_begin(struct served_rig *rig, struct rig_request *request, uint64_t step, uint64_t timeout_ms);
/* rig->out is the gradient and the others' share; on a device, so is the result of the round that was begun last. */
void served_check(struct served_rig *rig);

/* By hand: waits until server `s` has got all of its partitions. */
void served_take(struct served_rig *rig, uint32_t s, uint64_t step);
/* All its sums. */
void served_answer(struct served_rig *rig, uint32_t s, uint64_t step);
/* The sum of one partition. */
void served_answer_part(struct served_rig *rig, uint32_t s, uint64_t step, uint32_t p);
/* A RESULT with this slice alone. */
void served_say(struct served_rig *rig, uint32_t s, uint64_t step, const struct zps_slice *slice);
/* Some partition of the server's; the n-th. */
uint32_t served_part(const struct served_rig *rig, uint32_t s, uint32_t n);

#endif
