#include "server/shard/pull.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/enlarge.h"
#include "common/codec/runs.h"
#include "server/shard/job.h"
#include "server/shard/publish.h"
#include "server/shard/quorum.h"
#include "server/shard/quota.h"
#include "server/shard/round.h"
#include "server/shard/shard_impl.h"
#include "server/shard/step_replies.h"
#include "server/shard/sum.h"
#include "server/shard/tensor.h"

/* ---- life ---- */

static struct zps_shard_pull *find(const struct zps_tensor *tensor, uint32_t rank, uint64_t step, bool is_seek) {
  for (const struct zps_shard_round *round = tensor->rounds; round; round = round->next)
    for (struct zps_shard_pull *pull = round->pulls; pull; pull = pull->next)
      if (pull->rank == rank && pull->question.step == step && pull->question.is_seek == is_seek) return pull;
  return NULL;
}

static zps_err_t create(struct zps_shard_round *round, uint32_t rank, const struct zps_question *question,
                        struct zps_shard_pull **pull_p, struct zps_error *error) {
  const uint32_t n_parts = round->machine->n_parts;
  struct zps_shard_pull *pull;
  const uint64_t bytes =
      sizeof *pull + n_parts * (sizeof pull->picks[0] + sizeof pull->sums[0] + sizeof pull->ready[0]);
  const zps_err_t err = zps_quota_take_wants(round->tensor->job, bytes, error);
  if (err) return err;
  pull = calloc(1, sizeof *pull + n_parts * sizeof pull->picks[0]);
  if (pull) pull->sums = calloc(n_parts, sizeof(void *));
  if (pull) pull->ready = calloc(n_parts, sizeof pull->ready[0]);
  if (!pull || !pull->sums || !pull->ready) {
    if (pull) free(pull->sums);
    if (pull) free(pull->ready);
    free(pull);
    zps_quota_give_wants(round->tensor->job, bytes);
    return zps_fail(error, ZPS_ERR_NOMEM, "the server is out of memory");
  }
  pull->wants_bytes = bytes;
  pull->shard = round->tensor->job->shard;
  pull->round = round;
  pull->rank = rank;
  pull->question = *question;
  pull->n_parts = n_parts;
  for (uint32_t part = 0; part < n_parts; part++) pull->picks[part] = (struct zps_pick){.pull = pull, .part = part};
  pull->next = round->pulls;
  round->pulls = pull;
  *pull_p = pull;
  return ZPS_OK;
}

/* Frees what it holds; its own memory waits, because callers further up still look at it. */
static void release(struct zps_shard_pull *pull) {
  struct zps_shard *shard = pull->shard;
  struct zps_shard_pull **link = &pull->round->pulls;
  while (*link != pull) link = &(*link)->next;
  *link = pull->next;
  for (uint32_t part = 0; part < pull->n_parts; part++) {
    zps_pick_forget(&pull->picks[part]);
    zps_shard_sum_unref(&pull->sums[part]);
  }
  zps_quota_give_wants(pull->round->tensor->job, pull->wants_bytes);
  pull->round = NULL;
  pull->next = shard->buried_pulls;
  shard->buried_pulls = pull;
}

void zps_pulls_bury(struct zps_shard *shard) {
  for (struct zps_shard_pull *pull; (pull = shard->buried_pulls) != NULL;) {
    shard->buried_pulls = pull->next;
    free(pull->sums);
    free(pull->ready);
    free(pull);
  }
}

static void end(struct zps_shard_pull *pull) {
  struct zps_shard_round *round = pull->round;
  release(pull);
  zps_shard_round_tell(round, .type = ZPS_SHARD_PULLED, .rank = pull->rank);
}

bool zps_pull_end(struct zps_tensor *tensor, uint32_t rank, uint64_t step, bool is_seek) {
  struct zps_shard_pull *pull = find(tensor, rank, step, is_seek);
  if (pull) end(pull);
  return pull;
}

