#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/sim_impl.h"

static void *grown(void *array, uint32_t n, size_t elem_bytes) {
  if ((n & (n - 1)) != 0) return array; /* powers of two */
  void *const bigger = realloc(array, (n ? 2 * (size_t)n : 1) * elem_bytes);
  assert_non_null(bigger);
  return bigger;
}

static uint32_t position_of(const struct sim *sim, uint32_t rank) {
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    if (zps_peer_rank(&sim->plan, i) == rank) return i;
  }
  fail_msg("rank %u takes no part", rank);
  return 0;
}

void sim_open(struct sim *sim) {
  const uint32_t n = sim->plan.n;
  sim->ranks = calloc(n, sizeof *sim->ranks);
  sim->counts = calloc((size_t)n * n, sizeof *sim->counts);
  for (uint32_t i = 0; i < n; i++) {
    struct sim_rank *const rank = &sim->ranks[i];
    rank->plan = sim->plan;
    rank->plan.me = i;
    rank->compute = sim->compute;
    rank->compute.policy = zps_peer_policy(sim->scheme, sim->compute.policy);
    rank->compute.origin.rank = zps_peer_rank(&sim->plan, i);
    assert_int_equal(zps_own_create(&rank->own), ZPS_OK);
    rank->compute.own = rank->own;
    if (sim->scheme->open) assert_int_equal(sim->scheme->open(&rank->plan, &rank->state), ZPS_OK);
  }
}

static void forget_round(struct sim_rank *rank) {
  for (uint32_t i = 0; i < rank->n_streams; i++) free(rank->streams[i].bytes);
  free(rank->streams);
  free(rank->messages);
  free(rank->due);
  free(rank->result);
  free(rank->covered);
  free(rank->contributed);
  rank->streams = NULL;
  rank->messages = NULL;
  rank->due = NULL;
  rank->result = NULL;
  rank->covered = NULL;
  rank->contributed = NULL;
  rank->n_streams = rank->n_messages = rank->n_due = 0;
}

void sim_close(struct sim *sim) {
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    struct sim_rank *const rank = &sim->ranks[i];
    forget_round(rank);
    if (sim->scheme->close) sim->scheme->close(rank->state);
    zps_own_destroy(rank->own);
    zps_run_fini(&rank->run);
    zps_program_fini(&rank->program);
  }
  free(sim->ranks);
  free(sim->counts);
}

/* Announces the messages that have come for RECVs that the program knows. */
static void announce(const struct sim *sim, struct sim_rank *rank) {
  for (uint32_t i = 0; i < rank->n_messages; i++) {
    const struct sim_message *const message = &rank->messages[i];
    const uint32_t recv = zps_run_find(&rank->run, zps_peer_rank(&sim->plan, message->from), message->tag);
    if (recv != UINT32_MAX) zps_run_announced(&rank->run, recv);
  }
}

static void take_due(struct sim_rank *rank) {
  for (uint32_t i; (i = zps_run_take(&rank->run)) != UINT32_MAX;) {
    rank->due = grown(rank->due, rank->n_due, sizeof *rank->due);
    rank->due[rank->n_due++] = i;
  }
}

static void grow(const struct sim *sim, struct sim_rank *rank) {
  assert_int_equal(rank->program.code, ZPS_OK);
  assert_int_equal(zps_run_grow(&rank->run), ZPS_OK);
  if (rank->program.n_streams > rank->n_streams) {
    rank->streams = realloc(rank->streams, rank->program.n_streams * sizeof *rank->streams);
    assert_non_null(rank->streams);
    memset(rank->streams + rank->n_streams, 0, (rank->program.n_streams - rank->n_streams) * sizeof *rank->streams);
    rank->n_streams = rank->program.n_streams;
  }
  announce(sim, rank);
}

