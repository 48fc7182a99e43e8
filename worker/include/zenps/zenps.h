/*
 * zenps: sparse gradient synchronisation for data-parallel training.
 *
 * A trainer, one process a rank, started by zenpsrun, torchrun, mpirun or srun:
 *
 *     zenps_job_t *job;
 *     zenps_tensor_t *table;
 *     if (zenps_open(NULL, &job) != ZENPS_OK) return fail(zenps_last_error()->text);
 *     if (zenps_tensor_open(job, "embedding", rows, width, ZENPS_F32, NULL, &table) != ZENPS_OK)
 *       return fail(zenps_last_error()->text);
 *     for (uint64_t step = 0; step < steps; step++) {
 *       zenps_request_t *request;
 *       zenps_grad_t in, out;
 *       ZENPS_GRAD_INIT(&in);
 *       ZENPS_GRAD_INIT(&out);
 *       in.layout = out.layout = ZENPS_ROWS;
 *       in.nnz = backward(&in.row_ids, &in.values);
 *       if (zenps_allreduce(table, step, &in, &out, &request) != ZENPS_OK) return fail(zenps_last_error()->text);
 *       if (zenps_wait(request, -1) != ZENPS_OK) return fail(zenps_request_error(request)->text);
 *       update(out.nnz, out.row_ids, out.values);
 *       zenps_request_free(request);
 *     }
 *     zenps_close(job);
 *
 * NULL options come from the environment. `in` has nnz row numbers, in any order, and width values for each; `out` has
 * the sum over all ranks, its rows in ascending order, the same bits on every rank. Dense arrays: ZENPS_DENSE, and
 * `values` alone. Another scheme than balanced: zenps_tensor_options.scheme. Elastic jobs: <zenps/elastic.h>. Top-k
 * selection with a residual: <zenps/sparsify.h>. The environment, launchers and examples: zenps(7).
 *
 * Result: exactly the floating-point sum in rank order, each accumulator starting at +0.0, a rank's own repeated rows
 * first added in order of appearance. Rows whose values are all +0.0 or -0.0 are not sent, unless the tensor's option
 * keep_zero_rows says so. NaN and Inf are values and travel. ZENPS_OP_MEAN is that sum times 1/world,
 * ZENPS_OP_MEAN_PRESENT times 1/contributors. Halves (bf16, f16) are added as floats, a rank's repeated rows too, and
 * the sum is rounded once to the dtype, to nearest, ties to even. A result that is a list of rows has them in ascending
 * order, each once, under every scheme; so have those of zenps_pull(), zenps_reduce_scatter(), zenps_allgather() and
 * zenps_request_contributed().
 *
 * Threads: every function may be called from any thread; a zenps_request_t by one thread at a time. The library never
 * exits, prints (except through the log callback, by default warnings on stderr) or installs signal handlers. In a
 * child after fork() every call returns ZENPS_ERR_FORKED, and the connections of the jobs of its parent are closed, so
 * that the parent's death is noticed at once although the child lives on.
 *
 * Errors: zero is success, ZENPS_IN_PROGRESS is positive, errors are negative. zenps_last_error() and
 * zenps_request_error() give the sentence: job, tensor, step, ranks. No call waits for another process without a
 * deadline.
 */
#ifndef ZENPS_ZENPS_H
#define ZENPS_ZENPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ZENPS_API __attribute__((visibility("default")))
#else
#define ZENPS_API
#endif

#define ZENPS_VERSION_MAJOR 0
#define ZENPS_VERSION_MINOR 1
#define ZENPS_VERSION_PATCH 0

typedef enum zenps_status {
  ZENPS_IN_PROGRESS = 1, /* zenps_test(), zenps_wait(): not done yet */
  ZENPS_OK = 0,
  ZENPS_ERR_AGAIN = -1,   /* back-pressure: try again */
  ZENPS_ERR_INVALID = -2, /* an argument cannot be right */
  ZENPS_ERR_NOMEM = -3,
  ZENPS_ERR_TIMEOUT = -4,      /* a deadline passed; missing_ranks: those that it may be for, where known */
  ZENPS_ERR_CANCELED = -5,     /* by zenps_cancel(), here or on another rank (the text says which) */
  ZENPS_ERR_CLOSED = -6,       /* the job was closed, here or by a rank that left */
  ZENPS_ERR_CONNECT = -7,      /* the coordinator cannot be reached */
  ZENPS_ERR_REFUSED = -8,      /* the coordinator or a server said no */
  ZENPS_ERR_VERSION = -9,      /* library and daemon speak different protocol versions */
  ZENPS_ERR_PROTOCOL = -10,    /* a peer sent what cannot be right */
  ZENPS_ERR_SHAPE = -11,       /* ranks differ: a tensor's shape, dtype or option; a group's ranks; a broadcast */
  ZENPS_ERR_UNKNOWN = -12,     /* no such job or tensor */
  ZENPS_ERR_RANK_TAKEN = -13,  /* another live process has this rank */
  ZENPS_ERR_MISSING = -14,     /* ranks had not arrived at the deadline: see missing_ranks */
  ZENPS_ERR_PEER_LOST = -15,   /* a rank died: see missing_ranks */
  ZENPS_ERR_SERVER_LOST = -16, /* a server died, and others cannot take over */
  ZENPS_ERR_STALE = -17,       /* a message of an older membership epoch; a sum that servers keep no longer */
  ZENPS_ERR_TRUNCATED = -18,   /* the result needs more room, see `needed`; it is kept for zenps_request_fetch() */
  ZENPS_ERR_UNSUPPORTED = -19,
  ZENPS_ERR_IO = -20,
  ZENPS_ERR_FABRIC = -21, /* libfabric failed, or nothing matches what was asked for */
  ZENPS_ERR_FORKED = -22,
  ZENPS_ERR_BUSY = -23, /* this step of the tensor is already in flight here */
  ZENPS_ERR_INTERNAL = -24,
  ZENPS_ERR_QUOTA = -25,  /* more of a server, or of the coordinator, than a job may have */
  ZENPS_ERR_TRAINER = -26 /* the trainer's own error: see zenps_job_fail(); no call returns it */
} zenps_status_t;