void zps_pulls_gone(struct zps_tensor *tensor, uint32_t rank) {
  for (struct zps_shard_round *round = tensor->rounds, *next_round; round; round = next_round) {
    next_round = round->next;
    for (struct zps_shard_pull *pull = round->pulls, *next; pull; pull = next) {
      next = pull->next;
      if (pull->rank == rank) end(pull);
    }
  }
}

static void tell(const struct zps_shard_pull *pull, const struct zps_frame_abort *abort) {
  struct zps_frame_abort own = *abort;
  own.tensor = pull->round->tensor->id;
  zps_reply(&pull->round->tensor->job->members[pull->rank], &pull->question, &own);
}

void zps_pulls_end(struct zps_shard_round *round, const struct zps_frame_abort *abort) {
  for (struct zps_shard_pull *pull; (pull = round->pulls) != NULL;) {
    if (abort) tell(pull, abort);
    release(pull);
  }
}

/* ---- answers ---- */

/* Small answers wait for the others, and travel together. */
static void send_ready(struct zps_shard_pull *pull) {
  bool any_large = false;
  for (uint32_t i = 0; i < pull->n_ready; i++) any_large |= !zps_publish_is_small(pull->sums[pull->ready[i]]);
  if (!any_large && pull->n_sent + pull->n_ready < pull->n_parts) return;
  zps_publish_send(&(struct zps_outgoing){.round = pull->round,
                                          .step = pull->question.step,
                                          .is_found = pull->question.is_seek,
                                          .seek = pull->question.seek,
                                          .age = (uint32_t)(pull->question.step - pull->round->machine->config.step),
                                          .rank = pull->rank,
                                          .sums = pull->sums,
                                          .parts = pull->ready,
                                          .n_parts = pull->n_ready});
  for (uint32_t i = 0; i < pull->n_ready; i++)
    if (zps_publish_is_small(pull->sums[pull->ready[i]])) zps_shard_sum_unref(&pull->sums[pull->ready[i]]);
  pull->any_remote |= any_large;
  pull->n_sent += pull->n_ready;
  pull->n_ready = 0;
  if (pull->n_sent == pull->n_parts && !pull->any_remote) end(pull);
}

void zps_pull_picked(struct zps_pick *pick, zps_err_t code, struct zps_shard_sum *sum) {
  struct zps_shard_pull *pull = pick->pull;
  if (code == ZPS_OK) {
    pull->sums[pick->part] = sum;
    pull->ready[pull->n_ready++] = pick->part;
    send_ready(pull);
    return;
  }
  const struct zps_tensor *tensor = pull->round->tensor;
  zps_reply_text(&tensor->job->members[pull->rank], &pull->question, tensor, code, "partition %u: %s",
                 tensor->partitions[pick->part], zps_err_str(code));
  end(pull);
}

void zps_pulls_answer(struct zps_shard_round *round, uint32_t part) {
  for (struct zps_shard_pull *pull = round->pulls, *next; pull; pull = next) {
    next = pull->next;
    if (pull->is_whole) zps_pick_start(&pull->picks[part]);
    if (zps_shard_machine_over(round->machine)) return;
  }
}

static void answer_all(struct zps_shard_pull *pull) {
  for (uint32_t part = 0; pull->round && part < pull->n_parts; part++)
    if (pull->round->sums[part]) zps_pick_start(&pull->picks[part]);
}

/* ---- rounds that are kept ---- */

static void forget(struct zps_shard_round *round) {
  zps_shard_round_tell(round, .type = ZPS_SHARD_FORGET);
}

/* A late rank that has announced all is told the sums when no read from it is under way. */
static bool may_forget(const struct zps_shard_round *round) {
  for (uint32_t rank = 0; round->tensor->quorum > 0 && rank < round->machine->world; rank++)
    if (zps_shard_machine_awaits(round->machine, rank)) return false;
  return zps_shard_machine_only_keeps(round->machine);
}