static void send(struct sim *sim, struct sim_network *network, struct sim_rank *rank, const struct zps_instr *instr) {
  const uint32_t in = zps_instr_ins(&rank->program, instr)[0], to = position_of(sim, instr->peer);
  const struct zps_stream *const stream = &rank->program.streams[in];
  const struct zps_slice_view *const view = &rank->streams[in].view;
  assert_int_not_equal(to, rank->plan.me);
  const uint64_t values_bytes = zps_values_bytes(view->value_codec, view->dtype, (uint64_t)view->z * view->width);
  struct sim_message message = {.from = rank->plan.me,
                                .to = to,
                                .tag = instr->tag,
                                .bytes = malloc(values_bytes + view->index_bytes + 8),
                                .out = {view->codec, view->value_codec, view->z, values_bytes + view->index_bytes}};
  memcpy(message.bytes, view->values, values_bytes);
  if (view->index_bytes > 0) memcpy((char *)message.bytes + values_bytes, view->index, view->index_bytes);
  network->messages = grown(network->messages, network->n, sizeof message);
  network->messages[network->n++] = message;
  struct sim_count *const count = &sim->counts[(size_t)message.from * sim->plan.n + to];
  count->n_messages++;
  assert_true(count->n_messages <= zps_peer_messages_max(&rank->plan));
  *(stream->kind == ZPS_STREAM_VECTOR ? &count->vector_bytes : &count->row_bytes) += message.out.len_bytes;
}

/* The message becomes the stream. */
static void recv(const struct sim *sim, struct sim_rank *rank, const struct zps_instr *instr) {
  const struct zps_stream *const stream = &rank->program.streams[instr->out];
  const uint32_t from = position_of(sim, instr->peer);
  uint32_t i = 0;
  while (rank->messages[i].from != from || rank->messages[i].tag != instr->tag) i++;
  const struct sim_message message = rank->messages[i];
  rank->messages[i] = rank->messages[--rank->n_messages];
  struct sim_stream *const there = &rank->streams[instr->out];
  struct zps_error error = {0};
  there->bytes = message.bytes;
  there->out = message.out;
  const zps_err_t code = zps_slice_view_init(&there->view, message.out.codec, (uint32_t)(stream->hi - stream->lo),
                                             message.out.nnz, zps_compute_width(&rank->compute, stream->kind),
                                             zps_compute_dtype(&rank->compute, stream->kind), message.out.value_codec,
                                             message.bytes, message.out.len_bytes, &error);
  if (code != ZPS_OK) fail_msg("%u to %u, tag %u: %s", from, rank->plan.me, instr->tag, error.text);
}

static void call(struct sim *sim, struct sim_rank *rank, struct zps_instr instr) {
  const double **const vectors = calloc(instr.n_in + 1, sizeof *vectors);
  uint32_t *const lengths = calloc(instr.n_in + 1, sizeof *lengths);
  double **const copies = calloc(instr.n_in + 1, sizeof *copies);
  for (uint32_t i = 0; i < instr.n_in; i++) {
    const struct zps_slice_view *const view = &rank->streams[zps_instr_ins(&rank->program, &instr)[i]].view;
    lengths[i] = view->z;
    vectors[i] = copies[i] = calloc(view->z + 1ull, sizeof(double));
    zps_compute_doubles(view, copies[i]);
  }
  sim->scheme->extend(&rank->plan, instr.phase, vectors, lengths, &rank->program);
  for (uint32_t i = 0; i < instr.n_in; i++) free(copies[i]);
  free(copies);
  free(vectors);
  free(lengths);
  grow(sim, rank);
}

static void result(struct sim_network *network, struct sim_rank *rank, uint32_t in) {
  const struct zps_stream *const stream = &rank->program.streams[in];
  const struct zps_compute_in from = {stream->lo, stream->hi, rank->streams[in].view};
  const unsigned divisor = rank->compute.op == ZPS_OP_MEAN ? rank->plan.n : 1;
  int64_t *const rows = malloc((from.view.z + 1ull) * sizeof *rows);
  char *const values = malloc((from.view.z + 1ull) * rank->compute.width * 8);
  const uint64_t row_bytes = rank->compute.width * zps_dtype_size(rank->compute.dtype);
  assert_int_equal(zps_compute_result_rows(&from, rank->compute.dtype, divisor, false, rows, values), from.view.z);
  uint64_t n_rows;
  const struct zps_compute_result to = {.dtype = rank->compute.dtype,
                                        .dense = rank->result,
                                        .dense_bytes = rank->plan.rows * row_bytes,
                                        .lo = from.lo,
                                        .hi = from.hi,
                                        .divisor = divisor};
  assert_int_equal(zps_compute_result_dense(network->scratch, &from, 1, &to, &n_rows), ZPS_OK);
  assert_int_equal(n_rows, from.view.z);
  for (uint32_t i = 0; i < from.view.z; i++) {
    assert_false(rank->covered[rows[i]]); /* no row twice */
    rank->covered[rows[i]] = true;
    assert_memory_equal(rank->result + (uint64_t)rows[i] * row_bytes, values + i * row_bytes, row_bytes);
  }
  rank->n_rows += from.view.z;
  free(rows);
  free(values);
}

