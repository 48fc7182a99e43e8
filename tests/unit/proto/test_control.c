/* Messages of the control plane, byte for byte: structs are written as the golden lines are, and these are read and
 * written again as they were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/control/rpc.h"
#include "proto/control_job.h"
#include "proto/control_change.h"
#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "proto/control_server.h"
#include "proto/control_stats.h"
#include "proto/control_tensor.h"
#include "tests/support/control_again.h"
#include "tests/support/views.h"
#include "tests/unit/proto/control_rig.h"

enum { JOB = 0xabc };

static const struct zps_net_info fabric = {.provider = "tcp;ofi_rxm",
                                           .protocol = "FI_PROTO_RXM",
                                           .addr_format = "FI_SOCKADDR_IN",
                                           .domain = "eth0",
                                           .address = "10.0.0.7:41000",
                                           .addr = {2, 0, 0xa0, 0x28},
                                           .addr_len = 4};

/* The messages that the code makes, line by line. */
static zps_json *made[32];
static unsigned n_made, n_seen;

static void compare(const char *line, const char *message, const zps_json *body) {
  struct zps_error error;
  zps_json *again;
  if (control_again(message, body, &again, &error) != ZPS_OK) fail_msg("%s: %s", message, error.text);
  zps_json *const both[] = {n_seen < n_made ? made[n_seen] : NULL, again};
  for (unsigned i = 0; i < 2; i++) {
    zps_json *whole = zps_json_set_str(zps_json_object(), "message", message);
    char *text = zps_json_dump(whole = zps_json_set(whole, "body", both[i]));
    assert_non_null(text);
    assert_string_equal(text, line);
    free(text);
    zps_json_unref(whole);
  }
  n_seen++;
}

static void expect(const char *file) {
  n_seen = 0;
  assert_int_equal(control_golden(file, compare), n_made);
  n_made = 0;
}

static void test_servers(void **state) {
  (void)state;
  struct zps_net_info weak = fabric;
  weak.weak_keys = true;
  made[n_made++] = zps_control_server_write(
      &(struct zps_server_spec){.name = "s0", .host = "node7", .pid = 4711, .fabric = &fabric});
  made[n_made++] = zps_control_server_write(
      &(struct zps_server_spec){.name = "s0", .host = "node7", .pid = 4711, .fabric = &weak, .draining = true});
  made[n_made++] = zps_control_server_answer_write(
      &(struct zps_server_answer){.server = 3, .epoch = 9, .heartbeat = {.heartbeat_ms = 1000, .dead_ms = 5000}});
  made[n_made++] = zps_control_drained_write(&(uint32_t){2});
  expect("server");
}