/* How many sums that wait for pulls the tensor may have. */
static uint32_t kept_of(const struct zps_tensor *tensor) {
  if (tensor->quorum > 0) return ZPS_SHARD_KEPT_LATE;
  return tensor->staleness < ZPS_SHARD_KEPT ? ZPS_SHARD_KEPT : tensor->staleness + 1;
}

void zps_pulls_limit(const struct zps_shard_round *round) {
  const struct zps_tensor *tensor = round->tensor;
  uint32_t n = 1;
  struct zps_shard_round *oldest = NULL;
  if (round->machine->state != ZPS_SHARD_PUBLISHED) return;
  for (struct zps_shard_round *other = tensor->rounds; other; other = other->next) {
    if (other == round || !may_forget(other)) continue;
    if (!oldest || other->machine->config.step < oldest->machine->config.step) oldest = other;
    n++;
  }
  if (n > kept_of(tensor)) forget(oldest);
}

bool zps_pulls_make_room(struct zps_shard *shard, const struct zps_job *job) {
  struct zps_shard_round *round = shard->oldest;
  while (round && (!may_forget(round) || (job && round->tensor->job != job))) round = round->younger;
  if (round) forget(round);
  return round;
}

/* ---- frames ---- */

/* Why the rank may not pull the round's sums; NULL: it may. */
static const char *objection(const struct zps_shard_round *round, uint32_t rank) {
  const struct zps_shard_machine *machine = round->machine;
  if (zps_shard_machine_gets_all(machine, rank)) return "this rank's push asked for all of its sum: there is no more";
  if (zps_shard_machine_has_pulled(machine, rank) && !machine->is_kept) return "this rank has pulled its sum already";
  for (uint32_t part = 0; part < machine->n_parts; part++)
    if (zps_shard_machine_part_reduced(machine, part) && !round->sums[part]) return "its sum went to all ranks";
  return NULL;
}

/* The step that answers a SEEK: the newest published one, else the oldest begun, else the newest that can still begin.
 * Where none can, the newest. */
static uint64_t sought(const struct zps_tensor *tensor, const struct zps_frame_round *seek) {
  const uint64_t newest = seek->step - seek->age, oldest = seek->step - seek->age_max;
  uint64_t begun = newest, open = newest;
  bool any_begun = false, any_open = false;
  for (uint64_t step = newest;; step--) {
    const struct zps_shard_round *round = zps_shard_round_find(tensor, step);
    if (round && round->machine->state == ZPS_SHARD_PUBLISHED) return step;
    if (round) {
      begun = step;
      any_begun = true;
    } else if (!any_open && !zps_tensor_tombstone(tensor, step)) {
      open = step;
      any_open = true;
    }
    if (step == oldest) return any_begun ? begun : open;
  }
}

/* The round of `step` is over, or could not begin. */
static void refuse(struct zps_member *member, const struct zps_tensor *tensor, const struct zps_question *question,
                   uint64_t step) {
  const struct zps_tombstone *tombstone = zps_tensor_tombstone(tensor, step);
  if (tombstone && tombstone->abort)
    zps_reply(member, question, tombstone->abort);
  else if (tombstone && tombstone->is_completed)
    zps_reply_text(member, question, tensor, ZPS_ERR_STALE,
                   "the sum of step %" PRIu64
                   " is kept no longer: servers keep a sum until all ranks that pushed apart "
                   "have pulled it, and of the sums that wait for pulls the newest %u, or fewer where memory is short",
                   step, kept_of(tensor));
  else
    zps_reply_text(member, question, tensor, ZPS_ERR_NOMEM, "the server is out of memory");
}