/* Halves are added up as floats, exactly as an f32 tensor of the same values would be, and the sum (or mean) is rounded
 * once, when it is complete: to nearest, ties to even. */
typedef enum zenps_dtype {
  ZENPS_F32 = 1,
  ZENPS_F64 = 2,
  ZENPS_BF16 = 4, /* 16 bits: the upper half of a float */
  ZENPS_F16 = 5   /* 16 bits: IEEE binary16; sums beyond 65504 are infinite */
} zenps_dtype_t;
typedef enum zenps_op {
  ZENPS_OP_SUM = 1,
  ZENPS_OP_MEAN = 2,
  ZENPS_OP_MAX = 3, /* of the ranks that sent the row, value by value; rows that no rank sent are zero. NaN wins */
  ZENPS_OP_MIN = 4,
  ZENPS_OP_MEAN_PRESENT = 5 /* the sum times 1/contributors: of the ranks that have something in this step (zenps_grad).
                               Of schemes over servers; others: ZENPS_ERR_UNSUPPORTED */
} zenps_op_t;
typedef enum zenps_codec {
  ZENPS_CODEC_AUTO = 1,  /* row numbers travel in the smallest code; sums over cards of 50 Gbit/s in the fastest */
  ZENPS_CODEC_PAPER = 2, /* the Zen paper's choice: COO to the servers, a bitmap back */
  ZENPS_CODEC_COO = 3    /* COO in both directions: the Zen paper's baseline without the hash bitmap */
} zenps_codec_t;
/* What values travel as, to the servers and back. Halves take raw and QSGD alone. Sums are made in the dtype whatever
 * it is, and all ranks get the same bits; but for raw, what is sent and what comes back is rounded. */
typedef enum zenps_values {
  ZENPS_VALUES_RAW = 1,  /* in the tensor's dtype */
  ZENPS_VALUES_BF16 = 2, /* 16 bits: the upper half of a float, rounded to nearest, ties to even */
  ZENPS_VALUES_F16 = 3,  /* 16 bits: IEEE binary16, rounded to nearest, ties to even; infinite beyond 65504 */
  /* QSGD: values travel as 2, 4 or 8 bit multiples of 1, 1/7 or 1/127 of the largest magnitude in their block of 1024.
   * Rounding is random, and the expected value is exact. The draws follow from job, tensor, step and rank. NaN or
   * infinity make NaN of the block. */
  ZENPS_VALUES_QSGD2 = 4,
  ZENPS_VALUES_QSGD4 = 5,
  ZENPS_VALUES_QSGD8 = 6
} zenps_values_t;
/* The order in which a sum's addends come, and with it the sum's last bits. */
typedef enum zenps_order {
  ZENPS_ORDER_RANKS = 1, /* in the order of ranks: the bits of balanced */
  ZENPS_ORDER_ANY = 2    /* in the order of the scheme that runs: another scheme may round otherwise */
} zenps_order_t;
typedef enum zenps_layout {
  ZENPS_DENSE = 1, /* `values`: rows * width, row-major */
  ZENPS_ROWS = 2   /* `row_ids`: nnz row numbers; `values`: nnz * width */
} zenps_layout_t;
/* Where arrays are. Of device memory no byte is touched by the host; work on it is submitted to a stream of the
 * caller's, which is never waited for but by asking events, from threads of the library's own. */
typedef enum zenps_memory {
  ZENPS_HOST = 0,
  ZENPS_DEVICE = 1 /* of a GPU: as cudaMalloc() gives it. ZENPS_ERR_UNSUPPORTED, saying what is missing, where there is
                      no GPU or no libzenps_cuda.so */
} zenps_memory_t;

typedef struct zenps_job zenps_job_t;         /* a process's membership in a job */
typedef struct zenps_group zenps_group_t;     /* some of a job's ranks; owned by the job */
typedef struct zenps_tensor zenps_tensor_t;   /* owned by its job */
typedef struct zenps_request zenps_request_t; /* one operation in flight, or done and not yet freed */

/* A line of the log. Called by one thread of the library's own, in order, and without its locks. While it blocks, up to
 * 1,024 lines wait; more are dropped and counted in a line. It must not call zenps_set_log(), zenps_open() or
 * zenps_close(), nor wait for a thread that does. `component` and `text` are borrowed. */
typedef void (*zenps_log_fn)(void *ctx, int level /* 0 error .. 4 trace */, const char *component, const char *text);

/* What is left zero or NULL comes from the environment (named beside each member), then from what a launcher has set
 * there (torchrun, mpirun, srun: zenps(7) lists the variables), then from the default. ZENPS_ERR_INVALID where that
 * leaves open which of several ranks this is. Always initialise with zenps_options_init(). */
typedef struct zenps_options {
  size_t struct_size;
  const char *coordinator;   /* "host:port", "unix:/path", or several with commas [ZENPS_COORDINATOR; 127.0.0.1:7077] */
  const char *job;           /* name of the run [ZENPS_JOB, the launcher's; "default"] */
  int rank;                  /* 0..world-1, -1: [ZENPS_RANK, the launcher's; 0] */
  int world;                 /* number of ranks, 0: [ZENPS_WORLD_SIZE, the launcher's; 1] */
  const char *provider;      /* fabric provider [ZENPS_PROVIDER; "auto"] */
  const char *interface;     /* "eth0,ib0", taken in turn by a host's ranks; "^docker0" [ZENPS_INTERFACE; any] */
  const char *subnet;        /* "10.0.0.0/8" [ZENPS_SUBNET; any] */
  uint64_t join_timeout_ms;  /* for zenps_open(): until all ranks and servers are there [ZENPS_JOIN_TIMEOUT; 60 s] */
  uint64_t round_timeout_ms; /* for every operation [ZENPS_ROUND_TIMEOUT; 60 s] */
  int threads;               /* to encode and decode with; 0: [ZENPS_THREADS; cores / local world, at least 1] */
  zenps_log_fn log;          /* NULL: stderr from level ZENPS_LOG_LEVEL on (default warn) */
  void *log_ctx;
  int device; /* number of the GPU that gradients are on [ZENPS_DEVICE; -1: none]. Named here it is opened by
                 zenps_open(), and the fabric is asked whether it reaches its memory; else it is opened with
                 the first gradient or result there, which then goes through host memory. One per process */
  /* Elastic jobs (zenps/elastic.h). Where one of the first two is given, the coordinator gathers the ranks, and gives
   * them their numbers: `rank` and `world` are wishes then. All ranks agree on the three. */
  int min_world; /* fewer ranks do not go on; 0: [ZENPS_MIN_WORLD_SIZE; 1] */
  int max_world; /* more are not let in; 0: [ZENPS_MAX_WORLD_SIZE; that of `world`, or `min_world` if it is more] */
  uint64_t join_wait_ms; /* how long ranks that are there wait for more of them [ZENPS_JOIN_WAIT; 5 s] */
  /* How many servers the job has room for, 1 to 1024, the same on all ranks: it takes in servers that come while it
   * runs, between two steps, until there are so many. Less than it begins with: as many as it begins with, so that
   * others only take the places of lost ones. Tensors have four partitions for each place, if they have rows enough:
   * room for more than four times as many servers costs something while these are not there. Elastic jobs need it not:
   * each generation begins on all servers. 0: [ZENPS_SERVER_PLACES; the coordinator's job.server_places, which is 0 by
   * default: as many as it begins with] */
  int server_places;
  /* For zenps_open(): how long an address of this host is tried at which no coordinator listens. 0:
   * [ZENPS_REFUSED_TIMEOUT; the join timeout where one was given, else 30 s] */
  uint64_t refused_timeout_ms;
} zenps_options_t;

