#include "tests/unit/server/membership/members_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/support/log_fields.h"

struct members_rig rig;

static void on_act(void *ctx, const struct zps_action *action) {
  (void)ctx;
  assert_true(rig.n_seen < MEMBERS_ACTS_MAX);
  struct members_seen *seen = &rig.seen[rig.n_seen++];
  seen->action = *action;
  snprintf(seen->text, sizeof seen->text, "%s", action->text ? action->text : "");
  if (action->tensor) {
    seen->owners0 = action->tensor->spec.owners[0];
    seen->n_parts = action->tensor->spec.n_parts;
  }
}

static uint64_t on_random(void *ctx) {
  (void)ctx;
  return ++rig.random;
}

/* Losses are warned of, and many cases are about them. */
static void sink(void *ctx, const struct zps_log_line *line) {
  (void)ctx;
  const char *const fault = log_fields_fault(line);
  if (fault) fail_msg("without its field '%s': %s", fault, line->text);
  assert_true(line->level > ZPS_LOG_ERROR);
}

int members_setup(void **state) {
  (void)state;
  return members_setup_noted(NULL);
}

int members_setup_noted(void (*on_note)(void *ctx, const struct zps_member_note *note)) {
  zps_log_set_sink(sink, NULL);
  zps_log_set_level(ZPS_LOG_DEBUG);
  rig = (struct members_rig){.tensor = {.codec = ZPS_CODEC_AUTO, .value_codec = ZPS_VALUES_RAW}};
  const struct zps_members_config config = {.min_servers = 1,
                                            .max_jobs = 2,
                                            .max_tensors = 3,
                                            .leave_grace_ms = MEMBERS_LEAVE_GRACE_NS / ZPS_NS_PER_MS,
                                            .act = on_act,
                                            .random = on_random,
                                            .note = on_note};
  return zps_members_create(&config, &rig.members) != ZPS_OK;
}

int members_teardown(void **state) {
  (void)state;
  for (unsigned i = 0; i < MEMBERS_CLIENTS; i++) zps_members_client_lost(rig.members, &rig.clients[i], "end");
  zps_members_destroy(rig.members);
  zps_log_set_sink(NULL, NULL);
  return 0;
}

const struct zps_net_info members_tcp = {.provider = "tcp", .addr_format = "FI_SOCKADDR_IN"};
const struct zps_net_info members_net = {.provider = "net", .addr_format = "FI_SOCKADDR_IN"};
const struct zps_net_info members_verbs = {.provider = "verbs;ofi_rxm", .addr_format = "FI_SOCKADDR_IN"};

zps_err_t members_server(unsigned client, const char *name, uint32_t pid, const struct zps_net_info *fabric) {
  const struct zps_server_spec spec = {.name = name, .host = "node", .pid = pid, .fabric = fabric};
  return zps_members_server_register(rig.members, &rig.clients[client], &spec, false, &rig.error);
}

zps_err_t members_join(unsigned client, const char *job, uint32_t rank, uint32_t world,
                       const struct zps_net_info *fabric) {
  const struct zps_join_spec spec = {.job = job,
                                     .host = "node",
                                     .world = world,
                                     .rank = rank,
                                     .pid = 100 + client,
                                     .timeout_ms = 1500,
                                     .fabric = fabric};
  return zps_members_join(rig.members, &rig.clients[client], &spec, &rig.clients[client], rig.now_ns, &rig.error);
}

void members_opened(unsigned server, uint64_t job_id, zps_err_t code) {
  zps_members_job_opened(rig.members, &rig.clients[server], job_id, code, "it has no room");
}

unsigned members_count(enum zps_action_type type, unsigned client, const struct members_seen **last_p) {
  unsigned n = 0;
  for (unsigned i = 0; i < rig.n_seen; i++) {
    if (rig.seen[i].action.type != type || rig.seen[i].action.client != &rig.clients[client]) continue;
    n++;
    if (last_p) *last_p = &rig.seen[i];
  }
  return n;
}

uint64_t members_running_world(uint32_t world) {
  assert_int_equal(members_server(0, "a", 1, &members_tcp), ZPS_OK);
  assert_int_equal(members_server(1, "b", 2, &members_net), ZPS_OK);
  for (uint32_t r = 0; r < world; r++)
    assert_int_equal(members_join(2 + r, "x", r, world, r ? &members_tcp : &members_net), ZPS_OK);
  const uint64_t job_id = zps_members_job_first(rig.members)->job_id;
  members_opened(0, job_id, ZPS_OK);
  assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 2, NULL), 0);
  members_opened(1, job_id, ZPS_OK);
  for (uint32_t r = 0; r < world; r++) assert_int_equal(members_count(ZPS_ACT_JOIN_DONE, 2 + r, NULL), 1);
  return job_id;
}

uint64_t members_running_job(void) {
  return members_running_world(2);
}

zps_err_t members_group(unsigned client, uint64_t job_id, const char *name, const uint32_t *ranks, uint32_t n_ranks,
                        uint64_t now_ns) {
  struct zps_group_spec spec = {.job_id = job_id, .ranks = ranks, .n_ranks = n_ranks, .timeout_ms = 1500};
  snprintf(spec.name, sizeof spec.name, "%s", name);
  return zps_members_group_open(rig.members, &rig.clients[client], &spec, &rig.clients[client], now_ns, &rig.error);
}

zps_err_t members_tensor(unsigned client, uint64_t job_id, const char *name, uint64_t rows, uint32_t parts) {
  struct zps_tensor_spec spec = {.job_id = job_id,
                                 .rows = rows,
                                 .width = 8,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = rig.tensor.codec,
                                 .value_codec = rig.tensor.value_codec,
                                 .staleness = rig.tensor.staleness,
                                 .n_parts = parts,
                                 .ranks = rig.tensor.ranks,
                                 .n_ranks = rig.tensor.n_ranks,
                                 .scheme = rig.tensor.scheme,
                                 .block_bits = ZPS_BLOCK_BITS_DEFAULT};
  snprintf(spec.name, sizeof spec.name, "%s", name);
  if (rig.tensor.group) snprintf(spec.group, sizeof spec.group, "%s", rig.tensor.group);
  return zps_members_tensor_register(rig.members, &rig.clients[client], &spec, &rig.clients[client], &rig.error);
}

uint32_t *members_positions(const struct zps_view *view, unsigned states, uint32_t *n_p) {
  uint32_t *const positions = calloc(view->n_places + 1u, sizeof *positions);
  assert_non_null(positions);
  *n_p = 0;
  for (uint32_t i = 0; i < view->n_places; i++)
    if (states >> view->places[i].state & 1) positions[(*n_p)++] = i;
  return positions;
}