/* The round whose sums are pulled; NULL: the rank was told why there is none. */
static struct zps_shard_round *round_of(struct zps_member *member, struct zps_tensor *tensor,
                                        const struct zps_question *question, const struct zps_frame_round *frame,
                                        uint64_t now_ns) {
  const uint64_t step = question->is_seek ? sought(tensor, frame) : frame->step;
  struct zps_shard_round *round = zps_step_round(tensor, step, now_ns, NULL);
  const char *const why = round && !question->is_seek ? objection(round, member->rank) : NULL;
  if (round && !why) return round;
  if (why)
    zps_reply_text(member, question, tensor, ZPS_ERR_INVALID, "%s", why);
  else
    refuse(member, tensor, question, step);
  return NULL;
}

/* *is_begun_p: the round began for this pull. */
static struct zps_shard_pull *open(struct zps_member *member, struct zps_tensor *tensor,
                                   const struct zps_question *question, const struct zps_frame_round *frame,
                                   bool *is_begun_p) {
  const uint64_t now_ns = zps_clock_ns(), deadline_ns = now_ns + frame->timeout_ms * ZPS_NS_PER_MS;
  struct zps_shard_round *round = round_of(member, tensor, question, frame, now_ns);
  if (!round) return NULL;
  *is_begun_p = round->machine->deadline_ns == ZPS_NEVER;
  struct zps_shard_pull *pull = NULL;
  struct zps_error error;
  const zps_err_t err = create(round, member->rank, question, &pull, &error);
  if (err) {
    zps_reply_text(member, question, tensor, err, "rank %u: %s", member->rank, error.text);
    if (*is_begun_p) zps_shard_round_drop(round); /* nothing else ends it */
    return NULL;
  }
  pull->deadline_ns = deadline_ns;
  if (deadline_ns < pull->shard->next_deadline_ns) pull->shard->next_deadline_ns = deadline_ns;
  zps_shard_round_tell(round, .type = ZPS_SHARD_PULL, .rank = member->rank, .deadline_ns = deadline_ns,
                       .may_repeat = question->is_seek);
  return pull;
}

static zps_err_t add_run(struct zps_pick *pick, struct zps_index_run run, struct zps_error *error) {
  struct zps_shard_pull *pull = pick->pull;
  if (pick->n_runs == pick->cap_runs) {
    const uint32_t cap = pick->cap_runs ? 2 * pick->cap_runs : 4;
    const uint64_t more_bytes = (uint64_t)(cap - pick->cap_runs) * sizeof run;
    const zps_err_t err = zps_quota_take_wants(pull->round->tensor->job, more_bytes, error);
    if (err) return err;
    pull->wants_bytes += more_bytes; /* counted without memory for them, too: the pull ends then */
    if (!zps_enlarge(&pick->runs, cap, sizeof run))
      return zps_fail(error, ZPS_ERR_NOMEM, "the server is out of memory");
    pick->cap_runs = cap;
  }
  pick->runs[pick->n_runs++] = run;
  pick->n_rows += run.n;
  pick->end = run.first + run.n;
  return ZPS_OK;
}

/* The gap of a slice's first run is counted from the partition's beginning, also where earlier slices named rows. */
static zps_err_t take_slice(struct zps_shard_pull *pull, const struct zps_slice *slice, struct zps_error *error) {
  const struct zps_tensor *tensor = pull->round->tensor;
  const uint32_t part = slice->partition < tensor->partition.n_parts ? tensor->positions[slice->partition] : UINT32_MAX;
  if (part == UINT32_MAX)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "it pulls partition %u, which is not this server's", slice->partition);
  struct zps_pick *pick = &pull->picks[part];
  const uint8_t *at = slice->data, *const bytes_end = at + slice->len_bytes;
  const uint32_t before = pick->n_rows;
  for (uint32_t index = 0; at < bytes_end;) {
    struct zps_index_run run;
    zps_err_t code = zps_index_run_get(&at, bytes_end, index, tensor->sizes[part], &run, error);
    if (code == ZPS_OK && run.first < pick->end)
      code = zps_fail(error, ZPS_ERR_PROTOCOL, "it pulls rows of partition %u up to %u, and then %u", slice->partition,
                      pick->end - 1, run.first);
    if (code == ZPS_OK) code = add_run(pick, run, error);
    if (code != ZPS_OK) return code;
    index = pick->end;
  }
  if (pick->n_rows - before == slice->nnz) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "it pulls %u rows of partition %u, and says %u", pick->n_rows - before,
                  slice->partition, slice->nnz);
}

