/* The rows that a round wants, as PULL frames: runs by partition, as many to a frame as fit, of a partition perhaps in
 * several. They go ahead of the round's pushes. */
#include <inttypes.h>
#include <string.h>

#include "worker/served/served.h"

/* Where a server's next frame begins. */
struct place {
  uint32_t p;   /* partition; n_parts: all are named */
  uint64_t run; /* of it */
};

static void next_part(const struct zps_served_round *round, uint32_t server, struct place *at) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  at->run = 0;
  do at->p++;
  while (at->p < tensor->part.n_parts &&
         (round->base.owners[at->p] != server || round->base.wants->parts[at->p].n_rows == 0));
}

void zps_served_ask_init(struct zps_served_round *round) {
  const struct zps_round_tensor *tensor = round->base.tensor;
  if (!round->base.wants) return;
  for (uint32_t p = tensor->part.n_parts; p-- > 0;) {
    struct zps_served_server *server = &round->servers[round->base.owners[p]];
    const uint32_t n_rows = round->base.wants->parts[p].n_rows;
    if (!server->asks || n_rows > 0) server->ask_part = p; /* the first with rows, or any where none has */
    server->asks = true;
    server->ask_rows += n_rows;
  }
  if (!round->base.seeks) return;
  round->sought_at = round->base.plane->rank % round->base.plane->n_servers; /* each rank another one */
  while (!round->servers[round->sought_at].asks)
    round->sought_at = (round->sought_at + 1) % round->base.plane->n_servers;
}

/* One slice: of the partition at `at`, from its run there on, in at most `room` bytes. */
static void fill_slice(const struct zps_served_round *round, struct place *at, uint8_t *bytes, size_t room,
                       struct zps_slice *slice) {
  const struct zps_wants_part *part = &round->base.wants->parts[at->p];
  uint8_t *to = bytes;
  uint32_t end = 0;
  *slice = (struct zps_slice){.partition = at->p, .codec = ZPS_WIRE_CODEC_RUNS, .is_inline = true, .data = bytes};
  for (; at->run < part->n_runs && (size_t)(to - bytes) + ZPS_RUN_BYTES_MAX <= room; at->run++) {
    const struct zps_index_run run = part->runs[at->run];
    to = zps_index_run_put(to, end, run);
    end = run.first + run.n;
    slice->nnz += run.n;
  }
  slice->len_bytes = (uint64_t)(to - bytes);
}

/* There is no step before step 0. */
static uint32_t oldest_age(const struct zps_round *base) {
  return base->staleness < base->step ? base->staleness : (uint32_t)base->step;
}

static struct place fill_frame(const struct zps_served_round *round, uint32_t server, uint32_t timeout_ms,
                               uint8_t *bytes, struct zps_frame *frame, uint64_t *rows_p) {
  const struct zps_served_server *state = &round->servers[server];
  struct zps_frame_round *pull = &frame->u.round;
  struct place at = {.p = state->ask_part, .run = state->ask_run};
  size_t used = 0;
  *rows_p = 0;
  frame->header = (struct zps_frame_header){.type = round->base.seeks ? ZPS_FRAME_SEEK : ZPS_FRAME_PULL};
  *pull = (struct zps_frame_round){.tensor = round->base.tensor->id,
                                   .step = round->base.step,
                                   .total_nnz = state->ask_rows,
                                   .timeout_ms = timeout_ms,
                                   .seek = round->base.seeks ? round->seek : 0,
                                   .age = round->is_found ? round->age : 0,
                                   .age_max = round->is_found ? round->age : oldest_age(&round->base)};
  do {
    struct zps_slice *slice = &pull->slices[pull->n_slices];
    fill_slice(round, &at, bytes + used, ZPS_WIRE_INLINE_MAX - used, slice);
    if (slice->nnz == 0 && pull->n_slices > 0) break; /* no room */
    used += slice->len_bytes;
    *rows_p += slice->nnz;
    pull->n_slices++;
    if (at.run == round->base.wants->parts[at.p].n_runs) next_part(round, server, &at);
  } while (at.p < round->base.tensor->part.n_parts && pull->n_slices < ZPS_WIRE_SLICES_MAX);
  return at;
}

zps_err_t zps_served_ask(struct zps_served_round *round, uint32_t server, uint32_t timeout_ms) {
  struct zps_served_server *state = &round->servers[server];
  struct zps_link *link = round->base.plane->servers[server].link;
  if (round->base.seeks && !round->is_found && server != round->sought_at) return ZPS_OK;
  while (state->asks) {
    uint8_t bytes[ZPS_WIRE_INLINE_MAX];
    struct zps_frame frame;
    uint64_t rows;
    const struct place next = fill_frame(round, server, timeout_ms, bytes, &frame, &rows);
    const zps_err_t err = zps_link_send(link, &frame);
    if (err != ZPS_OK) return err;
    for (uint32_t i = 0; i < frame.u.round.n_slices; i++)
      round->base.stats.payload_out += frame.u.round.slices[i].len_bytes;
    round->base.stats.bytes_out += frame.len_bytes;
    state->announced = true;
    state->ask_part = next.p;
    state->ask_run = next.run;
    state->ask_rows -= rows;
    state->asks = state->ask_rows > 0;
  }
  return ZPS_OK;
}

bool zps_served_found(struct zps_served_round *round, uint32_t server, const struct zps_frame_round *found) {
  const uint32_t oldest = oldest_age(&round->base);
  const bool is_first = !round->is_found && server == round->sought_at;
  if (round->is_found ? found->age == round->age : is_first && found->age <= oldest) {
    round->is_found = true;
    round->age = found->age;
    round->base.sum_step = round->base.step - found->age;
    return true;
  }
  zps_round_fail(&round->base, ZPS_ERR_PROTOCOL,
                 "server %u (%s) announces the sum of step %" PRIu64 ", where %s%" PRIu64 " was sought", server,
                 round->base.plane->servers[server].name, found->step - found->age,
                 round->is_found ? "that of step " : "the newest from step ",
                 round->is_found ? round->base.sum_step : round->base.step - oldest);
  return false;
}