/* Initialise with zenps_tensor_options_init(). All ranks give the same. Zero and NULL are the defaults. */
typedef struct zenps_tensor_options {
  size_t struct_size;
  zenps_op_t op;         /* 0: ZENPS_OP_SUM */
  uint32_t partitions;   /* 0: 4 to 16 per server, by size; fewer for small tensors */
  zenps_codec_t codec;   /* 0: [ZENPS_CODEC; auto] */
  zenps_values_t values; /* 0: [ZENPS_VALUES; raw]. Rounded values lose what rounding takes: a trainer that feeds errors
                            back must round before zenps_allreduce(). balanced and sparse-ps round gradients and sums.
                            Schemes with the option `delta` round what each rank gives, once, and their sums are exact
                            in the dtype. Others: ZENPS_ERR_UNSUPPORTED */
  /*
   * How rounds are carried out: a name, and the scheme's own options behind a colon, "oktopk:k=1000,tau=64".
   * NULL: [ZENPS_SCHEME; "balanced"]. ":k=1000" adds options to those of ZENPS_SCHEME. `zenps-perf --help` lists all
   * options with their defaults. An unknown option, or one of another scheme, is ZENPS_ERR_INVALID; the text has those
   * that there are.
   *
   * - Over servers: "balanced", fast from the first step, and with every other option; "sparse-ps"; "dense-ps", which
   *   sends all rows; "omnireduce", in blocks of 256 values.
   * - Between ranks, sparse: "recursive-doubling", "split-allgather", "agsparse". "hierarchical" adds up the ranks of a
   *   host first. Between hosts it uses balanced, or the exact scheme behind its colon: "hierarchical:ring".
   * - Between ranks, dense: "dsar", "bitmap-split", "ring", "rabenseifner", "two-level", "blueconnect", "dense-split".
   * - Between ranks, keeping only the greatest rows: "oktopk", "gtopk", "topka", "topkdsa", "gaussiank". They need `k`
   *   or `density`: "topka:density=0.01".
   * - "auto": the coordinator chooses by measured times, the same for all ranks, among schemes with the same bits;
   *   "auto:any" among all that lose nothing (see `order`); "auto:balanced,ring" among those named. A step waits for
   *   its choice up to round_timeout_ms, then ZENPS_ERR_TIMEOUT. Faster than balanced after some hundred steps.
   *
   * Schemes between ranks add in orders of their own, the same on all ranks and in every run. The first tensor with one
   * links all ranks: its zenps_tensor_open() waits for them. Under auto `nnz` of a dense result counts all rows where
   * all are sent; a list of rows may lack rows with a sum of zero in the first steps after dense results.
   */
  const char *scheme;
  zenps_order_t order;  /* ZENPS_ORDER_RANKS: a scheme that adds in another order is refused. ZENPS_ORDER_ANY: auto is
                           auto:any. All ranks still have the same bits, but another run may choose another scheme and
                           differ in the last ones. zenps_request_stats() names the scheme, worker/schemes/README.md its
                           order. 0: as the scheme has it; auto is in the order of ranks */
  int keep_zero_rows;   /* 1: every row that a rank lists (ZENPS_ROWS) is sent and in the result, even if its values, or
                           its sum, are zero. SparseAdam and other optimisers look at the listed rows. Rows of
                           zeros in dense gradients are left out all the same. 0: rows of zeros are not sent. For
                           schemes whose results tell which rows were sent: balanced, sparse-ps, recursive-doubling,
                           split-allgather, agsparse, hierarchical with one of them, and auto, which then chooses among
                           these; others: ZENPS_ERR_UNSUPPORTED */
  zenps_group_t *group; /* only these ranks open the tensor, push to it, and get its sums; NULL: all ranks */
  uint32_t staleness;   /* the most that zenps_pull_newest() may ask for, up to 31 steps. Servers then keep the tensor's
                           newest staleness + 1 sums, whoever has pulled them. For balanced, sparse-ps and dense-ps */
  /*
   * Rounds that do not wait for the slowest ranks. A round closes when all ranks have pushed, or when `quorum` ranks
   * have and `grace_ms` are over since then. 0 ms: it closes with the last rank of the quorum. The sum, or mean, is
   * that of the ranks in time: zenps_grad_t.contributors counts them, and all ranks get the same bits.
   *
   * A late rank gets the sum as well, and zenps_request_stats_t.late is 1: its gradient is in no sum. Give it again
   * with the next step, as zenps_sparsifier_cancel() does. In place, the result has overwritten it. A rank may be 16
   * steps late. Later still it gets ZENPS_ERR_STALE: it then lacks a sum, and takes the state of another rank. Steps
   * ascend.
   *
   * 1 to the number of ranks; 0: all. One server sums all of the tensor, so give a large model several tensors. For
   * zenps_allreduce() with scheme balanced, without staleness. No variable sets it: the program must give late
   * gradients again.
   */
  uint32_t quorum;
  uint32_t grace_ms; /* up to 24 h */
} zenps_tensor_options_t;