/* QSGD levels share scales and bytes with those of other rows: of such sums there are no parts. */
static zps_err_t check_rows(const struct zps_shard_pull *pull, struct zps_error *error) {
  const struct zps_tensor *tensor = pull->round->tensor;
  if (zps_values_level_bits(tensor->value_codec) == 0) return ZPS_OK;
  for (uint32_t part = 0; part < pull->n_parts; part++)
    if (pull->picks[part].n_rows != tensor->sizes[part])
      return zps_fail(error, ZPS_ERR_PROTOCOL,
                      "it pulls %u of the %u rows of partition %u; of sums whose values are %s it may pull all alone",
                      pull->picks[part].n_rows, tensor->sizes[part], tensor->partitions[part],
                      zps_values_name(tensor->value_codec));
  return ZPS_OK;
}

/* Whether the rank may ask so; else it is told why not. */
static bool check(struct zps_member *member, const struct zps_tensor *tensor, const struct zps_question *question,
                  const struct zps_frame_round *frame) {
  if (!tensor) {
    zps_reply_unknown(member, question, frame->tensor);
    return false;
  }
  if (tensor->idle && tensor->idle[member->rank]) {
    zps_reply_text(member, question, tensor, ZPS_ERR_PROTOCOL,
                   "this rank has no part in it, so it has nothing to pull");
    return false;
  }
  if (tensor->quorum > 0) {
    zps_reply_text(member, question, tensor, ZPS_ERR_PROTOCOL, "a tensor with a quorum has no pulls apart");
    return false;
  }
  if (!question->is_seek || (tensor->staleness > 0 && frame->age_max <= tensor->staleness)) return true;
  zps_reply_text(member, question, tensor, ZPS_ERR_PROTOCOL,
                 "rank %u seeks a sum up to %u steps older, but the tensor was opened with a staleness of %u",
                 member->rank, frame->age_max, tensor->staleness);
  return false;
}

void zps_pull_frame(struct zps_member *member, const struct zps_frame_round *frame, bool is_seek) {
  struct zps_tensor *tensor = zps_tensor_find(member->job, frame->tensor);
  const struct zps_question question = {.step = frame->step, .is_seek = is_seek, .seek = frame->seek};
  if (!check(member, tensor, &question, frame)) return;
  struct zps_shard_pull *pull = find(tensor, member->rank, frame->step, is_seek);
  struct zps_error error;
  uint64_t nnz = 0;
  bool is_begun = false;
  if (!pull && !(pull = open(member, tensor, &question, frame, &is_begun))) return;
  zps_err_t code = ZPS_OK;
  if (pull->is_whole) code = zps_fail(&error, ZPS_ERR_PROTOCOL, "this rank is pulling the step already");
  for (uint32_t i = 0; code == ZPS_OK && i < frame->n_slices; i++) {
    code = take_slice(pull, &frame->slices[i], &error);
    nnz += frame->slices[i].nnz;
  }
  const bool is_whole = nnz == frame->total_nnz;
  if (code == ZPS_OK && is_whole) code = check_rows(pull, &error);
  if (code != ZPS_OK) {
    zps_reply_text(member, &question, tensor, code, "rank %u: %s", member->rank, error.text);
    if (is_begun)
      zps_shard_round_drop(pull->round);
    else
      end(pull);
    return;
  }
  pull->is_whole = is_whole;
  if (pull->is_whole) answer_all(pull);
}
