#include "tests/support/control_again.h"

#include <stdlib.h>
#include <string.h>

#include "proto/control_job.h"
#include "proto/control_change.h"
#include "proto/control_next.h"
#include "proto/control_plan.h"
#include "proto/control_server.h"
#include "proto/control_stats.h"
#include "proto/control_tensor.h"

enum { SERVERS = 3, WORLD = 2 };

/* Any message that is a table alone. */
static zps_err_t by_table(const struct zps_fields *fields, const zps_json *body, zps_json **written_p,
                          struct zps_error *error) {
  void *const read = malloc(fields->size);
  const zps_err_t err = read ? zps_fields_read(fields, body, read, error) : ZPS_ERR_NOMEM;
  if (!err) {
    *written_p = zps_fields_write(fields, read);
    zps_fields_fini(fields, read);
  }
  free(read);
  return err;
}

static zps_err_t server_register(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_server_spec spec;
  struct zps_net_info fabric;
  const zps_err_t err = zps_control_server_read(body, &spec, &fabric, error);
  if (err) return err;
  *written_p = zps_control_server_write(&spec);
  zps_server_spec_fini(&spec);
  return ZPS_OK;
}

static zps_err_t join(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_join_spec spec;
  struct zps_net_info fabric;
  const zps_err_t err = zps_control_join_read(body, &spec, &fabric, error);
  if (!err) *written_p = zps_control_join_write(&spec);
  return err;
}

static zps_err_t next(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_next_spec spec;
  struct zps_net_info fabric;
  const zps_err_t err = zps_control_next_read(body, &spec, &fabric, error);
  if (!err) *written_p = zps_control_next_write(&spec);
  return err;
}

static zps_err_t next_answer(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_join answer;
  struct zps_generation generation;
  uint32_t rank = 0, world = 0;
  zps_err_t err = zps_control_join_answer_read(body, &answer, error);
  if (err) return err;
  err = zps_control_generation_read(body, &generation, &rank, &world, error);
  if (!err) *written_p = zps_control_generation_write(zps_control_join_answer_write(&answer), &generation, rank, world);
  zps_join_fini(&answer);
  return err;
}

static zps_err_t peers(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_join_peers read;
  const zps_err_t err = zps_control_peers_read(body, WORLD, &read, error);
  if (err) return err;
  *written_p = zps_control_peers_write(&read);
  zps_join_peers_fini(&read);
  return ZPS_OK;
}

/* Their readers look at what the worker needs: the job is the connection's. */
static zps_err_t job_failed(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_frame_abort failure;
  uint64_t id;
  const zps_err_t err = zps_control_job_id_read(body, &id, error);
  if (err) return err;
  zps_control_job_failed_read(body, &failure);
  *written_p = zps_control_job_failed_write(id, &failure);
  return ZPS_OK;
}

static zps_err_t job_stats(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_rank_report rank;
  zps_err_t err = zps_control_stats_read(body, &rank, error);
  if (err) return err;
  zps_json *written = zps_json_array();
  for (size_t i = 0; i < zps_json_array_len(rank.rows) && !err; i++) {
    struct zps_tensor_growth news;
    err = zps_control_growth_read(zps_json_at(rank.rows, i), &news, error);
    if (!err) written = zps_control_growth_append(written, &news);
  }
  if (err)
    zps_json_unref(written);
  else
    *written_p = zps_control_stats_write(&rank, written);
  return err;
}

static zps_err_t registered(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_tensor_spec spec = {.n_parts = 0};
  const zps_err_t err = zps_control_registered_read(body, SERVERS, &spec, error);
  if (err) return err;
  *written_p = zps_control_registered_write(&spec);
  zps_tensor_spec_fini(&spec);
  return ZPS_OK;
}

static zps_err_t report(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_tensor_report read;
  struct zps_plan_sketch sketch;
  const zps_err_t err = zps_control_report_read(body, &read, &sketch, error);
  if (!err) *written_p = zps_control_report_write(&read);
  return err;
}

/* job.next has the answer of job.join, and more. */
static const struct zps_field next_answer_fields[] = {
    {.type = ZPS_FIELD_PART, .part = &zps_control_join_answer},
    {.type = ZPS_FIELD_PART, .part = &zps_control_next_answer, .optional = true}};
static const struct zps_fields next_answer_table = {ZPS_FIELDS_OF(struct zps_join, next_answer_fields)};

const struct control_message control_messages[] = {
    {"heartbeat", &zps_control_beat, NULL},
    {"server.register", &zps_control_server, server_register},
    {"server.register answer", &zps_control_server_answer, NULL},
    {"server.drain answer", &zps_control_drained, NULL},
    {"job.join", &zps_control_join, join},
    {"job.join answer", &zps_control_join_answer, NULL},
    {"job.next", &zps_control_next, next},
    {"job.next answer", &next_answer_table, next_answer},
    {"job.resume", &zps_control_resume, NULL},
    {"job.peers", &zps_control_job_id, NULL},
    {"job.peers answer", &zps_control_peers, peers},
    {"job.linked", &zps_control_linked, NULL},
    {"group.open", &zps_control_group_open, NULL},
    {"group.close", &zps_control_group_close, NULL},
    {"job.memory", &zps_control_memory, NULL},
    {"tensor.register", &zps_control_register, NULL},
    {"tensor.register answer", &zps_control_registered, registered},
    {"tensor.close", &zps_control_tensor_close, NULL},
    {"tensor.report", &zps_control_report, report},
    {"job.stats", &zps_control_stats, job_stats},
    {"job.held", &zps_control_held, NULL},
    {"job.suspect", &zps_control_suspect, NULL},
    {"job.mapped", &zps_control_job_steps, NULL},
    {"job.leave", &zps_control_leave, NULL},
    {"job.open", &zps_control_job_open, NULL},
    {"tensor.open", &zps_control_tensor_open, NULL},
    {"tensor.forget", &zps_control_tensor_forget, NULL},
    {"tensor.keep", &zps_control_tensor_keep, NULL},
    {"job.view", &zps_control_job_view, NULL},
    {"job.replay", &zps_control_job_steps, NULL},
    {"job.close", &zps_control_job_close, NULL},
    {"rank.gone", &zps_control_rank_gone, NULL},
    {"job.failed", &zps_control_job_failed, job_failed},
    {"rank.left", &zps_control_rank_left, NULL},
    {"job.changed", &zps_control_job_id, NULL},
    {"tensor.plan", &zps_control_plan, NULL},
    {"drain", &zps_control_drain, NULL},
    {"undrain", &zps_control_drain, NULL},
    {"rebalance", &zps_control_rebalance, NULL},
    {"kick", &zps_control_kick, NULL},
};
const unsigned n_control_messages = sizeof control_messages / sizeof control_messages[0];

zps_err_t control_again(const char *name, const zps_json *body, zps_json **written_p, struct zps_error *error) {
  const struct control_message *const message = control_message(name);
  *written_p = NULL;
  if (!message) return zps_fail(error, ZPS_ERR_UNKNOWN, "there is no message '%.40s'", name);
  return message->again ? message->again(body, written_p, error) : by_table(message->fields, body, written_p, error);
}

const struct control_message *control_message(const char *name) {
  for (unsigned i = 0; i < n_control_messages; i++)
    if (strcmp(control_messages[i].name, name) == 0) return &control_messages[i];
  return NULL;
}
