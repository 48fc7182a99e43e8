/*
 * Reports of what this rank's rounds have cost, for the coordinator. Rounds of every scheme are reported, since those
 * of most schemes go past the servers.
 *
 * Each tensor counts its rounds as they end. Counters that have grown are sent with a heartbeat, at most every
 * `telemetry_ms` of the options, and once when the rank leaves (`job.stats`, proto/PROTOCOL.md). A first error is sent
 * at once.
 *
 * Servers know nothing of rounds between ranks. So a rank reports its oldest ones itself, with the ranks that they wait
 * for, at each heartbeat from the first second of their age on. A job whose rounds are shorter sends none.
 */
#ifndef ZPS_WORKER_API_TELEMETRY_H
#define ZPS_WORKER_API_TELEMETRY_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/load.h"
#include "common/base/tally.h"
#include "common/session/engine.h"
#include "proto/control_stats.h"
#include "zenps/zenps.h"

struct zenps_job;
struct zenps_tensor;

/* Of a tensor; guarded by the job's lock. */
struct zps_tensor_tally {
  struct zps_tally now, told; /* so far; and as the coordinator knows them */
  uint64_t since_ns;          /* when the first round began; 0: there was none */
};

/* Of a job. */
struct zps_telemetry {
  pthread_mutex_t lock; /* one report at a time; taken before the job's lock */
  atomic_bool on;       /* the job is open, and the options want reports */
  uint64_t told_ns;     /* when the last report was made */
  struct zps_load_probe probe;
  /* Guarded by the job's lock. */
  struct zps_load load; /* of the last report */
  struct zps_command look;
  bool is_looking; /* the engine has `look` */
  uint32_t n_rounds;
  struct zps_rank_round rounds[ZPS_RANK_ROUNDS_MAX]; /* old rounds between ranks, at the last look */
  bool has_told_rounds;                              /* the last report had some */
};

void zps_telemetry_init(struct zps_telemetry *telemetry);
void zps_telemetry_fini(struct zps_telemetry *telemetry);
/* The job is open: from now on reports can be sent. */
void zps_telemetry_start(struct zenps_job *job);
/* Under the job's lock: a round of the tensor is over. Where the tensor's scheme is auto, the trainer's tensor and the
 * one that the step ran as both count it. */
void zps_telemetry_round(struct zenps_tensor *tensor, uint64_t step, const zenps_request_stats_t *stats, bool ok);
/* On the control thread, ahead of a heartbeat: reports, if it is time. */
void zps_telemetry_beat(struct zenps_job *job);
/* Under the job's lock: a first error stands. The coordinator is told at once, since the trainer may end without a
 * close. */
void zps_telemetry_failed(struct zenps_job *job);
/* The last report, ahead of leaving. */
void zps_telemetry_end(struct zenps_job *job);

#endif
