/* The servers of a simulated round: they sum the pushes of ranks, and give the sums back to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/support/sim_impl.h"

/* Adds the rows that a rank pushes to the sums, row by row. */
static void push(const struct sim_rank *rank, double *sums, bool *touched) {
  const struct zps_instr *const instr = &rank->program.instrs[rank->serving];
  const uint32_t width = rank->compute.width;
  for (uint32_t i = 0; i < instr->n_in; i++) {
    const struct zps_compute_in in = sim_rank_in(rank, zps_instr_ins(&rank->program, instr)[i]);
    int64_t *const rows = malloc((in.view.z + 1ull) * sizeof *rows);
    void *const values = malloc((in.view.z + 1ull) * width * 8);
    const uint32_t n = zps_compute_result_rows(&in, rank->compute.dtype, 1, false, rows, values);
    for (uint64_t j = 0; j < (uint64_t)n * width; j++) {
      const uint64_t row = (uint64_t)rows[j / width], at = row * width + j % width;
      const bool is_f32 = rank->compute.dtype == ZPS_DTYPE_F32;
      const double value = is_f32 ? (double)((float *)values)[j] : ((double *)values)[j];
      const enum zps_op op = rank->compute.op;
      if (op == ZPS_OP_MAX || op == ZPS_OP_MIN) {
        if (!touched[row] || (op == ZPS_OP_MAX ? value > sums[at] : value < sums[at])) sums[at] = value;
      } else { /* in the dtype */
        sums[at] = is_f32 ? (double)((float)sums[at] + (float)value) : sums[at] + value;
      }
      if (j % width == width - 1) touched[row] = true;
    }
    free(rows);
    free(values);
  }
}

/* The answer of servers to a rank. */
static void pull(struct sim_network *network, struct sim_rank *rank, const double *sums, const bool *touched) {
  const struct zps_stream *const stream = &rank->program.streams[rank->program.instrs[rank->serving].out];
  struct sim_stream *const out = &rank->streams[rank->program.instrs[rank->serving].out];
  const uint32_t width = rank->compute.width;
  int64_t *const rows = malloc((stream->hi + 1) * sizeof *rows);
  char *const values = malloc((stream->hi + 1) * width * 8);
  uint64_t n = 0;
  for (uint64_t row = 0; row < stream->hi; row++) {
    if (!touched[row]) continue;
    for (uint32_t c = 0; c < width; c++) {
      if (rank->compute.dtype == ZPS_DTYPE_F32) {
        ((float *)values)[n * width + c] = (float)sums[row * width + c];
      } else {
        ((double *)values)[n * width + c] = sums[row * width + c];
      }
    }
    rows[n++] = (int64_t)row;
  }
  const uint64_t bound = zps_compute_rows_bound(&rank->compute, stream, n);
  out->bytes = malloc(bound + 8);
  assert_int_equal(zps_compute_rows(&rank->compute, network->scratch, stream, rows, values, n, out->bytes, &out->out),
                   ZPS_OK);
  assert_true(out->out.len_bytes <= bound);
  out->view = zps_compute_view(&rank->compute, stream, &out->out, out->bytes);
  zps_run_done(&rank->run, rank->serving);
  rank->serving = UINT32_MAX;
  free(rows);
  free(values);
}

void sim_serve(struct sim *sim, struct sim_network *network, struct sim_rank *rank, uint32_t instr) {
  uint32_t n_serving = 0, n_masters = 0;
  rank->serving = instr;
  for (uint32_t i = 0; i < sim->plan.n; i++) {
    n_serving += sim->ranks[i].serving != UINT32_MAX;
    for (uint32_t j = 0; j < sim->ranks[i].program.n_instrs; j++)
      n_masters += sim->ranks[i].program.instrs[j].type == ZPS_INSTR_SERVE;
  }
  if (n_serving < n_masters) return;
  double *const sums = calloc(sim->plan.rows * sim->compute.width + 1, sizeof *sums);
  bool *const touched = calloc(sim->plan.rows + 1, sizeof *touched);
  for (uint32_t i = 0; i < sim->plan.n; i++)
    if (sim->ranks[i].serving != UINT32_MAX) push(&sim->ranks[i], sums, touched);
  for (uint32_t i = 0; i < sim->plan.n; i++)
    if (sim->ranks[i].serving != UINT32_MAX) pull(network, &sim->ranks[i], sums, touched);
  free(sums);
  free(touched);
}