static void test_jobs(void **state) {
  (void)state;
  static const uint32_t group[] = {0, 4};
  struct zps_place_image places[] = {
      {.state = ZPS_PLACE_IN, .number = ZPS_NO_SERVER, .server = {.name = "s0", .addr = {1, 0xff}, .addr_len = 2}},
      {.state = ZPS_PLACE_IN, .number = ZPS_NO_SERVER, .server = {.name = "s1", .addr = {2}, .addr_len = 1}},
      {.number = ZPS_NO_SERVER},
      {.number = ZPS_NO_SERVER}};
  struct zps_join_peer peers[] = {{.host = "node1", .rack = "r1", .addr = {1}, .addr_len = 1},
                                  {.host = "node2", .addr = {2}, .addr_len = 1}};
  struct zps_place_image unnamed[4];
  const struct zps_member_spec members[] = {{.rank = 0, .pid = 7, .host = "node1", .addr = {1}, .addr_len = 1},
                                            {.rank = 1, .pid = 8, .host = "node2", .addr = {2}, .addr_len = 1}};
  struct zps_join_spec join = {.job = "train",
                               .host = "node1",
                               .rack = "r1",
                               .world = 2,
                               .rank = 1,
                               .pid = 7,
                               .timeout_ms = 30000,
                               .fabric = &fabric};
  made[n_made++] = zps_control_join_write(&join);
  join.token = "zps1.0.00ff.train*";
  made[n_made++] = zps_control_join_write(&join);
  join.rack = join.token = NULL;
  made[n_made++] = zps_control_join_write(&join);
  join.places = 4;
  made[n_made++] = zps_control_join_write(&join);
  made[n_made++] =
      zps_control_join_answer_write(&(struct zps_join){.job_id = JOB,
                                                       .seed = UINT64_MAX,
                                                       .link_secret = {{1, 2, [15] = 0xff}},
                                                       .checksums = true,
                                                       .heartbeat = {.heartbeat_ms = 1000, .dead_ms = 5000},
                                                       .view = {9, 2, 2, places}});
  made[n_made++] =
      zps_control_join_answer_write(&(struct zps_join){.job_id = JOB,
                                                       .seed = UINT64_MAX,
                                                       .link_secret = {{1, 2, [15] = 0xff}},
                                                       .heartbeat = {.heartbeat_ms = 1000, .dead_ms = 5000},
                                                       .view = {9, 2, 4, places}});
  made[n_made++] = zps_control_job_id_write(JOB);
  made[n_made++] = zps_control_peers_write(&(struct zps_join_peers){.world = 2, .ranks = peers});
  made[n_made++] = zps_control_linked_write(&(struct zps_job_call){.job_id = JOB, .timeout_ms = 29000});
  made[n_made++] = zps_control_memory_write(&(struct zps_job_call){.job_id = JOB, .text = "dmabuf"});
  made[n_made++] = zps_control_held_write(&(struct zps_job_call){.job_id = JOB, .text = "its pushes are large"});
  made[n_made++] = zps_control_group_open_write(
      &(struct zps_group_spec){.job_id = JOB, .name = "row/0", .ranks = group, .n_ranks = 2, .timeout_ms = 29000});
  made[n_made++] = zps_control_group_close_write(&(struct zps_job_call){.job_id = JOB, .text = "row/0"});
  made[n_made++] = zps_control_job_id_write(JOB);
  struct zps_job_spec open = {.job_id = JOB,
                              .seed = UINT64_MAX,
                              .secret = {{1, 2, [15] = 0xff}},
                              .checksums = true,
                              .weight = 3,
                              .name = "train",
                              .server = 1,
                              .view = view_of(unnamed, 9, 2, "ii"),
                              .world = 2,
                              .members = members};
  made[n_made++] = zps_control_job_open_write(&open);
  open.view = view_of(unnamed, 9, 2, "ijff");
  unnamed[1].since = 10; /* It takes the place of another. */
  made[n_made++] = zps_control_job_open_write(&open);
  made[n_made++] = zps_control_job_close_write(&(struct zps_job_call){.job_id = JOB, .text = "all ranks left"});
  made[n_made++] = zps_control_rank_gone_write(
      &(struct zps_rank_gone){.job_id = JOB, .rank = 1, .code = ZPS_ERR_PEER_LOST, .text = "rank 1 was lost"});
  made[n_made++] = zps_control_job_failed_write(
      JOB, &(struct zps_frame_abort){
               .code = ZPS_ERR_PEER_LOST, .n_ranks = 1, .ranks = {1}, .text = "rank 1 (host node2) was lost"});
  made[n_made++] = zps_control_rank_left_write(&(struct zps_job_call){.job_id = JOB, .rank = 1});
  uint32_t lost[] = {0, 2};
  made[n_made++] = zps_control_suspect_write(
      &(struct zps_job_suspects){.job_id = JOB, .n_servers = 2, .servers = lost, .why = "connection reset by peer"});
  made[n_made++] = zps_control_suspect_write(&(struct zps_job_suspects){.job_id = JOB});
  made[n_made++] =
      zps_control_job_view_write(&(struct zps_job_view){.job_id = JOB, .view = view_of(unnamed, 10, 3, "xilf")});
  places[0].since = 10;
  places[1].was_lost = true;
  places[1].state = ZPS_PLACE_LEAVING;
  places[1].since = 7;
  places[1].server.name[0] = '\0';
  made[n_made++] = zps_control_job_view_write(&(struct zps_job_view){.job_id = JOB, .view = {10, 2, 2, places}});
  struct zps_job_steps set = {.job_id = JOB, .epoch = 10};
  assert_int_equal(zps_job_steps_add(&set, 5, 0), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 3, UINT64_MAX), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 3, 7), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 3, UINT64_MAX), ZPS_OK);
  made[n_made++] = zps_control_job_steps_write(&set);
  zps_job_steps_fini(&set);
  set = (struct zps_job_steps){.job_id = JOB, .epoch = 10};
  assert_int_equal(zps_job_steps_decide(&set, 3, 8), ZPS_OK);
  assert_int_equal(zps_job_steps_decide_late(&set, 3, 8, 0), ZPS_OK);
  assert_int_equal(zps_job_steps_decide_late(&set, 3, 8, ZPS_WORLD_MAX - 1), ZPS_OK);
  assert_int_equal(zps_job_steps_decide(&set, 3, 7), ZPS_OK);
  made[n_made++] = zps_control_job_steps_write(&set);
  zps_job_steps_fini(&set);
  made[n_made++] =
      zps_control_job_steps_write(&(struct zps_job_steps){.job_id = JOB, .epoch = 10, .is_too_many = true});
  made[n_made++] = zps_control_job_steps_write(&(struct zps_job_steps){.job_id = JOB, .epoch = 10});
  expect("job");
}

