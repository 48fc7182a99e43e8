/* The library's tests: real ranks (processes) against real daemons. */
#ifndef ZPS_TESTS_API_TEST_H
#define ZPS_TESTS_API_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

#include <zenps/zenps.h>

/* ------------------------------------------------------------ daemons and ranks (api_cluster.c) */

enum { SERVERS_MAX = 4, RANKS_MAX = 16, WORDS = 64, MOVES = WORDS /* one more word: how often ranks have gone on */ };
/* "At once", for a busy machine: no other deadline of a rank, of 240 s, can end the wait so early. */
enum { SOON_MS = 180000 };

struct cluster {
  pid_t coordinator, servers[SERVERS_MAX];
  unsigned n_servers;
  char address[64]; /* of the coordinator */
};

/* Coordinator and servers, each a process. */
void cluster_start(struct cluster *cluster, unsigned n_servers);
/* Server number `i` of them, which has ended, is started again, as another process of the same name. */
void cluster_start_server(struct cluster *cluster, unsigned i);
/* With settings for them, "NAME=VALUE" each, NULL at the end. */
void cluster_start_with(struct cluster *cluster, unsigned n_servers, const char *const *settings);
/* And with further ones for one of the servers alone. */
void cluster_start_but(struct cluster *cluster, unsigned n_servers, const char *const *settings, unsigned server,
                       const char *const *others);
/* One process for both. */
void cluster_start_one(struct cluster *cluster, const char *const *settings);
void cluster_stop(struct cluster *cluster);
/* The status and, as JSON, the answer of zenpsctl COMMAND. */
int cluster_ask(const char *address, const char *command, char *text, size_t size);
/* In a rank's process: stops another one, and waits until no thread of it runs. */
void process_stop(pid_t pid);
/* The cluster shared by the tests that leave it as it was; it is started on first use. */
struct cluster *cluster_shared(void);
void cluster_shared_stop(void);

/* The state of a rank's process. */
struct rank {
  const struct cluster *cluster;
  int rank, world;
  char job[64];
  uint64_t join_timeout_ms, round_timeout_ms;
  unsigned turn;      /* of ranks_run() */
  atomic_uint *words; /* shared by all ranks of the run, zero at its start */
  const void *arg;
  zenps_job_t *zenps; /* after rank_open() */
};

typedef void (*rank_fn)(struct rank *rank);

/* Runs `fn` in `world` processes. The test fails unless every one ends with status 0, or is named in `killed` (a bit
 * per rank) and ends by SIGKILL. Some rounds or joins are to miss a short deadline of `fn`. On a busy machine others
 * miss it, too. Then all ranks run anew with 4 times the time, and once more with 16 times. */
void ranks_run(const struct cluster *cluster, int world, rank_fn fn, const void *arg, unsigned killed);
/* Starts one more job and returns at once; ranks_wait() does the rest. */
struct ranks {
  pid_t pids[RANKS_MAX];
  int world;
  atomic_uint *words;
};
void ranks_start(struct ranks *ranks, const struct cluster *cluster, int world, rank_fn fn, const void *arg);
void ranks_wait(struct ranks *ranks, unsigned killed);
/* The shared word comes to this value before all ranks have stood still for long. In the test's process. */
bool ranks_get_to(const struct ranks *ranks, unsigned word, unsigned value);
/* The process, a child, ends before long, with status 0. */
bool process_ends_well(pid_t pid);

