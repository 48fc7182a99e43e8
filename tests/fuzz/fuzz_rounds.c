/* Takes arbitrary bytes for what happens to a server's round: two bytes an event. The round's machine is compared after
 * each with a model that counts nothing as it goes: it keeps what each rank and partition has been through, and says
 * from that alone which state the round is in, what is to be done, and what may be asked. */
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "server/shard/machine.h"
#include "tests/fuzz/must.h"

enum { RANKS = 4, PARTS = 4, HEAD_BYTES = 3, STEP = 7 };
enum progress { NONE, READING, HERE };

struct rank {
  enum progress parts[PARTS];
  bool idle, pushed, apart, taken, pulled, done, gone;
  unsigned pulls; /* under way */
};

struct model {
  uint32_t world, n_parts;
  struct rank ranks[RANKS];
  bool summed[PARTS], remote[PARTS], kept, retired, aborted;
  uint64_t deadline_ns;
};

/* ---- what follows from what has happened ---- */

static bool all(const struct rank *rank, uint32_t n_parts, enum progress at_least) {
  for (uint32_t part = 0; part < n_parts; part++)
    if (rank->parts[part] < at_least) return false;
  return true;
}

static bool is_whole(const struct model *model, uint32_t part) {
  for (uint32_t r = 0; r < model->world; r++)
    if (!model->ranks[r].idle && model->ranks[r].parts[part] != HERE) return false;
  return true;
}

static uint32_t count(const bool *of, uint32_t n) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < n; i++) sum += of[i];
  return sum;
}

static uint32_t remote_sums(const struct model *model) {
  uint32_t sum = 0;
  for (uint32_t part = 0; part < model->n_parts; part++) sum += model->summed[part] && model->remote[part];
  return sum;
}

static bool is_reading(const struct rank *rank) {
  return !rank->idle && !rank->apart && !rank->done && !rank->gone;
}

static bool is_awaited(const struct rank *rank) {
  return rank->apart && !rank->pulled && !rank->done && !rank->gone;
}

static uint32_t count_ranks(const struct model *model, bool (*is)(const struct rank *rank)) {
  uint32_t sum = 0;
  for (uint32_t r = 0; r < model->world; r++) sum += is(&model->ranks[r]);
  return sum;
}

static uint32_t pulls(const struct model *model) {
  uint32_t sum = 0;
  for (uint32_t r = 0; r < model->world; r++) sum += model->ranks[r].pulls;
  return sum;
}

static bool is_published(const struct model *model) {
  return count(model->summed, model->n_parts) == model->n_parts;
}

static enum zps_shard_machine_state state_of(const struct model *model) {
  if (model->aborted) return ZPS_SHARD_ABORTED;
  if (model->retired) return ZPS_SHARD_RETIRED;
  if (is_published(model)) return ZPS_SHARD_PUBLISHED;
  for (uint32_t part = 0; part < model->n_parts; part++)
    if (!is_whole(model, part)) return ZPS_SHARD_COLLECTING;
  return ZPS_SHARD_REDUCING;
}

static bool keeps(const struct model *model) {
  return model->kept || pulls(model) > 0 || count_ranks(model, is_awaited) > 0;
}

/* ---- events ---- */

static void expect(struct zps_shard_machine_actions *to, enum zps_shard_machine_action_type type, uint32_t rank,
                   uint32_t part) {
  must(to->n < ZPS_SHARD_ACTIONS_MAX);
  to->list[to->n++] = (struct zps_shard_machine_action){.type = type, .rank = rank, .part = part};
}

static void expect_abort(struct model *model, struct zps_shard_machine_actions *to, zps_err_t code) {
  model->aborted = true;
  to->abort.code = code;
  expect(to, ZPS_SHARD_ABORT, ZPS_SHARD_NO_RANK, 0);
}

static void expect_end(struct model *model, struct zps_shard_machine_actions *to) {
  if (!is_published(model) || keeps(model)) return;
  if (remote_sums(model) > 0 && count_ranks(model, is_reading) > 0) return;
  model->retired = true;
  expect(to, ZPS_SHARD_RETIRE, ZPS_SHARD_NO_RANK, 0);
}

static void arrive(struct model *model, uint32_t r, uint32_t part, struct zps_shard_machine_actions *to) {
  struct rank *rank = &model->ranks[r];
  rank->parts[part] = HERE;
  if (rank->apart && all(rank, model->n_parts, HERE)) {
    rank->taken = true;
    expect(to, ZPS_SHARD_TAKEN, r, 0);
  }
  if (is_whole(model, part)) expect(to, ZPS_SHARD_REDUCE, ZPS_SHARD_NO_RANK, part);
}

static void announced(struct model *model, const struct zps_shard_machine_event *event,
                      struct zps_shard_machine_actions *to) {
  struct rank *rank = &model->ranks[event->rank];
  const bool contradicts = rank->pushed ? rank->apart != event->is_apart : rank->pulled && !event->is_apart;
  if (rank->parts[event->part] != NONE || contradicts) {
    expect_abort(model, to, ZPS_ERR_PROTOCOL);
    return;
  }
  rank->pushed = true;
  rank->apart = event->is_apart;
  if (event->deadline_ns < model->deadline_ns) model->deadline_ns = event->deadline_ns;
  if (event->is_here) {
    arrive(model, event->rank, event->part, to);
    return;
  }
  rank->parts[event->part] = READING;
  expect(to, ZPS_SHARD_READ, event->rank, event->part);
}