static void contributed(struct sim_rank *rank, uint32_t stream) {
  const struct zps_compute_in in = sim_rank_in(rank, stream);
  assert_null(rank->contributed);
  rank->contributed = malloc((in.view.z + 1ull) * sizeof *rank->contributed);
  assert_non_null(rank->contributed);
  rank->n_contributed = zps_compute_contributed(&in, rank->contributed);
}

static void compute(struct sim_network *network, struct sim_rank *rank, uint32_t i) {
  struct zps_compute_task task = zps_compute_task_of(&rank->program, i);
  struct zps_compute_in *const ins = calloc(task.instr.n_in + 1, sizeof *ins);
  struct sim_stream *const out = &rank->streams[task.instr.out];
  for (uint32_t j = 0; j < task.instr.n_in; j++) {
    ins[j] = sim_rank_in(rank, zps_instr_ins(&rank->program, &task.instr)[j]);
  }
  task.ins = ins;
  if (zps_rng_below(&network->rng, 2) == 0 || !zps_compute_alias(&task, &out->view)) {
    const uint64_t bound = zps_compute_bound(&rank->compute, &task);
    out->bytes = malloc(bound + 8);
    assert_int_equal(zps_compute_run(&rank->compute, network->scratch, &task, out->bytes, &out->out), ZPS_OK);
    assert_true(out->out.len_bytes <= bound);
    out->view = zps_compute_view(&rank->compute, &task.out, &out->out, out->bytes);
  }
  free(ins);
}

static void carry_out(struct sim *sim, struct sim_network *network, struct sim_rank *rank, uint32_t i) {
  const struct zps_instr instr = rank->program.instrs[i];
  switch (instr.type) {
    case ZPS_INSTR_SEND:
      send(sim, network, rank, &instr);
      break;
    case ZPS_INSTR_RECV:
      recv(sim, rank, &instr);
      break;
    case ZPS_INSTR_CALL:
      call(sim, rank, instr);
      break;
    case ZPS_INSTR_SERVE:
      sim_serve(sim, network, rank, i);
      return;
    case ZPS_INSTR_RESULT:
      result(network, rank, zps_instr_ins(&rank->program, &instr)[0]);
      break;
    case ZPS_INSTR_CONTRIBUTED:
      contributed(rank, zps_instr_ins(&rank->program, &instr)[0]);
      break;
    default:
      compute(network, rank, i);
  }
  zps_run_done(&rank->run, i);
}

static void begin(struct sim *sim, struct sim_rank *rank, const struct zps_own_input *input) {
  const uint64_t row_bytes = sim->compute.width * zps_dtype_size(sim->compute.dtype);
  forget_round(rank);
  rank->serving = UINT32_MAX;
  rank->compute.origin.step = sim->round;
  rank->result = calloc(sim->plan.rows + 1, row_bytes);
  rank->covered = calloc(sim->plan.rows + 1, sizeof *rank->covered);
  rank->n_rows = 0;
  zps_program_reset(&rank->program);
  rank->program.state = rank->state;
  rank->program.round = rank->n_built++;
  sim->scheme->build(&rank->plan, &rank->program);
  const bool scan = zps_own_must_scan(&rank->program, input);
  assert_int_equal(zps_own_begin(rank->own, input, scan, NULL, NULL), ZPS_OK);
  zps_run_reset(&rank->run, &rank->program);
  grow(sim, rank);
}

/* Something that may happen next, at random: a message comes, or an instruction is carried out. False: nothing. */
static bool happen(struct sim *sim, struct sim_network *network) {
  uint64_t n_events = network->n;
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    take_due(&sim->ranks[i]);
    n_events += sim->ranks[i].n_due;
  }
  if (n_events == 0) return false;
  uint64_t which = zps_rng_below(&network->rng, n_events);
  if (which < network->n) {
    const struct sim_message message = network->messages[which];
    struct sim_rank *const rank = &sim->ranks[message.to];
    network->messages[which] = network->messages[--network->n];
    rank->messages = grown(rank->messages, rank->n_messages, sizeof message);
    rank->messages[rank->n_messages++] = message;
    announce(sim, rank);
    return true;
  }
  which -= network->n;
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    struct sim_rank *const rank = &sim->ranks[i];
    if (which < rank->n_due) {
      const uint32_t instr = rank->due[which];
      rank->due[which] = rank->due[--rank->n_due];
      carry_out(sim, network, rank, instr);
      return true;
    }
    which -= rank->n_due;
  }
  return false;
}