/* What a tensor was opened as, with the defaults filled in. */
typedef struct zenps_tensor_info {
  size_t struct_size;
  uint64_t rows;
  uint64_t seed; /* of the job */
  uint32_t id;   /* within the job */
  uint32_t width, partitions, block_bits;
  zenps_dtype_t dtype;
  zenps_op_t op;
  zenps_codec_t codec;
  zenps_values_t values;
  const char *scheme;      /* name without options; valid until zenps_close() */
  const char *partitioner; /* how rows are dealt to partitions, such as "stratified". NULL: rows lie in ranges, or have
                              no partitions. Never freed */
} zenps_tensor_info_t;

/* One array of a gradient or result that consists of several: rows row_base to row_base + n_rows - 1 of the tensor.
 *
 * In: ZENPS_DENSE, n_rows * width values; or ZENPS_ROWS, nnz rows, whose numbers count from row_base, in any order,
 * repeated or none at all. Out: a dense part is filled, and may be the array of a part of the gradient; rows ascend,
 * and count from row_base, too. They go to arrays of the caller's, of `capacity` entries, or, where row_ids and values
 * are NULL, these become views into a result of the library's, valid until zenps_request_free(). */
typedef struct zenps_part {
  size_t struct_size; /* sizeof(zenps_part_t) */
  uint64_t row_base, n_rows;
  zenps_layout_t layout;
  uint64_t nnz;      /* ZENPS_ROWS: entries; out: set on completion */
  uint64_t capacity; /* out, ZENPS_ROWS with the caller's arrays */
  int64_t *row_ids;
  void *values;
} zenps_part_t;

/* A gradient going in, or a result coming out. Initialise with zenps_grad_init(). */
typedef struct zenps_grad {
  size_t struct_size;
  zenps_layout_t layout;
  zenps_memory_t memory; /* of `row_ids` and `values`; of gradient and result it need not be the same */
  uint64_t nnz;          /* ZENPS_ROWS: entries; out: set on completion */
  uint64_t capacity;     /* out, ZENPS_ROWS with the caller's buffers: entries they hold */
  int64_t *row_ids;      /* ZENPS_ROWS; out: NULL for both arrays: the library's, valid until zenps_request_free(), also
                            after zenps_close(); zenps_request_take() makes them the caller's */
  void *values;
  /* Of ZENPS_DEVICE. */
  int device;   /* number of the GPU; -1, as zenps_grad_init() has it: the job's */
  void *stream; /* cudaStream_t; NULL: the default one. It must live until the request is done */
  /* A rank contributes to a step unless its gradient is an empty list (ZENPS_ROWS, nnz 0), as of a rank that has run
   * out of data and joins the others' steps. */
  int contributes;  /* in: 1: the rank counts, although its list is empty */
  int contributors; /* out: ranks that contributed, the same on all ranks; 0: none, and the result is zeros or no
                           rows. -1: the step ran between ranks, which do not tell, or no row was asked for */
  void *taken;      /* by zenps_request_take(), for zenps_rows_free() alone; else NULL */
  /* Several arrays in one round, such as the tables of a model, or a bucket of parameters (of rows of one value, where
   * their widths differ): n_parts of them, in ascending order of row_base, not overlapping, dense ones and lists mixed.
   * Rows that no part has are zero going in, and left out coming out. The sum is that of one array, bit for bit: of a
   * dense one where all parts are dense, else of a list. Gradient and result need not have the same parts, nor have the
   * ranks. `layout`, `row_ids`, `values`, `capacity` are not looked at then; out: `nnz` is set to rows in all.
   * Borrowed, with their arrays, until the request is done. In host memory; ZENPS_ERR_UNSUPPORTED in zenps_allgather(),
   * and for results of some rows. balanced, sparse-ps and dense-ps read and fill dense parts, and read lists, where
   * they are (with other partitioners than hierarchical); all other schemes work on a copy
   * (zenps_request_stats_t.copied_bytes), and so do results of which a part is a list but has arrays of the caller's,
   * or is dense beside lists. ZENPS_ERR_TRUNCATED: the error names the first part without room, every
   * part's nnz is what it needs; the result is kept as one list of the tensor's rows, for zenps_request_fetch(). What
   * zenps_request_take() gives holds on to what parts are views into; its row numbers are those of the parts. */
  zenps_part_t *parts;
  uint32_t n_parts; /* 0: one array */
} zenps_grad_t;

typedef struct zenps_error {
  zenps_status_t status;
  char text[512];
  char tensor[128]; /* empty when no tensor is concerned */
  uint64_t step;
  uint64_t needed; /* ZENPS_ERR_TRUNCATED: entries */
  uint32_t n_missing;
  uint32_t missing_ranks[64]; /* the first ones */
} zenps_error_t;

/* What one finished operation cost on this rank. Bytes are those handed to and taken from the fabric for it: payloads
 * and frames. Times are nanoseconds; phases overlap between partitions and need not add up to `total_ns`. */
typedef struct zenps_request_stats {
  size_t struct_size;
  uint64_t bytes_out, bytes_in;
  uint64_t payload_out, payload_in; /* without frames */
  uint64_t nnz_in, nnz_out;         /* rows this rank sent; rows of the union. omnireduce: blocks, but for rows that
                                       come out as such */
  uint64_t total_ns, encode_ns, push_ns, wait_ns, pull_ns, decode_ns;
  uint32_t partitions;
  uint64_t bound_bytes; /* the least that payloads of random rows take, in and out: values as they travel, and m * H(z /
                           m) bits for the z of m rows of each partition */
  uint64_t shared_out, shared_in; /* of the payloads, what went through memory that ranks of a host share: these are
                                     not in bytes_out and bytes_in */
  const char *scheme;             /* the scheme of this step; under auto the one that was chosen for it. Never freed */
  uint64_t hash_parallel, hash_serial; /* Algorithm 1: rows, or entries of a list, that found a slot of parallel memory,
                                          and that went to serial memory. 0 with other partitioners */
  uint64_t hash_lost_races;            /* its writes to a slot that another one overwrote, found by reading back */
  zenps_memory_t partitioned_in;       /* where rows were dealt to partitions: ZENPS_HOST, or on the GPU */
  zenps_memory_t merged_in; /* scheme hierarchical: ZENPS_DEVICE where what this host's ranks have was added up on the
                               GPU of one of them; else in host memory */
  uint64_t step;            /* the step of the sum: zenps_pull_newest() may give an older one than was asked for */
  uint64_t copied_bytes;    /* of gradient and result in parts: bytes copied to make one array of them, and back */
  int late;                 /* 1: a quorum closed the step without this rank's gradient; the result lacks it */
} zenps_request_stats_t;

