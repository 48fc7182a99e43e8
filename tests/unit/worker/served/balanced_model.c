#include "tests/unit/worker/served/balanced_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

const uint32_t model_owners[N_PARTS] = {0, 1, 0};
const uint32_t model_other_owners[N_PARTS] = {1, 2, 1};
const struct zps_round_machine_plan model_plan = {
    .n_parts = N_PARTS, .n_servers = N_SERVERS, .n_stripes = 1, .owners = model_owners, .tensor = "t"};
const struct zps_round_machine_plan model_striped_plan = {
    .n_parts = 2, .n_servers = N_SERVERS, .n_stripes = 2, .owners = model_owners, .tensor = "t"};

static bool all_at_least(const struct model *model, unsigned progress) {
  for (unsigned p = 0; p < model->n_parts; p++) {
    if (model->progress[p] < progress) return false;
  }
  return true;
}

void model_check_actions(struct model *model) {
  for (uint32_t i = 0; i < model->machine->n_actions; i++) {
    const struct zps_round_machine_action *action = &model->machine->actions[i];
    const uint32_t arg = action->arg;
    assert_int_equal(model->completes, 0); /* nothing after COMPLETE */
    switch (action->type) {
      case ZPS_MACHINE_DO_WRITE:
        assert_int_equal(arg, model->writes);
        model->writes++;
        break;
      case ZPS_MACHINE_DO_ANNOUNCE:
        assert_false(model->announce[arg]);
        assert_true(model->progress[arg] == 1 || model->again[arg]);
        model->announce[arg] = true;
        break;
      case ZPS_MACHINE_DO_READ:
        assert_false(model->read[arg]);
        assert_int_equal(model->progress[arg], 2);
        model->read[arg] = true;
        break;
      case ZPS_MACHINE_DO_FORGET:
        assert_true(model->forgotten[arg]);
        model->forgotten[arg] = false;
        break;
      case ZPS_MACHINE_DO_CLEAR:
        assert_true(all_at_least(model, 1)); /* the gradient's memory may be the result's */
        assert_false(model->clear || model->whole);
        assert_int_equal(model->kind.plan->n_stripes, 1);
        model->clear = true;
        break;
      case ZPS_MACHINE_DO_STRIPE: /* of one partition */
        if (!model->kind.apart) assert_true(all_at_least(model, 1));
        assert_false(model->whole);
        assert_int_equal(model->kind.plan->n_stripes, model->n_parts);
        assert_int_equal(model->progress[arg], 3);
        assert_false(model->decode[arg]);
        model->decode[arg] = true;
        break;
      case ZPS_MACHINE_DO_DECODE:
        if (model->whole) {
          assert_int_equal(arg, ZPS_MACHINE_ALL);
          assert_true(all_at_least(model, 3));
          assert_false(model->decode_all);
          model->decode_all = true;
        } else {
          assert_true(model->cleared);
          assert_int_equal(model->progress[arg], 3);
          assert_false(model->decode[arg]);
          model->decode[arg] = true;
        }
        break;
      case ZPS_MACHINE_DO_RETIRE:
        for (unsigned p = 0; p < model->n_parts; p++)
          assert_true(model->owners[p] != arg || (model->progress[p] >= 3 && !model->again[p]));
        model->retired[arg]++;
        break;
      case ZPS_MACHINE_DO_ABORT:
        assert_int_equal(model->retired[arg], 0);
        model->aborted[arg]++;
        break;
      case ZPS_MACHINE_DO_COMPLETE:
        assert_true(zps_round_machine_over(model->machine));
        model->completes++;
        break;
    }
  }
}