static void test_generations(void **state) {
  (void)state;
  struct zps_place_image places[] = {
      {.state = ZPS_PLACE_IN, .number = ZPS_NO_SERVER, .server = {.name = "s0", .addr = {1, 0xff}, .addr_len = 2}},
      {.state = ZPS_PLACE_IN, .number = ZPS_NO_SERVER, .server = {.name = "s1", .addr = {2}, .addr_len = 1}},
      {.number = ZPS_NO_SERVER},
      {.number = ZPS_NO_SERVER}};
  struct zps_next_spec spec = {
      .join =
          {.job = "train", .host = "node1", .world = 2, .rank = 1, .pid = 7, .timeout_ms = 30000, .fabric = &fabric},
      .min_world = 2,
      .max_world = 8,
      .wait_ms = 5000,
      .step = 140,
      .generation = 3,
      .last_rank = 2,
      .last_job = JOB};
  made[n_made++] = zps_control_next_write(&spec);
  spec.step = 0;
  spec.generation = 0;
  made[n_made++] = zps_control_next_write(&spec);
  zps_json *const answer =
      zps_control_join_answer_write(&(struct zps_join){.job_id = JOB,
                                                       .seed = UINT64_MAX,
                                                       .link_secret = {{1, 2, [15] = 0xff}},
                                                       .heartbeat = {.heartbeat_ms = 1000, .dead_ms = 5000},
                                                       .view = {9, 2, 2, places}});
  made[n_made++] =
      zps_control_generation_write(answer, &(struct zps_generation){.number = 4, .source = 2, .step = 141}, 1, 3);
  made[n_made++] = zps_control_job_id_write(JOB);
  made[n_made++] = zps_control_leave_write(&(struct zps_leave_spec){.job_id = JOB, .moves = true});
  struct zps_leave_spec failed = {.job_id = JOB};
  zps_fail(&failed.first, ZPS_ERR_MISSING, "step 100: the deadline passed without the push of rank 1");
  made[n_made++] = zps_control_leave_write(&failed);
  expect("next");
}

static void test_sets_of_steps(void **state) {
  (void)state;
  struct zps_job_steps set = {0};
  for (uint32_t i = ZPS_MAP_STEPS_MAX; i > 0; i--) assert_int_equal(zps_job_steps_add(&set, 9, 2 * i), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 9, 4), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 9, 5), ZPS_ERR_INVALID);
  assert_int_equal(set.tensors[0].n_steps, ZPS_MAP_STEPS_MAX);
  for (uint32_t i = 0; i < ZPS_MAP_STEPS_MAX; i++) assert_int_equal(set.tensors[0].steps[i], 2 * (i + 1));
  for (uint32_t i = 1; i < ZPS_MAP_TENSORS_MAX; i++) assert_int_equal(zps_job_steps_add(&set, 9 + i, 1), ZPS_OK);
  assert_int_equal(zps_job_steps_add(&set, 8, 1), ZPS_ERR_INVALID);
  assert_int_equal(zps_job_steps_add(&set, 9 + 1, 0), ZPS_OK);
  assert_int_equal(set.tensors[1].steps[0], 0);
  zps_job_steps_fini(&set);
}