ZENPS_API void zenps_options_init(zenps_options_t *options, size_t struct_size);
ZENPS_API void zenps_tensor_options_init(zenps_tensor_options_t *options, size_t struct_size);
ZENPS_API void zenps_grad_init(zenps_grad_t *grad, size_t struct_size);
#define ZENPS_OPTIONS_INIT(p) zenps_options_init((p), sizeof *(p))
#define ZENPS_TENSOR_OPTIONS_INIT(p) zenps_tensor_options_init((p), sizeof *(p))
#define ZENPS_GRAD_INIT(p) zenps_grad_init((p), sizeof *(p))

/* Joins the job and returns when all ranks have joined and servers own its partitions, or with an error that names who
 * is missing. `options` may be NULL: everything from the environment. */
ZENPS_API zenps_status_t zenps_open(const zenps_options_t *options, zenps_job_t **job);
/* Cancels what is in flight, leaves the job and frees it with its tensors. Requests may outlive it, and are still to be
 * freed: one that was done keeps its outcome, and its result as long as it lives, also in arrays of the library's; one
 * that was not ends with ZENPS_ERR_CLOSED, also for a thread that waits for it. No other call may use the job, or one
 * of its tensors, meanwhile or later. NULL is allowed.
 * What this rank pushed last goes with it: a server that is lost then costs ranks which have not read that step's sum
 * yet the step (ZENPS_ERR_CLOSED, ZENPS_ERR_SERVER_LOST). Ranks that call zenps_barrier() first leave no such moment.
 */
ZENPS_API void zenps_close(zenps_job_t *job);
/* Tells the coordinator why this rank gives up, ahead of zenps_close(): an error of the trainer's own, such as "batch 7
 * is not a number". Operators read it as the job's cause, ERR_TRAINER, unless an earlier error stands. Nothing else
 * changes. `text` is borrowed; its first 400 bytes count. Any thread may call it. ZENPS_ERR_INVALID: no job or no text.
 */
ZENPS_API zenps_status_t zenps_job_fail(zenps_job_t *job, const char *text);
/* Sends the log's lines to another callback from here on; NULL: to stderr again. The log belongs to the process: of
 * several jobs the last to give a callback gets its lines, and NULL takes back this job's alone. When it returns, the
 * job's earlier callback has had all its lines, and no call is under way, nor will one begin; the same holds when
 * zenps_close() returns. So it waits for a callback that is behind. The level stays that of ZENPS_LOG_LEVEL. */
ZENPS_API zenps_status_t zenps_set_log(zenps_job_t *job, zenps_log_fn log, void *log_ctx);
ZENPS_API int zenps_rank(const zenps_job_t *job);
ZENPS_API int zenps_world(const zenps_job_t *job);
/* How many servers the job has places for: as many as it began with, or `server_places`, if that is more. */
ZENPS_API int zenps_servers(const zenps_job_t *job);
/* Name of the job, wherever it came from. Valid until zenps_close(). */
ZENPS_API const char *zenps_job_name(const zenps_job_t *job);
/* Deadline of every operation, wherever it came from. */
ZENPS_API uint64_t zenps_round_timeout_ms(const zenps_job_t *job);
/* Name of the fabric provider in use, such as "net". Valid until zenps_close(). */
ZENPS_API const char *zenps_provider(const zenps_job_t *job);

/*
 * Groups: some ranks of the job, which have tensors of their own. So a grid of tensor and data parallelism is one job,
 * whose processes have one engine each: a group for each row of the grid, and one for each column, all at work at once.
 *
 * Opens the group of the `n` ranks in `ranks`, which only these do, each with the same ranks in any order, and returns
 * when all have, or with an error that names who is missing; other ranks have no part in it, and disjoint groups do not
 * wait for each other. Opening it again returns the same group. ZENPS_ERR_INVALID: a rank is out of range or there
 * twice, or the caller's is not there. ZENPS_ERR_SHAPE, on all that wait: under one name, two ranks name other ranks;
 * the text names both. 1 to 120 bytes of `name`, not starting with '@'.
 *
 * A tensor of a group (zenps_tensor_options.group) has a name among those of its group; sums and means are of the
 * group's ranks, in the order of ranks, whatever the order of the list (schemes between workers: as they add, ranks of
 * the group in place of all). Its first tensor of a scheme between workers waits for the group's ranks alone; these use
 * memory of their host together once a tensor of all ranks has such a scheme. Errors name ranks as the job numbers
 * them. A rank that dies ends the job, and with it the rounds of all groups, also of those that it is not in; one that
 * leaves ends only rounds of its groups. */
ZENPS_API zenps_status_t zenps_group_open(zenps_job_t *job, const char *name, const int *ranks, uint32_t n,
                                          zenps_group_t **group);
/* No tensor is opened in the group any more, and no barrier held; its tensors go on. When all of its ranks have closed
 * it the name may be used for other ranks; not so the names of its tensors that are still open, and barriers and
 * broadcasts of other ranks are then ZENPS_ERR_SHAPE where the former ones have held any: give such groups names of
 * their own. Groups that are left open are closed by zenps_close(). Waits for the coordinator alone. NULL is allowed.
 */
ZENPS_API zenps_status_t zenps_group_close(zenps_group_t *group);

/* Opens a tensor; the first rank to do so registers it, the others must agree in every argument. 1 <= rows <= 2^40,
 * 1 <= width <= 2^20. `options` may be NULL. Opening the same name again returns the same tensor. */
ZENPS_API zenps_status_t zenps_tensor_open(zenps_job_t *job, const char *name, uint64_t rows, uint32_t width,
                                           zenps_dtype_t dtype, const zenps_tensor_options_t *options,
                                           zenps_tensor_t **tensor);