/* In a rank's process: prints the fault and ends the process. */
#define CHECK(what)                                    \
  do {                                                 \
    if (!(what)) rank_fail(__FILE__, __LINE__, #what); \
  } while (0)
#define CHECK_STATUS(call, wanted) rank_check_status(__FILE__, __LINE__, #call, (call), (wanted))
#define CHECK_OK(call) CHECK_STATUS(call, ZENPS_OK)
#define CHECK_SAYS(text, part) rank_check_says(__FILE__, __LINE__, (text), (part))
void rank_fail(const char *file, int line, const char *what) __attribute__((noreturn));
void rank_check_status(const char *file, int line, const char *call, zenps_status_t got, zenps_status_t wanted);
void rank_check_says(const char *file, int line, const char *text, const char *part);
void rank_options(const struct rank *rank, zenps_options_t *options);
void rank_open(struct rank *rank);
void rank_close(struct rank *rank);
/* This rank goes on. A signal ends each rank after five minutes in which neither it nor, where it waits for a shared
 * word, another one does. */
void rank_moves(const struct rank *rank);
/* Waits until the shared word has at least this value. */
void rank_await(const struct rank *rank, unsigned word, unsigned value);
uint64_t now_ms(void);

/* ------------------------------------------------------------ gradients (api_grads.c) */

struct spec {
  uint64_t rows;
  uint32_t width;
  zenps_dtype_t dtype;
  bool rows_in;     /* COO, unsorted */
  bool rows_out;    /* COO */
  unsigned repeats; /* COO: times a row may come */
  double density;
  unsigned empty;  /* ranks r with r % empty != 0 have nothing; 0: all have */
  bool odd_values; /* -0.0, NaN, Inf among them */
  bool few_values; /* -1, 0 and 1: rows whose greatest or least values are zero, and are none of any rank's */
  bool in_place;
  bool own_arrays; /* COO out: the caller's */
  zenps_tensor_options_t options;
};

size_t spec_row_bytes(const struct spec *spec);
/* A gradient that depends on its arguments alone. The caller frees its arrays. */
void grad_make(const struct spec *spec, int rank, uint64_t step, zenps_grad_t *grad);
void grad_free(zenps_grad_t *grad);
void out_make(const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out);
void out_free(const struct spec *spec, const zenps_grad_t *in, zenps_grad_t *out);
/* Compares a result with the sum of all ranks' gradients, added in rank order: bit for bit. */
void out_check(const struct spec *spec, int world, uint64_t step, const zenps_grad_t *out);
/* One step, from gradient to checked result. */
void step_run(zenps_tensor_t *tensor, const struct spec *spec, const struct rank *rank, uint64_t step);
zenps_tensor_t *tensor_open(const struct rank *rank, const char *name, const struct spec *spec);
/* By this scheme, without the spec's options; NULL: as tensor_open_served(). */
zenps_tensor_t *tensor_open_by(const struct rank *rank, const char *scheme, const char *name, const struct spec *spec);
/* Balanced, whatever the environment says, with the spec's `staleness` alone of its options. */
zenps_tensor_t *tensor_open_served(const struct rank *rank, const char *name, const struct spec *spec);

/* ------------------------------------------------------------ one operation in flight (api_flight.c) */

/* The request goes well, or fails so; and is freed. */
void request_wait_ok(zenps_request_t *request);
void request_expect(zenps_request_t *request, zenps_status_t status, const char *text);

extern const struct spec plain_spec;
/* Whether tensors are summed between ranks here, by the environment. */
bool between_workers(void);

struct flight {
  zenps_tensor_t *tensor;
  zenps_grad_t in, out;
  zenps_request_t *request;
};

/* Joins, opens tensor "t", and has step 1 behind it. */
void flight_open(struct flight *flight, const struct spec *spec, struct rank *rank);
void flight_start(struct flight *flight, const struct spec *spec, const struct rank *rank, uint64_t step);
void flight_end(struct flight *flight, const struct spec *spec);
/* The request fails within the time, and its error names job, tensor (which must be "t") and step. */
const zenps_error_t *flight_expect_error(const struct flight *flight, const struct rank *rank, zenps_status_t status,
                                         uint64_t step, int within_ms);
/* Expects the error of absent ranks: servers say MISSING, ranks among themselves (`between`) TIMEOUT; where hosts push
 * to servers, the first of the two errors counts. */
const zenps_error_t *flight_expect_absent(const struct flight *flight, const struct rank *rank, bool between,
                                          uint64_t step, int within_ms);

/* ------------------------------------------------------------ servers that fall silent (api_silence.c) */

/* Of jobs with a tensor of one partition, which the job's first server has. In the first step rank 0 stops this server
 * while ranks read a sum from it. */
enum { SILENCE_DEAD_MS = 2000 };
/* For cluster_start_with(). */
extern const char *const silence_settings[];
/* For the processes that are started next: the provider, with further rules of its faults. */
void silence_faults(const char *rules);
void silence_no_faults(void);
/* For the log, of the level "trace"; `ctx` is the rank. */
void silence_log(void *ctx, int level, const char *component, const char *text);
/* It goes on. */
void silence_end(const struct rank *rank);

/* ------------------------------------------------------------ the tests */

extern const struct CMUnitTest api_round_tests[], api_request_tests[], api_failure_tests[], api_death_tests[],
    api_recovery_tests[], api_automatic_tests[], api_residual_tests[], api_operation_tests[], api_tensor_tests[],
    api_result_tests[], api_group_tests[], api_operation_trouble_tests[], api_gather_tests[], api_newest_tests[],
    api_part_tests[], api_stuck_tests[], api_loss_tests[], api_unseen_tests[], api_elastic_tests[], api_drain_tests[],
    api_cut_tests[], api_silent_tests[];
extern const size_t n_api_round_tests, n_api_request_tests, n_api_failure_tests, n_api_death_tests,
    n_api_recovery_tests, n_api_automatic_tests, n_api_residual_tests, n_api_operation_tests, n_api_tensor_tests,
    n_api_result_tests, n_api_group_tests, n_api_operation_trouble_tests, n_api_gather_tests, n_api_newest_tests,
    n_api_part_tests, n_api_stuck_tests, n_api_loss_tests, n_api_unseen_tests, n_api_elastic_tests, n_api_drain_tests,
    n_api_cut_tests, n_api_silent_tests;

#endif