/* A rank may have a round of each tensor in flight. */
static void test_steps_of_all_tensors_fit_a_line(void **state) {
  (void)state;
  struct zps_job_steps set = {.job_id = JOB, .epoch = UINT32_MAX}, read = {0};
  struct zps_error error;
  for (uint32_t i = 0; i < 8192; i++) assert_int_equal(zps_job_steps_add(&set, i, UINT64_MAX), ZPS_OK);
  zps_json *const message = zps_control_job_steps_write(&set);
  char *const line = zps_json_dump(message);
  assert_non_null(line);
  assert_true(strlen(line) < ZPS_RPC_LINE_MAX / 2);
  assert_int_equal(zps_control_job_steps_read(message, &read, &error), ZPS_OK);
  assert_int_equal(read.n_tensors, 8192);
  zps_json_unref(message);
  free(line);
  zps_job_steps_fini(&set);
  zps_job_steps_fini(&read);
}

static void test_stats(void **state) {
  (void)state;
  zps_json *rows = zps_control_growth_append(
      zps_json_array(), &(struct zps_tensor_growth){
                            .tensor = 0,
                            .done = 12,
                            .growth = {.rounds = 3, .bytes_out = 100, .total_ns = 5000, .step = 11, .scheme = "ring"}});
  rows = zps_control_growth_append(rows, &(struct zps_tensor_growth){.tensor = 1, .growth = {.failed = 1}});
  made[n_made++] = zps_control_stats_write(&(struct zps_rank_report){.job_id = JOB}, rows);
  made[n_made++] =
      zps_control_stats_write(&(struct zps_rank_report){.job_id = JOB,
                                                        .kept_bytes = 1 << 20,
                                                        .mishaps = {.corrupt = 2, .forged = 3},
                                                        .load = {.busy = 700, .starved = 120}},
                              zps_control_growth_append(zps_json_array(), &(struct zps_tensor_growth){.tensor = 1}));
  struct zps_rank_report failed = {.job_id = JOB};
  zps_fail(&failed.first, ZPS_ERR_NOMEM, "no memory");
  made[n_made++] = zps_control_stats_write(&failed, zps_json_array());
  const struct zps_rank_report waits = {
      .job_id = JOB,
      .n_rounds = 2,
      .rounds = {{.tensor = 1, .step = 7, .age_ms = 1500, .left_ms = 58500, .n_ranks = 2, .ranks = {0, 3}},
                 {.tensor = 2, .step = 7, .age_ms = 1200, .left_ms = 58800}}};
  made[n_made++] = zps_control_stats_write(&waits, zps_json_array());
  expect("stats");
}