/* What zenps_tensor_open() is told. */
typedef struct zenps_tensor_spec {
  size_t struct_size; /* of each: sizeof(zenps_tensor_spec_t) */
  const char *name;
  uint64_t rows;
  uint32_t width;
  zenps_dtype_t dtype;
  const zenps_tensor_options_t *options; /* NULL: the defaults */
} zenps_tensor_spec_t;
/* Opens `n` tensors, as zenps_tensor_open() would one after the other, in little more time than one takes. On all ranks
 * alike, in the same order. All or none: on failure `tensors` is left as it is, and the error names the tensor. All
 * specs are checked before anything is asked; what was opened ahead of one that the coordinator or a server refuses is
 * then open as if it had been for itself: zenps_tensor_open() returns it. */
ZENPS_API zenps_status_t zenps_tensor_open_many(zenps_job_t *job, const zenps_tensor_spec_t *specs, uint32_t n,
                                                zenps_tensor_t **tensors);
/* Closes a tensor, on all ranks (of its group): collective, every rank calls it, in the same order as other calls that
 * wait for all ranks, and returns when all have. Servers and coordinator then have forgotten it, with the
 * library's own tensors for it, and the name may be opened anew, with another shape. Requests that are done stay valid.
 * Waits for operations that were canceled. ZENPS_ERR_BUSY, and nothing happens, while another one is in flight here;
 * the other ranks then wait until their deadline. When the first rank's round_timeout_ms are over, all that wait get
 * ZENPS_ERR_MISSING with the missing ranks. The tensor is then open as before, on every rank. No other
 * thread may use the tensor meanwhile. After it the tensor must not be used; such a call gets ZENPS_ERR_CLOSED while
 * the tensor is among the last 64 closed ones. NULL: ZENPS_ERR_INVALID. */
ZENPS_API zenps_status_t zenps_tensor_close(zenps_tensor_t *tensor);
/* `info->struct_size` must be set. */
ZENPS_API zenps_status_t zenps_tensor_info(const zenps_tensor_t *tensor, zenps_tensor_info_t *info);
/* Number of partitions; the size of the arrays of zenps_request_partition_nnz(). */
ZENPS_API uint32_t zenps_tensor_partitions(const zenps_tensor_t *tensor);
/* The server (0..zenps_servers()-1) that owns a partition; -1 for a partition that the tensor does not have. */
ZENPS_API int zenps_tensor_owner(const zenps_tensor_t *tensor, uint32_t partition);

/* Starts the sum of all ranks' `in` for (tensor, step); returns at once. `in` and its arrays are borrowed until the
 * request is done. `out` is filled when it is done and stays the caller's; `in->values == out->values` is allowed for
 * dense in and dense out. Every rank must call it once per step, in any order of tensors and steps; several may be in
 * flight. The operation fails on all ranks when one of them cancels, dies, or does not come before the deadline. A
 * request that failed is done when no other rank reads `in` any more, at the latest at its deadline; in a job that has
 * failed or is closed, when none can, within a second: then nothing of what the arrays hold leaves this process any
 * more. A rank that is lost while it reads costs this process its connections, and the job fails here
 * (ZENPS_ERR_PEER_LOST). One that hangs past the deadline, in a job that goes on, may get bytes that are written there
 * later, and drops them.
 *
 * A step that failed over servers has used its number up. A rank that comes with it again, or late, gets its end as the
 * error. Ranks learn of a failure at different times, and a frame does not name its attempt, so a server could not tell
 * the pushes of two attempts apart. Send the same gradients under a number that no rank has used, and on which all
 * ranks agree; or go on with the next step. A server's loss needs neither, as long as there are others: its steps are
 * replayed.
 *
 * Between ranks the same number may be tried again, once all ranks have failed: they tell each other where an attempt
 * ends. ZENPS_ERR_BUSY: something of the old attempt is still under way. Take another number if a rank came to the old
 * attempt more than ten seconds behind its failure: its messages end later attempts, too.
 *
 * Device memory: `in` is read in the order of in->stream, from some time after this call on, so what fills it may still
 * be running there. When the request is done the result is in device memory, whatever stream it is used on. A result of
 * the library's own is freed by zenps_request_free(), which waits for the device, as cudaFree() does; the caller's
 * arrays spare that. A request that failed is done when the GPU is through with the arrays, at the latest at its
 * deadline. One that failed at its deadline may leave work on the streams: finish it before freeing the arrays.
 *
 * What is done on the GPU depends on the scheme; the result is the same to the bit, wherever the arrays are.
 *
 * - balanced and sparse-ps: it finds the rows, partitions and encodes them, and decodes the sums. Copies to the
 *   host, or reads by the fabric, of encoded partitions overlap with the encoding of later ones.
 * - all others: it finds the rows that are not zero. These alone are copied to the host (of a dense gradient that is
 *   nearly full, all is), where the scheme is carried out; the result is copied back when it is complete. Results of
 *   sparse schemes are copied as rows and spread out on the GPU; dense-ps, omnireduce and the dense schemes copy all of
 *   a dense result.
 * - auto: as the scheme that the step runs as. Where the coordinator is to be asked, a thread of the library's looks at
 *   `in` once it is there. */
ZENPS_API zenps_status_t zenps_allreduce(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in,
                                         zenps_grad_t *out, zenps_request_t **request);
/*
 * Push and pull apart. A step of a tensor has one sum, whichever of zenps_allreduce(), zenps_push() and
 * zenps_reduce_scatter() its ranks push with; every rank pushes exactly once. So some ranks may allreduce a step while
 * others push, scatter or pull it. The step fails on all ranks when a rank does not come before the earliest deadline
 * of any that has come, push or pull; when one dies; or when one cancels its push. For tensors of schemes over servers
 * that own rows: balanced, sparse-ps, dense-ps; else ZENPS_ERR_UNSUPPORTED. Gradients and results may lie in device
 * memory, as of zenps_allreduce().
 *
 * Servers keep the sum of a step in which ranks pushed apart until each of these has pulled it, by zenps_pull() or
 * within zenps_reduce_scatter(). A rank need not: of a tensor's sums that wait for pulls, servers keep the newest four
 * (or `staleness` + 1), and fewer where server.memory_limit is short. Who pulls an older one gets ZENPS_ERR_STALE.
 *
 * Asynchronous training [SparCML, section 7, MPI-OPT] has two forms. Gradients, of which every sum must be applied
 * once: push each step, start its zenps_pull(), apply the sums that are done, and wait only for those that are older
 * than a bound. Or sums that take the place of older ones, such as averages of models: zenps_pull_newest().
 */