static struct sim_network network_of(const struct sim *sim) {
  struct sim_network network = {.rng = {sim->seed + 0x51ull * sim->round}};
  assert_int_equal(zps_compute_scratch_create(&network.scratch), ZPS_OK);
  memset(sim->counts, 0, (size_t)sim->plan.n * sim->plan.n * sizeof *sim->counts);
  return network;
}

static void network_end(struct sim *sim, struct sim_network *network) {
  for (uint32_t i = 0; i < network->n; i++) free(network->messages[i].bytes);
  free(network->messages);
  zps_compute_scratch_destroy(network->scratch);
  sim->round++;
}

void sim_run(struct sim *sim, const struct zps_own_input *inputs) {
  const uint32_t n = sim->plan.n;
  struct sim_network network = network_of(sim);
  for (uint32_t i = 0; i < n; i++) begin(sim, &sim->ranks[i], &inputs[i]);
  for (sim->n_events = 0; happen(sim, &network); sim->n_events++) continue;
  const uint64_t bytes = sim->plan.rows * sim->compute.width * zps_dtype_size(sim->compute.dtype);
  for (uint32_t i = 0; i < n; i++) {
    const struct sim_rank *const rank = &sim->ranks[i];
    if (!zps_run_over(&rank->run)) fail_msg("%s, n = %u: position %u waits for ever", sim->scheme->name, n, i);
    assert_int_equal(rank->n_messages, 0);
    assert_memory_equal(rank->result, sim->ranks[0].result, bytes);
    assert_memory_equal(rank->covered, sim->ranks[0].covered, sim->plan.rows);
  }
  network_end(sim, &network);
}

static uint32_t count_done(const struct sim *sim) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < sim->plan.n; i++)
    n += sim->ranks[i].program.n_instrs > 0 && zps_run_over(&sim->ranks[i].run);
  return n;
}

uint32_t sim_run_failing(struct sim *sim, const struct zps_own_input *inputs, uint32_t n_done, uint64_t n_events) {
  struct sim_network network = network_of(sim);
  const uint32_t absent = (uint32_t)zps_rng_below(&network.rng, 4ull * sim->plan.n);
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    forget_round(&sim->ranks[i]);
    zps_program_reset(&sim->ranks[i].program);
    zps_run_reset(&sim->ranks[i].run, &sim->ranks[i].program);
    if (i != absent) begin(sim, &sim->ranks[i], &inputs[i]);
  }
  sim->n_events = 0;
  while (sim->n_events < n_events && count_done(sim) < n_done && happen(sim, &network)) sim->n_events++;
  const uint32_t n_failed = sim->plan.n - count_done(sim);
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    struct sim_rank *const rank = &sim->ranks[i];
    for (uint32_t j = 0; j < rank->n_messages; j++) free(rank->messages[j].bytes);
    rank->n_messages = 0;
    if (i != absent && !zps_run_over(&rank->run)) sim->scheme->failed(rank->state);
  }
  network_end(sim, &network);
  return n_failed;
}

const void *sim_result(const struct sim *sim, uint32_t i) {
  return sim->ranks[i].result;
}

uint64_t sim_result_rows(const struct sim *sim, uint32_t i) {
  return sim->ranks[i].n_rows;
}

const int64_t *sim_contributed(const struct sim *sim, uint32_t i, uint32_t *n_p) {
  assert_non_null(sim->ranks[i].contributed);
  *n_p = sim->ranks[i].n_contributed;
  return sim->ranks[i].contributed;
}

static void add_count(struct sim_count *sum, const struct sim_count *count) {
  sum->n_messages += count->n_messages;
  sum->row_bytes += count->row_bytes;
  sum->vector_bytes += count->vector_bytes;
}

struct sim_count sim_out(const struct sim *sim, uint32_t i) {
  struct sim_count sum = {0};
  for (uint32_t to = 0; to < sim->plan.n; to++) add_count(&sum, &sim->counts[(size_t)i * sim->plan.n + to]);
  return sum;
}

struct sim_count sim_in(const struct sim *sim, uint32_t i) {
  struct sim_count sum = {0};
  for (uint32_t from = 0; from < sim->plan.n; from++) add_count(&sum, &sim->counts[(size_t)from * sim->plan.n + i]);
  return sum;
}