static void test_tensors(void **state) {
  (void)state;
  static const uint32_t owners[] = {2, 0, 1}, ranks[] = {0, 4};
  struct zps_tensor_spec spec = {.job_id = JOB,
                                 .name = "w",
                                 .rows = 1000,
                                 .width = 8,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .block_bits = ZPS_BLOCK_BITS_DEFAULT,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .scheme = {.name = "balanced"}};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "oktopk", .k = 50, .chunks = 2};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "oktopk",
                                         .k = 50,
                                         .boundary_period = 1,
                                         .threshold_period = 128,
                                         .without = ZPS_WITHOUT_ROTATION | ZPS_WITHOUT_STEERING};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){
      .name = "hierarchical", .between = "blueconnect", .n_levels = 2, .levels = {2, 4}, .bits = 4};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "split-allgather", .allgather = 2, .delta = 0.25};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "blueconnect", .n_levels = 2, .levels = {4, 2}, .algorithms = {1, 0}};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "auto", .choices = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RING};
  made[n_made++] = zps_control_register_write(&spec);
  spec.scheme = (struct zps_scheme_spec){.name = "omnireduce", .of_rows = 10, .of_width = 3};
  made[n_made++] = zps_control_register_write(&spec);
  spec = (struct zps_tensor_spec){.job_id = JOB,
                                  .tensor = 4,
                                  .name = "w",
                                  .rows = 1ull << 40,
                                  .width = 1u << 20,
                                  .dtype = ZPS_DTYPE_F64,
                                  .op = ZPS_OP_MAX,
                                  .n_parts = 3,
                                  .block_bits = 31,
                                  .codec = ZPS_CODEC_PAPER,
                                  .value_codec = ZPS_VALUES_QSGD4,
                                  .scheme = {.name = "balanced"},
                                  .owners = owners,
                                  .ranks = ranks,
                                  .n_ranks = 2};
  made[n_made++] = zps_control_register_write(&spec);
  strcpy(spec.group, "row/0");
  made[n_made++] = zps_control_register_write(&spec);
  made[n_made++] = zps_control_registered_write(&spec);
  made[n_made++] = zps_control_tensor_open_write(&spec);
  spec = (struct zps_tensor_spec){.job_id = JOB,
                                  .name = "w",
                                  .rows = 1000,
                                  .width = 8,
                                  .dtype = ZPS_DTYPE_F32,
                                  .op = ZPS_OP_SUM,
                                  .block_bits = ZPS_BLOCK_BITS_DEFAULT,
                                  .codec = ZPS_CODEC_AUTO,
                                  .value_codec = ZPS_VALUES_RAW,
                                  .scheme = {.name = "balanced"},
                                  .partitioner = ZPS_PARTITIONER_MURMUR};
  made[n_made++] = zps_control_register_write(&spec);
  spec.rows = 1u << 29;
  spec.codec = ZPS_CODEC_PAPER;
  spec.partitioner = ZPS_PARTITIONER_HIERARCHICAL;
  spec.hashing = (struct zps_hier_options){.k = 16, .r1 = 1ull << 32, .r2 = 1ull << 32};
  spec.staleness = ZPS_STALENESS_MAX;
  made[n_made++] = zps_control_register_write(&spec);
  spec.rows = 1000;
  spec.partitioner = ZPS_PARTITIONER_STRATIFIED;
  spec.hashing = (struct zps_hier_options){.k = 0};
  spec.staleness = 0;
  spec.keep_zero_rows = 1;
  made[n_made++] = zps_control_register_write(&spec);
  spec.keep_zero_rows = 0;
  spec.quorum = ZPS_WORLD_MAX;
  spec.grace_ms = ZPS_GRACE_MAX_MS;
  made[n_made++] = zps_control_register_write(&spec);
  spec.quorum = spec.grace_ms = 0;
  made[n_made++] =
      zps_control_tensor_close_write(&(struct zps_job_call){.job_id = JOB, .tensor = 4000000000, .timeout_ms = 29000});
  made[n_made++] = zps_control_tensor_forget_write(&(struct zps_job_call){.job_id = JOB, .tensor = 4000000000});
  spec.keep_zero_rows = 0;
  spec.partitioner = ZPS_PARTITIONER_HIERARCHICAL;
  spec.tensor = 4;
  spec.n_parts = 3;
  spec.block_bits = 0;
  spec.owners = owners;
  spec.hashing = (struct zps_hier_options){.k = 1, .r1 = 1, .r2 = 1};
  spec.staleness = 1;
  made[n_made++] = zps_control_tensor_open_write(&spec);
  expect("tensor");
}