/* Rows that are asked for: a range, or a list. */
typedef struct zenps_rows {
  size_t struct_size;
  uint64_t first, count;  /* rows first to first + count - 1; of a list `first` is 0 and `count` its length */
  const int64_t *row_ids; /* a list in host memory, in any order, repeated or not; borrowed for the call; or NULL */
} zenps_rows_t;
#define ZENPS_ROWS_RANGE(first, count) \
  { sizeof(zenps_rows_t), (first), (count), NULL }
#define ZENPS_ROWS_LIST(row_ids, count) \
  { sizeof(zenps_rows_t), 0, (count), (row_ids) }

/* Starts this rank's push of the step. The request is done when servers have `in`, which then is the caller's again;
 * that other ranks have not come, or how the sum ends, shows in a pull. */
ZENPS_API zenps_status_t zenps_push(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in,
                                    zenps_request_t **request);
/* Starts a pull of rows of the step's sum, of all where `rows` is NULL; before this rank's push of the step, while it
 * is in flight, or after it; once a step. The request is done when the sum is, and its rows are here. `out` is
 * ZENPS_ROWS: those of the rows that any rank pushed, in ascending order. Or ZENPS_DENSE: `count` rows, each at the
 * place where it was asked for, and zeros for those that no rank pushed; in host memory where these are not all rows.
 * Only what was asked for travels. Cancelling it ends this rank's pull alone. Values that travel as QSGD levels come
 * back as a whole: ZENPS_ERR_UNSUPPORTED for a part. */
ZENPS_API zenps_status_t zenps_pull(zenps_tensor_t *tensor, uint64_t step, const zenps_rows_t *rows, zenps_grad_t *out,
                                    zenps_request_t **request);
/* Bounded staleness: as zenps_pull(), of the newest sum that is complete, of steps `step` - `staleness` to `step`; at
 * once where there is one, however slow other ranks are. Else it waits for the oldest of these steps that any rank has
 * begun: so no rank that calls it each step is more than `staleness` steps ahead of another. Every row is of the same
 * step's sum, which zenps_request_stats() tells; may be called again for a step, and bring the same sum again.
 * `staleness` is at most the option that the tensor was opened with (ZENPS_ERR_INVALID). With 0 it is the sum of
 * `step`, bit for bit that of zenps_pull(). ZENPS_ERR_STALE where servers had to drop all of these sums for want of
 * memory, or one while it was being pulled, for steps that this rank has pushed meanwhile: ask again. A sum that fails
 * while it is waited for fails the call alike. */
ZENPS_API zenps_status_t zenps_pull_newest(zenps_tensor_t *tensor, uint64_t step, uint32_t staleness,
                                           const zenps_rows_t *rows, zenps_grad_t *out, zenps_request_t **request);
/* A push of `in` and a pull of `rows` in one: of the sum of all ranks, the rows of this rank. */
ZENPS_API zenps_status_t zenps_reduce_scatter(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in,
                                              const zenps_rows_t *rows, zenps_grad_t *out, zenps_request_t **request);
/* Starts a copy of all ranks' rows to all ranks, bit for bit: also -0.0, NaN with their payloads, rows of zeros. `in`
 * is ZENPS_ROWS, each row once; `out` as in zenps_allreduce(), and rows that no rank gives are zeros in a dense one.
 * Where two ranks give the same row the step fails on all with ZENPS_ERR_INVALID, which names the row and both. Every
 * rank calls it once a step; its steps are apart from those of sums, so a reduce-scatter and an allgather of one step
 * do not meet. For tensors of any scheme, through servers; in host memory. The first call opens a tensor of the
 * library's own, as zenps_tensor_open() does: servers show it as "@gather/NAME". */
ZENPS_API zenps_status_t zenps_allgather(zenps_tensor_t *tensor, uint64_t step, const zenps_grad_t *in,
                                         zenps_grad_t *out, zenps_request_t **request);

/* Says that arrays of gradients and results lie in [at, at + len): opens the GPU and its staging ahead of the first
 * round
 * (`device`: as in zenps_grad), and lets zenps_allreduce() refuse arrays that begin there and do not fit. Memory that
 * is not registered can be used all the same. */
ZENPS_API zenps_status_t zenps_mem_register(zenps_job_t *job, zenps_memory_t memory, int device, void *at, size_t len);
/* Before the memory is freed. ZENPS_ERR_BUSY while an operation in flight uses it, ZENPS_ERR_UNKNOWN for what was not
 * registered. */
ZENPS_API zenps_status_t zenps_mem_deregister(zenps_job_t *job, void *at);
/* Returns when all ranks have called it. Collective: all ranks call barriers and broadcasts in the same order. Where
 * one rank calls something else, all fail with ZENPS_ERR_SHAPE; the text names two ranks and what they called. The next
 * call is not affected. */
ZENPS_API zenps_status_t zenps_barrier(zenps_job_t *job);
/* Copies `len` bytes from rank `root` to all, bit for bit. Collective, like zenps_barrier(). Blocks. `len` may be 0.
 * ZENPS_ERR_SHAPE on all ranks, also where `len` or `root` differ: then no `data` is written. */
ZENPS_API zenps_status_t zenps_broadcast(zenps_job_t *job, void *data, size_t len, int root);
/* The same among the ranks of a group; `root` is the number that it has in the job. */
ZENPS_API zenps_status_t zenps_group_barrier(zenps_group_t *group);
ZENPS_API zenps_status_t zenps_group_broadcast(zenps_group_t *group, void *data, size_t len, int root);

/* ZENPS_OK when done, ZENPS_IN_PROGRESS, or the operation's error. */
ZENPS_API zenps_status_t zenps_test(zenps_request_t *request);
/* Waits up to `timeout_ms`, then answers like zenps_test(). -1: until done; the operation's own deadline still
 * holds. */