void model_feed(struct model *model, struct zps_round_machine_event event, uint64_t now) {
  switch (event.type) {
    case ZPS_MACHINE_SCANNED:
      model->n_scanned++;
      break;
    case ZPS_MACHINE_CLEARED:
      model->cleared = true;
      break;
    case ZPS_MACHINE_WRITTEN:
      model->progress[event.partition] = 1;
      break;
    case ZPS_MACHINE_RESULT:
      if (!model->again[event.partition]) model->progress[event.partition] = 2;
      model->again[event.partition] = false;
      break;
    case ZPS_MACHINE_LANDED:
      model->progress[event.partition] = 3;
      break;
    case ZPS_MACHINE_DECODED:
      if (event.partition == ZPS_MACHINE_ALL) {
        model->decoded_all = true;
      } else {
        model->progress[event.partition] = 4;
      }
      break;
    default:
      break;
  }
  zps_round_machine_step(model->machine, &event, now);
  model_check_actions(model);
}

void model_remap(struct model *model) {
  model->owners = model->machine->plan.owners = model_other_owners;
  for (unsigned p = 0; p < model->n_parts; p++) {
    model->again[p] = model->progress[p] >= 3;
    model->forgotten[p] = model->progress[p] == 2;
    if (model->progress[p] == 2) model->progress[p] = 1;
    model->announce[p] = false;
    if (!model->again[p]) model->read[p] = false;
  }
  memset(model->retired, 0, sizeof model->retired);
  model_feed(model, (struct zps_round_machine_event){.type = ZPS_MACHINE_REMAP}, 1);
  for (unsigned p = 0; p < model->n_parts; p++) {
    assert_int_equal(model->announce[p], model->progress[p] > 0);
    assert_false(model->forgotten[p]);
  }
}

void model_begin(struct model *model, struct zps_round_machine *machine, const struct kind *kind) {
  memset(model, 0, sizeof *model);
  model->machine = machine;
  model->kind = *kind;
  model->n_parts = kind->plan->n_parts;
  model->owners = machine->plan.owners = model_owners;
  model->whole = kind->whole;
  zps_round_machine_reset(
      machine,
      &(struct zps_round_machine_start){
          .step = 7, .deadline_ns = DEADLINE, .n_scans = kind->n_scans, .is_apart = kind->apart, .whole = kind->whole});
  assert_int_equal(machine->state, ZPS_MACHINE_IDLE);
  model_feed(model, (struct zps_round_machine_event){.type = ZPS_MACHINE_START}, 0);
  assert_int_equal(machine->state, ZPS_MACHINE_ENCODING);
}

unsigned model_enabled(const struct model *model, struct zps_round_machine_event *events) {
  unsigned n = 0;
  if (model->n_scanned < model->kind.n_scans)
    events[n++] = (struct zps_round_machine_event){.type = ZPS_MACHINE_SCANNED, .partition = model->n_scanned};
  for (uint32_t p = 0; p < model->n_parts; p++) {
    struct zps_round_machine_event event = {.partition = p, .server = model->owners[p]};
    if (model->again[p])
      events[n++] =
          (struct zps_round_machine_event){.type = ZPS_MACHINE_RESULT, .partition = p, .server = model->owners[p]};
    switch (model->progress[p]) {
      case 0:
        if (model->writes <= p / (model->n_parts / model->kind.n_scans)) continue;
        event.type = ZPS_MACHINE_WRITTEN;
        break;
      case 1:
        if (!model->announce[p]) continue;
        event.type = ZPS_MACHINE_RESULT;
        break;
      case 2:
        if (!model->read[p]) continue;
        event.type = ZPS_MACHINE_LANDED;
        break;
      case 3:
        if (!model->decode[p]) continue;
        event.type = ZPS_MACHINE_DECODED;
        break;
      default:
        continue;
    }
    events[n++] = event;
  }
  if (model->clear && !model->cleared) events[n++] = (struct zps_round_machine_event){.type = ZPS_MACHINE_CLEARED};
  if (model->decode_all && !model->decoded_all) {
    events[n++] = (struct zps_round_machine_event){.type = ZPS_MACHINE_DECODED, .partition = ZPS_MACHINE_ALL};
  }
  return n;
}