static void tick(struct model *model, uint64_t now_ns, struct zps_shard_machine_actions *to) {
  bool missing = false;
  if (is_published(model) || now_ns < model->deadline_ns) return;
  for (uint32_t r = 0; r < model->world; r++)
    missing |= !model->ranks[r].idle && !all(&model->ranks[r], model->n_parts, READING);
  expect_abort(model, to, missing ? ZPS_ERR_MISSING : ZPS_ERR_TIMEOUT);
}

static void done(struct model *model, struct rank *rank, struct zps_shard_machine_actions *to) {
  if (rank->pulled) return;
  if (!rank->apart && !is_published(model)) {
    expect_abort(model, to, ZPS_ERR_PROTOCOL);
    return;
  }
  rank->done = true;
  expect_end(model, to);
}

static void happen(struct model *model, const struct zps_shard_machine_event *event,
                   struct zps_shard_machine_actions *to) {
  struct rank *rank = &model->ranks[event->rank < model->world ? event->rank : 0];
  to->n = 0;
  if (model->retired || model->aborted) return;
  const bool is_absent = rank->gone || rank->idle;
  switch (event->type) {
    case ZPS_SHARD_ANNOUNCED:
      if (!is_absent) announced(model, event, to);
      break;
    case ZPS_SHARD_LANDED:
      if (!is_absent && rank->parts[event->part] == READING) arrive(model, event->rank, event->part, to);
      break;
    case ZPS_SHARD_REDUCED:
      if (model->summed[event->part] || !is_whole(model, event->part)) break;
      model->summed[event->part] = true;
      model->remote[event->part] = !event->is_here;
      expect(to, ZPS_SHARD_PUBLISH, ZPS_SHARD_NO_RANK, event->part);
      expect_end(model, to);
      break;
    case ZPS_SHARD_DONE:
      if (!is_absent) done(model, rank, to);
      break;
    case ZPS_SHARD_GONE:
      if (is_absent) break;
      rank->gone = true;
      if (all(rank, model->n_parts, HERE))
        expect_end(model, to);
      else
        expect_abort(model, to, event->code);
      break;
    case ZPS_SHARD_CANCEL:
      if (is_absent) break;
      if (!is_published(model)) {
        expect_abort(model, to, event->code);
        break;
      }
      rank->done = true;
      expect_end(model, to);
      break;
    case ZPS_SHARD_PULL:
      if (is_absent) break;
      rank->pulls++;
      rank->pulled |= !event->may_repeat || rank->apart;
      if (event->deadline_ns < model->deadline_ns) model->deadline_ns = event->deadline_ns;
      break;
    case ZPS_SHARD_PULLED:
      rank->pulls--;
      expect_end(model, to);
      break;
    case ZPS_SHARD_FORGET:
      for (uint32_t r = 0; r < model->world; r++) model->ranks[r].done |= model->ranks[r].apart;
      model->kept = false;
      expect_end(model, to);
      break;
    case ZPS_SHARD_FAIL:
      expect_abort(model, to, event->code);
      break;
    case ZPS_SHARD_TICK:
      tick(model, event->now_ns, to);
      break;
    case ZPS_SHARD_DECIDED: /* of rounds with a quorum, which the simulation draws */
    case ZPS_SHARD_NOTIFIED:
      break;
  }
}

/* What its callers make sure of: pull.c refuses other pulls, and each pull under way ends once. */
static bool may_happen(const struct model *model, const struct zps_shard_machine_event *event) {
  const struct rank *rank = &model->ranks[event->rank];
  if (event->type == ZPS_SHARD_PULLED) return rank->pulls > 0;
  if (event->type != ZPS_SHARD_PULL || event->may_repeat) return true;
  return !(rank->pushed && !rank->apart) && (!rank->pulled || model->kept);
}

/* ---- the comparison ---- */

static void compare_abort(const struct model *model, const struct zps_shard_machine_event *event,
                          const struct zps_frame_abort *told, zps_err_t code) {
  const char *const head = "job j, tensor t, step 7: ";
  must(told->code == code && told->step == STEP);
  must(memchr(told->text, '\0', sizeof told->text) != NULL);
  must(strncmp(told->text, head, strlen(head)) == 0 && told->text[strlen(head)]);
  must(told->n_ranks <= ZPS_WIRE_RANKS_MAX);
  if (event->n_blamed == 0)
    for (uint32_t i = 0; i < told->n_ranks; i++) must(told->ranks[i] < model->world);
}