ZENPS_API zenps_status_t zenps_wait(zenps_request_t *request, int timeout_ms);
/* Waits for `n` requests, of any tensors and jobs, up to `timeout_ms` in all. ZENPS_IN_PROGRESS while one is not done,
 * whatever became of the others; then ZENPS_OK, or the error of the first in the array that failed, which is also the
 * thread's last error. All stay the caller's. */
ZENPS_API zenps_status_t zenps_wait_all(zenps_request_t *const *requests, uint32_t n, int timeout_ms);
/* What is submitted to the stream (a cudaStream_t of the job's GPU; NULL: the default one) after this runs when the
 * request is done, so that a trainer can submit what uses the result without waiting for it. Does not wait; any number
 * of streams. Done is done: well, failed, canceled or freed, so what the stream then computes is good only where
 * zenps_test() says so afterwards; and it goes on at the operation's deadline in any case. ZENPS_ERR_INVALID: the
 * operation's own work is submitted to this stream, since `in` or `out` is in device memory with it, and would wait for
 * itself. Other streams must not make that work wait either: they are of cudaStreamNonBlocking, or not the default one.
 * The stream must have come there before zenps_close(). A result in host memory that the stream copies is to be in
 * pinned memory: of other memory CUDA may take the bytes as soon as the copy is submitted. ZENPS_ERR_UNSUPPORTED where
 * the driver lets no stream wait for memory. */
ZENPS_API zenps_status_t zenps_request_stream_wait(zenps_request_t *request, void *stream);
/* Gives the operation up, on all ranks. It then completes with ZENPS_ERR_CANCELED, unless it was already done. */
ZENPS_API zenps_status_t zenps_cancel(zenps_request_t *request);
/* Frees the request and the result arrays the library owns. Waits for (after canceling) one that is not done. NULL is
 * allowed. */
ZENPS_API void zenps_request_free(zenps_request_t *request);
/* After ZENPS_ERR_TRUNCATED: brings the result, which the library has kept, to larger arrays of the caller's, or shows
 * it in the library's where `out` has none. `out` is ZENPS_ROWS, in the memory where the operation's was (else
 * ZENPS_ERR_UNSUPPORTED); `capacity` must be the error's `needed` or more, else ZENPS_ERR_TRUNCATED again. To device
 * memory it is copied in the order of out->stream, and is there when this returns, at the latest after the job's
 * round_timeout_ms, with ZENPS_ERR_TIMEOUT. On success out->nnz and out->contributors are set, and the request is one
 * that went well, in all that it answers; on failure the result is still kept. It is until zenps_request_free(), also
 * after zenps_close(). ZENPS_ERR_BUSY while in progress, ZENPS_ERR_INVALID where nothing is kept; of a request that
 * failed, its error. Other ranks have their results whether it is fetched or not. */
ZENPS_API zenps_status_t zenps_request_fetch(zenps_request_t *request, zenps_grad_t *out);
/* Makes the arrays of a result, which are the library's, the caller's: they stay where they are, and valid until
 * zenps_rows_free(), whatever becomes of request and job. `rows` (initialised; it may be the operation's `out`) becomes
 * that result: ZENPS_ROWS, in the memory where it is. ZENPS_ERR_BUSY while in progress; the request's error where it
 * failed; ZENPS_ERR_INVALID where it has no arrays of the library's: the result is dense, is in the caller's arrays, or
 * was taken. */
ZENPS_API zenps_status_t zenps_request_take(zenps_request_t *request, zenps_grad_t *rows);
/* Frees what zenps_request_take() gave, once: `rows`, or a copy of it. In any thread, before or after zenps_close();
 * waits for the device where the arrays are in its memory, as cudaFree() does. Then `rows` has none. NULL and what was
 * not taken are allowed. */
ZENPS_API void zenps_rows_free(zenps_grad_t *rows);
/* Details of a failed request; NULL when it did not fail. Valid until zenps_request_free(). */
ZENPS_API const zenps_error_t *zenps_request_error(const zenps_request_t *request);
/* ZENPS_ERR_BUSY while in progress. `stats->struct_size` must be set. */
ZENPS_API zenps_status_t zenps_request_stats(const zenps_request_t *request, zenps_request_stats_t *stats);
/* Rows per partition: sent by this rank, and in the result. Either array may be NULL. Zeros for schemes between
 * workers, which have no partitions, for steps that auto runs as anything but balanced, and for allgathers. */
ZENPS_API zenps_status_t zenps_request_partition_nnz(const zenps_request_t *request, uint32_t *sent,
                                                     uint32_t *in_union);

/* The late ranks of a step with a quorum, as the job numbers them, in ascending order. Their gradients are not in the
 * result. *n is set to their number, and `ranks` to the first `capacity` of them, the same on all ranks.
 * ZENPS_ERR_BUSY: the operation is still in progress. An error of the operation is the error of this call, too. */
ZENPS_API zenps_status_t zenps_request_late(const zenps_request_t *request, int *ranks, uint32_t capacity, uint32_t *n);
/* The rows of this rank's gradient in the result: selected here, and in the result. The request has succeeded, and its
 * tensor's scheme has the option contributed=1; else ZENPS_ERR_UNSUPPORTED. `rows`
 * (initialised) becomes ZENPS_ROWS in host memory without values: row_ids ascend, are the library's, and valid until
 * zenps_request_free(). What a trainer keeps as its residual is its gradient without these rows, or
 * zenps_sparsifier_commit() does so. [Ok-Topk algorithm 1, line 14] */
ZENPS_API zenps_status_t zenps_request_contributed(const zenps_request_t *request, zenps_grad_t *rows);

/* An eventfd that becomes readable when requests have completed; read it, then zenps_test() yours. Owned by the job. */
ZENPS_API int zenps_get_fd(zenps_job_t *job);

/* The last error that a call of this thread returned; never NULL. Valid until this thread's next failing call. */
ZENPS_API const zenps_error_t *zenps_last_error(void);
ZENPS_API const char *zenps_strerror(zenps_status_t status);
/* "0.1.0": the library's, which may differ from the header's. */
ZENPS_API const char *zenps_version(void);

#ifdef __cplusplus
}
#endif
#endif
