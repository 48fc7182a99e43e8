/*
 * Zero copy: dense OWN streams that lie in the gradient itself.
 *
 * A stream that this rank alone reads, to add it, need not be a copy, except in place, where results may be written
 * before it was added. A stream that peers read need not be a copy in rounds of schemes with zero copy, where
 * registering memory costs nothing: then the gradient is registered for the round. The trainer gets the gradient back
 * with the result; from then on no rank may read it, nor take for a gradient what the trainer writes there. So DONE
 * says more in these rounds: that its sender has all of its result, and that its gradient was unchanged until then. A
 * result is given to the trainer when all ranks have said DONE.
 *
 * A failed round sends ABORT to all ranks without its DONE. So no rank ends with a sum of bytes from a late read.
 * revoke.c returns the gradient to the trainer then.
 *
 * An odd number of halves is copied to be sent: their list ends with padding, which the gradient does not have.
 *
 * In place, such a scheme's result is written where the gradient was read: the sum of these rows is there, so the rank
 * that was to add them has read them.
 */
#define ZPS_LOG_COMPONENT "tensor"
#include "common/base/log.h"
#include "worker/peer/peer.h"

void zps_peer_zerocopy_begin(struct zps_peer_round *round) {
  const struct zps_round *base = &round->base;
  const struct zps_own_input *input = &round->input;
  struct zps_net *net = zps_engine_net(base->plane->engine);
  const uint64_t len = input->n_rows * zps_peer_array_row_bytes(round);
  const uint64_t rows_least =
      input->n_rows / base->tensor->peer->plan.chunks / base->tensor->peer->plan.n; /* of a block */
  struct zps_error error;
  if (!round->base.tensor->peer->scheme->zerocopy || base->in.memory != ZENPS_HOST || input->rows ||
      !zps_net_info(net)->registers_free || !zps_net_info(net)->ends_reads ||
      rows_least * zps_peer_array_row_bytes(round) <=
          ZPS_WIRE_READ_BYTES) /* every rank reads from every other, or DONE would not come from all */
    return;
  if (zps_net_mem_register(net, (void *)(uintptr_t)input->values, (size_t)len, &round->exposed, &error) != ZPS_OK)
    zps_log_debug("tensor %s: the gradient is copied: %s", base->tensor->name, error.text);
}

void zps_peer_zerocopy_end(struct zps_peer_round *round) {
  if (round->exposed.handle) zps_net_mem_release(zps_engine_net(round->base.plane->engine), &round->exposed);
}

static bool may_read(const struct zps_peer_round *round, const struct zps_instr *reader) {
  const struct zps_round *base = &round->base;
  if (reader->type == ZPS_INSTR_SUM)
    return round->base.tensor->peer->scheme->zerocopy || base->out->values != base->in.values;
  /* A rank of this host reads the segment that it has mapped. */
  return reader->type == ZPS_INSTR_SEND && round->exposed.handle && !base->plane->ranks[reader->peer].shared.maps_ours;
}

bool zps_peer_is_zerocopy(const struct zps_peer_round *round, uint32_t instr, struct zps_slice_view *view_p) {
  const struct zps_program *program = &round->program;
  const struct zps_instr *own = &program->instrs[instr];
  if (own->type != ZPS_INSTR_OWN || own->form != ZPS_FORM_ALL || round->input.rows) return false;
  const struct zps_stream *stream = &program->streams[own->out];
  if (stream->n_readers != 1 || round->run.n_calls > 0) return false;
  const struct zps_instr *reader = &program->instrs[zps_run_reader(&round->run, own->out)];
  const enum zps_value_codec value_codec = zps_own_value_codec(round->own);
  const uint64_t row_bytes = zps_peer_array_row_bytes(round), bytes = (stream->hi - stream->lo) * row_bytes;
  const uint64_t list_bytes =
      zps_values_bytes(value_codec, round->compute.dtype, (stream->hi - stream->lo) * round->compute.width);
  if (!may_read(round, reader) || (reader->type == ZPS_INSTR_SEND && list_bytes != bytes)) return false;
  const struct zps_compute_out what = {.codec = ZPS_CODEC_HOLES,
                                       .value_codec = value_codec,
                                       .nnz = (uint32_t)(stream->hi - stream->lo),
                                       .len_bytes = list_bytes};
  *view_p =
      zps_compute_view(&round->compute, stream, &what, (const char *)round->input.values + stream->lo * row_bytes);
  return true;
}

/* ------------------------------------------------------------ all ranks are through */

void zps_peer_owe_done(struct zps_peer_round *round) {
  const bool failed = round->base.machine->state == ZPS_MACHINE_FAILED;
  for (uint32_t i = 0; i < zps_peer_n_others(&round->base); i++) {
    struct zps_peer_remote *peer = &round->remotes[zps_peer_other(&round->base, i)];
    if (peer->is_told_done || peer->n_reads > 0 || !(peer->is_read || failed)) continue;
    peer->is_told_done = peer->owes_done = true;
  }
}

bool zps_peer_needs_done(const struct zps_peer_round *round, uint32_t rank) {
  const struct zps_peer_remote *peer = &round->remotes[rank];
  return round->base.tensor->peer->scheme->zerocopy && (peer->reads || peer->is_read) && !peer->done;
}

void zps_peer_check_through(struct zps_peer_round *round) {
  struct zps_round *base = &round->base;
  if (!round->decoded || zps_round_machine_over(base->machine)) return;
  for (uint32_t i = 0; i < zps_peer_n_others(base); i++)
    if (zps_peer_needs_done(round, zps_peer_other(base, i))) return;
  zps_round_event(base, ZPS_MACHINE_DECODED, ZPS_MACHINE_ALL, 0, ZPS_OK);
}

void zps_peer_decoded(struct zps_peer_round *round) {
  round->decoded = true;
  zps_peer_owe_done(round);
  zps_round_touch(&round->base);
  zps_peer_check_through(round);
}