static void test_plans(void **state) {
  (void)state;
  const struct zps_plan_sketch sketch = {.limit = 0x100, .n = 2, .hash = {1, 0xfe}};
  struct zps_tensor_report report = {
      .job_id = JOB, .tensor = 4, .told = {.report = {.step = 17, .scheme = ZPS_PLAN_BALANCED}}};
  made[n_made++] = zps_control_report_write(&report);
  report.told = (struct zps_plan_request){.report = {.step = 17,
                                                     .scheme = ZPS_PLAN_RING,
                                                     .rounds = 6,
                                                     .rows = 60.5,
                                                     .union_rows = 100,
                                                     .round_s = 0.25,
                                                     .first_s = 0.5,
                                                     .waits = true},
                                          .bandwidth = 1e9,
                                          .latency_s = 0.5,
                                          .cores = 8,
                                          .lists = true,
                                          .sketch = &sketch};
  unsigned n = 0;
#define SET(name) report.told.calibration.name = ++n;
  ZPS_PLAN_COSTS(SET)
#undef SET
  made[n_made++] = zps_control_report_write(&report);
  made[n_made++] = zps_control_plan_write(
      &(struct zps_tensor_plan){.job_id = JOB,
                                .tensor = 4,
                                .whole = true,
                                .n = 2,
                                .runs = {{.from = 0, .until = 16, .scheme = ZPS_PLAN_BALANCED},
                                         {.from = 16, .until = UINT64_MAX, .scheme = ZPS_PLAN_RING}}});
  expect("plan");
}

/* Texts for people. */
static void test_texts(void **state) {
  (void)state;
  static const struct {
    struct zps_scheme_spec scheme;
    const char *text;
  } cases[] = {
      {{.name = ""}, "balanced"},
      {{.name = "oktopk", .k = 5}, "oktopk:k=5"},
      {{.name = "omnireduce", .of_rows = 10, .of_width = 3}, "omnireduce of 10x3"},
      {{.name = "hierarchical", .between = "ring"}, "hierarchical:ring"},
      {{.name = "auto", .choices = 1u << ZPS_PLAN_BALANCED | 1u << ZPS_PLAN_RING}, "auto:balanced,ring"},
      {{.name = "two-level", .n_levels = 3, .levels = {2, 3, 4}, .chunks = 4}, "two-level:levels=2x3x4,chunks=4"},
      {{.name = "dsar", .bits = 4}, "dsar:bits=4"},
      {{.name = "oktopk", .k = 5, .boundary_period = 9}, "oktopk:k=5,tau=9"},
      {{.name = "oktopk", .k = 5, .threshold_period = 128}, "oktopk:k=5,tau_threshold=128"},
      {{.name = "oktopk", .k = 5, .without = ZPS_WITHOUT_BALANCING | ZPS_WITHOUT_STEERING},
       "oktopk:k=5,without=balancing+steering"},
      {{.name = "dsar", .allgather = 1}, "dsar:allgather=direct"},
      {{.name = "agsparse", .delta = 0.25}, "agsparse:delta=0.25"},
      {{.name = "blueconnect", .n_levels = 3, .levels = {4, 2, 2}, .algorithms = {1, 0, 2}},
       "blueconnect:levels=4rx2x2d"},
  };
  char text[ZPS_SCHEME_TEXT_MAX + 1], whole[ZPS_TENSOR_TEXT_MAX + 1];
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_string_equal(zps_scheme_spec_text(&cases[i].scheme, text), cases[i].text);
    for (unsigned j = 0; j < sizeof cases / sizeof cases[0]; j++)
      assert_int_equal(zps_scheme_spec_same(&cases[i].scheme, &cases[j].scheme), i == j);
  }
  /* The longest there is: nothing of it is cut. */
  struct zps_scheme_spec most = {.name = "auto", .choices = (1u << ZPS_PLAN_SCHEMES) - 1};
  assert_non_null(strstr(zps_scheme_spec_text(&most, text), ",bitmap-split"));
  struct zps_tensor_spec spec = {.rows = 100,
                                 .width = 8,
                                 .dtype = ZPS_DTYPE_F32,
                                 .op = ZPS_OP_SUM,
                                 .codec = ZPS_CODEC_AUTO,
                                 .value_codec = ZPS_VALUES_RAW,
                                 .block_bits = ZPS_BLOCK_BITS_DEFAULT,
                                 .scheme = {.name = "oktopk", .k = 5}};
  assert_string_equal(
      zps_tensor_spec_text(&spec, whole),
      "100 x 8 f32 sum in default partitions, block_bits default, codec auto, values raw, scheme oktopk:k=5");
  spec.n_parts = 4;
  spec.block_bits = 2;
  spec.n_ranks = 3;
  assert_string_equal(zps_tensor_spec_text(&spec, whole),
                      "100 x 8 f32 sum in 4 partitions, block_bits 2, codec auto, values raw, scheme oktopk:k=5, "
                      "pushed by 3 ranks");
  spec.partitioner = ZPS_PARTITIONER_MURMUR;
  spec.block_bits = spec.n_ranks = 0;
  assert_string_equal(
      zps_tensor_spec_text(&spec, whole),
      "100 x 8 f32 sum in 4 partitions, block_bits 0, partitioner murmur, codec auto, values raw, scheme "
      "oktopk:k=5");
  spec.partitioner = ZPS_PARTITIONER_HIERARCHICAL;
  spec.hashing.k = 4;
  assert_non_null(strstr(zps_tensor_spec_text(&spec, whole), ", partitioner hierarchical k=4 r1=0 r2=0, codec auto"));
  spec.keep_zero_rows = 1;
  assert_non_null(strstr(zps_tensor_spec_text(&spec, whole), ", values raw, keep_zero_rows 1, scheme oktopk:k=5"));
  spec.staleness = 3;
  assert_non_null(strstr(zps_tensor_spec_text(&spec, whole), ":k=5, staleness 3"));
}