static void compare(const struct model *model, const struct zps_shard_machine *machine) {
  const bool over = model->retired || model->aborted;
  must(machine->state == state_of(model));
  must(zps_shard_machine_over(machine) == over);
  for (uint32_t r = 0; r < model->world; r++) {
    const struct rank *rank = &model->ranks[r];
    must(zps_shard_machine_rank_gone(machine, r) == (rank->gone || rank->idle));
    must(zps_shard_machine_has_pulled(machine, r) == rank->pulled);
    for (uint32_t part = 0; part < model->n_parts; part++)
      must(zps_shard_machine_has(machine, r, part) == (rank->parts[part] != NONE));
    const bool gets_all = rank->pushed && !rank->gone && !rank->apart;
    must(zps_shard_machine_gets_all(machine, r) == gets_all);
    must(zps_shard_machine_wants_abort(machine, r) == (rank->pushed && !rank->done && !rank->gone && !rank->taken));
    must(zps_shard_machine_reads(machine, r) ==
         (state_of(model) == ZPS_SHARD_PUBLISHED && remote_sums(model) > 0 && gets_all && !rank->done));
  }
  if (over) return;
  const bool is_read = count_ranks(model, is_reading) == 0 || remote_sums(model) == 0;
  const bool waits = model->kept || count_ranks(model, is_awaited) > 0;
  must(machine->deadline_ns == model->deadline_ns);
  must(zps_shard_machine_keeps(machine) == keeps(model));
  must(zps_shard_machine_only_keeps(machine) == (is_published(model) && waits && pulls(model) == 0 && is_read));
}

static void begin(struct model *model, struct zps_shard_machine *machine, uint8_t idle, bool kept) {
  static const uint32_t partitions[PARTS] = {3, 8, 13, 18};
  static uint8_t idle_ranks[RANKS];
  *model = (struct model){.world = machine->world, .n_parts = machine->n_parts, .kept = kept, .deadline_ns = ZPS_NEVER};
  for (uint32_t r = 0; r < model->world; r++) idle_ranks[r] = model->ranks[r].idle = r > 0 && (idle >> r & 1);
  zps_shard_machine_start(machine, &(struct zps_shard_machine_config){.job = "j",
                                                                      .tensor = "t",
                                                                      .step = STEP,
                                                                      .partitions = partitions,
                                                                      .idle = idle ? idle_ranks : NULL,
                                                                      .is_kept = kept});
}

/* Low bits of the first byte: its type; of the second: rank, then partition, then what else there is to say. */
static bool event_of(const struct model *model, const uint8_t *bytes, struct zps_shard_machine_event *event) {
  static const zps_err_t codes[] = {ZPS_ERR_CANCELED, ZPS_ERR_PEER_LOST, ZPS_ERR_NOMEM, ZPS_ERR_QUOTA};
  static const uint32_t blamed[] = {5, 900};
  const unsigned type = bytes[0] & 15;
  if (type > ZPS_SHARD_TICK) return false;
  *event = (struct zps_shard_machine_event){.type = (enum zps_shard_machine_event_type)type,
                                            .rank = (bytes[1] & 3) % model->world,
                                            .part = model->n_parts ? (bytes[1] >> 2 & 3) % model->n_parts : 0,
                                            .is_here = bytes[1] & 16,
                                            .is_apart = bytes[1] & 32,
                                            .may_repeat = bytes[1] & 16,
                                            .deadline_ns = 100 + (uint64_t)(bytes[0] >> 4) * 10,
                                            .now_ns = 100 + (uint64_t)(bytes[0] >> 4) * 10,
                                            .code = codes[bytes[0] >> 6],
                                            .text = "why",
                                            .blamed = blamed,
                                            .n_blamed = bytes[1] & 64 ? 2 : 0};
  if (event->type == ZPS_SHARD_FAIL && bytes[1] & 128) event->rank = ZPS_SHARD_NO_RANK;
  if (model->n_parts > 0) return true;
  return event->type > ZPS_SHARD_REDUCED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct model model;
  struct zps_shard_machine *machine;
  struct zps_shard_machine_event event;
  struct zps_shard_machine_actions actions, expected;
  if (size < HEAD_BYTES) return 0;
  must(zps_shard_machine_create(1 + data[0] % RANKS, data[1] % (PARTS + 1), &machine) == ZPS_OK);
  begin(&model, machine, data[2] & 15, data[2] & 16);
  for (size_t at = HEAD_BYTES; at + 1 < size; at += 2) {
    if ((data[at] & 15) == 15) { /* used again */
      begin(&model, machine, data[at + 1] & 15, data[at + 1] & 16);
      continue;
    }
    if (!event_of(&model, data + at, &event)) continue;
    if (event.rank != ZPS_SHARD_NO_RANK && !may_happen(&model, &event)) continue;
    happen(&model, &event, &expected);
    zps_shard_machine_step(machine, &event, &actions);
    must(actions.n == expected.n);
    for (unsigned i = 0; i < actions.n; i++) {
      const struct zps_shard_machine_action *is = &actions.list[i], *should = &expected.list[i];
      must(is->type == should->type && is->rank == should->rank && is->part == should->part);
      if (is->type == ZPS_SHARD_ABORT) compare_abort(&model, &event, &actions.abort, expected.abort.code);
    }
    compare(&model, machine);
  }
  zps_shard_machine_destroy(machine);
  return 0;
}