static void expect_one_line(zps_json *params) {
  char *const line = zps_json_dump(params);
  assert_non_null(line);
  assert_true(strlen(line) + 100 < ZPS_RPC_LINE_MAX); /* the call around it */
  free(line);
  zps_json_unref(params);
}

/* The coordinator's calls about the largest job are one line each. */
static void test_largest_job(void **state) {
  (void)state;
  struct zps_member_spec *members = calloc(ZPS_WORLD_MAX, sizeof *members);
  struct zps_place_image *places = calloc(ZPS_SERVERS_MAX, sizeof *places);
  struct zps_job_spec spec = {.job_id = UINT64_MAX,
                              .seed = UINT64_MAX,
                              .server = ZPS_SERVERS_MAX - 1,
                              .view = {UINT32_MAX, 1, ZPS_SERVERS_MAX, places},
                              .members = members};
  assert_true(members && places);
  for (uint32_t i = 0; i < ZPS_SERVERS_MAX; i++)
    places[i] = (struct zps_place_image){
        .state = ZPS_PLACE_LEAVING, .was_lost = true, .since = UINT32_MAX, .number = ZPS_NO_SERVER};
  spec.world = ZPS_WORLD_MAX;
  memset(spec.name, '"', ZPS_NAME_MAX); /* two bytes each, on the line */
  for (uint32_t r = 0; r < ZPS_WORLD_MAX; r++) {
    members[r] = (struct zps_member_spec){.rank = r, .pid = UINT32_MAX, .addr_len = ZPS_NET_ADDR_MAX};
    memset(members[r].host, '"', ZPS_NAME_MAX);
    memset(members[r].addr, 0xff, ZPS_NET_ADDR_MAX);
  }
  expect_one_line(zps_control_job_open_write(&spec));
  /* All of its servers are later ones. */
  for (uint32_t i = 0; i < ZPS_SERVERS_MAX; i++) {
    places[i].state = ZPS_PLACE_IN;
    memset(places[i].server.name, '"', ZPS_NAME_MAX);
    memset(places[i].server.addr, 0xff, places[i].server.addr_len = ZPS_NET_ADDR_MAX);
  }
  expect_one_line(zps_control_job_view_write(&(struct zps_job_view){.job_id = UINT64_MAX, .view = spec.view}));
  free(places);
  free(members);
}

static void test_owners_of_internal_tensors(void **state) {
  (void)state;
  assert_string_equal(zps_tensor_owner_name("w"), "w");
  assert_string_equal(zps_tensor_owner_name("a/@b"), "a/@b");
  assert_string_equal(zps_tensor_owner_name("@gather/a/b"), "a/b");
  assert_string_equal(zps_tensor_owner_name("@hosts/@hierarchical/w"), "w");
  assert_string_equal(zps_tensor_owner_name("@barrier"), "@barrier");
}

/* Decisions of several ranks together: the first one of a step stays. */
static void test_decided_steps(void **state) {
  (void)state;
  struct zps_job_steps all = {0}, own = {0};
  uint64_t oldest = 0;
  assert_int_equal(zps_job_steps_add(&all, 3, 9), ZPS_OK);
  assert_false(zps_job_steps_oldest_decided(&all, 3, &oldest));
  assert_int_equal(zps_job_steps_decide(&own, 3, 8), ZPS_OK);
  assert_int_equal(zps_job_steps_decide_late(&own, 3, 8, 2), ZPS_OK);
  assert_int_equal(zps_job_steps_decide_late(&own, 3, 8, 2), ZPS_ERR_INVALID); /* ranks ascend */
  assert_int_equal(zps_job_steps_decide_late(&own, 3, 9, 2), ZPS_ERR_INVALID); /* not decided */
  assert_int_equal(zps_job_steps_merge(&all, &own), ZPS_OK);
  zps_job_steps_fini(&own);
  assert_int_equal(zps_job_steps_decide(&own, 3, 7), ZPS_OK);
  assert_int_equal(zps_job_steps_decide(&own, 3, 8), ZPS_OK);
  assert_int_equal(zps_job_steps_merge(&all, &own), ZPS_OK);
  zps_job_steps_fini(&own);
  assert_true(all.tensors[0].n_steps == 3 && all.tensors[0].n_decided == 2);
  assert_true(zps_job_steps_oldest_decided(&all, 3, &oldest) && oldest == 7);
  const struct zps_step_late *const decided = zps_job_steps_decided(&all, 3, 8);
  assert_true(decided->n_late == 1 && decided->late[0] == 2);
  assert_int_equal(zps_job_steps_decided(&all, 3, 7)->n_late, 0);
  assert_null(zps_job_steps_decided(&all, 3, 9));
  assert_null(zps_job_steps_decided(&all, 4, 8));
  zps_job_steps_fini(&all);
}

static void test_what_ranks_must_agree_on(void **state) {
  (void)state;
  static const uint32_t some[] = {0, 2}, others[] = {0, 3};
  const struct zps_tensor_spec spec = {.rows = 100, .width = 8, .ranks = some, .n_ranks = 2};
  struct zps_tensor_spec other = spec;
  assert_true(zps_tensor_spec_same(&spec, &other));
  other.job_id = other.tensor = 7;
  strcpy(other.name, "w");
  assert_true(zps_tensor_spec_same(&spec, &other));
#define DIFFERS(change) \
  other = spec;         \
  other.change;         \
  assert_false(zps_tensor_spec_same(&spec, &other));
  DIFFERS(rows = 101)
  DIFFERS(width = 9)
  DIFFERS(dtype = ZPS_DTYPE_F64)
  DIFFERS(op = ZPS_OP_MAX)
  DIFFERS(n_parts = 1)
  DIFFERS(block_bits = 1)
  DIFFERS(codec = ZPS_CODEC_PAPER)
  DIFFERS(value_codec = ZPS_VALUES_F16)
  DIFFERS(scheme.k = 1)
  DIFFERS(partitioner = ZPS_PARTITIONER_MURMUR)
  DIFFERS(hashing.k = 1)
  DIFFERS(hashing.r1 = 1)
  DIFFERS(hashing.r2 = 1)
  DIFFERS(keep_zero_rows = 1)
  DIFFERS(staleness = 1)
  DIFFERS(quorum = 1)
  DIFFERS(grace_ms = 1)
  DIFFERS(scheme.levels[0] = 2; other.scheme.n_levels = 1)
  DIFFERS(n_ranks = 1)
  DIFFERS(ranks = others)
#undef DIFFERS
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_servers),
      cmocka_unit_test(test_jobs),
      cmocka_unit_test(test_generations),
      cmocka_unit_test(test_sets_of_steps),
      cmocka_unit_test(test_decided_steps),
      cmocka_unit_test(test_steps_of_all_tensors_fit_a_line),
      cmocka_unit_test(test_stats),
      cmocka_unit_test(test_tensors),
      cmocka_unit_test(test_largest_job),
      cmocka_unit_test(test_owners_of_internal_tensors),
      cmocka_unit_test(test_plans),
      cmocka_unit_test(test_texts),
      cmocka_unit_test(test_what_ranks_must_agree_on),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
