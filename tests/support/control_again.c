#include "tests/support/control_again.h"

#include <stdlib.h>
#include <string.h>

#include "proto/control_group.h"
#include "proto/control_job.h"
#include "proto/control_map.h"
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

typedef zps_err_t again_fn(const zps_json *body, zps_json **written_p, struct zps_error *error);

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

static zps_err_t join_answer(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_join answer;
  const zps_err_t err = zps_control_join_answer_read(body, &answer, error);
  if (err) return err;
  *written_p = zps_control_join_answer_write(&answer);
  zps_join_fini(&answer);
  return ZPS_OK;
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

static zps_err_t leave(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  uint64_t id;
  const zps_err_t err = zps_control_job_id_read(body, &id, error);
  if (!err) *written_p = zps_control_leave_write(id, zps_control_leave_moves(body));
  return err;
}

static zps_err_t job_id(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  uint64_t id;
  const zps_err_t err = zps_control_job_id_read(body, &id, error);
  if (!err) *written_p = zps_control_job_id_write(id);
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

static zps_err_t job_open(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_job_spec spec;
  const zps_err_t err = zps_control_job_open_read(body, &spec, error);
  if (err) return err;
  *written_p = zps_control_job_open_write(&spec);
  zps_job_spec_fini(&spec);
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

static zps_err_t job_steps(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_job_steps set;
  const zps_err_t err = zps_control_job_steps_read(body, &set, error);
  if (err) return err;
  *written_p = zps_control_job_steps_write(&set);
  zps_job_steps_fini(&set);
  return ZPS_OK;
}

static zps_err_t job_stats(const zps_json *body, zps_json **written_p, struct zps_error *error) {
  struct zps_rank_news rank;
  zps_err_t err = zps_control_stats_read(body, &rank, error);
  if (err) return err;
  zps_json *written = zps_json_array();
  for (size_t i = 0; i < zps_json_array_len(rank.rows) && !err; i++) {
    struct zps_tensor_news news;
    err = zps_control_news_read(zps_json_at(rank.rows, i), &news, error);
    if (!err) written = zps_control_news_append(written, &news);
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

static const struct {
  const char *name;
  again_fn *again; /* NULL: the message is `fields`. */
  const struct zps_fields *fields;
} messages[] = {{"server.register", .again = server_register},
                {"server.register answer", .fields = &zps_control_server_answer},
                {"server.drain answer", .fields = &zps_control_drained},
                {"job.join", .again = join},
                {"job.join answer", .again = join_answer},
                {"job.peers", .again = job_id},
                {"job.peers answer", .again = peers},
                {"job.linked", .fields = &zps_control_linked},
                {"job.memory", .fields = &zps_control_memory},
                {"job.next", .again = next},
                {"job.next answer", .again = next_answer},
                {"job.changed", .again = job_id},
                {"job.held", .fields = &zps_control_held},
                {"job.leave", .again = leave},
                {"group.open", .fields = &zps_control_group_open},
                {"group.close", .fields = &zps_control_group_close},
                {"job.open", .again = job_open},
                {"job.close", .fields = &zps_control_job_close},
                {"rank.gone", .fields = &zps_control_rank_gone},
                {"job.failed", .again = job_failed},
                {"rank.left", .fields = &zps_control_rank_left},
                {"job.suspect", .fields = &zps_control_suspect},
                {"job.map", .fields = &zps_control_job_map},
                {"job.mapped", .again = job_steps},
                {"job.replay", .again = job_steps},
                {"job.stats", .again = job_stats},
                {"tensor.register", .fields = &zps_control_register},
                {"tensor.register answer", .again = registered},
                {"tensor.open", .fields = &zps_control_tensor_open},
                {"tensor.close", .fields = &zps_control_tensor_close},
                {"tensor.forget", .fields = &zps_control_tensor_forget},
                {"tensor.report", .again = report},
                {"tensor.plan", .fields = &zps_control_plan}};

zps_err_t control_again(const char *name, const zps_json *body, zps_json **written_p, struct zps_error *error) {
  *written_p = NULL;
  for (unsigned i = 0; i < sizeof messages / sizeof messages[0]; i++)
    if (strcmp(messages[i].name, name) == 0)
      return messages[i].again ? messages[i].again(body, written_p, error)
                               : by_table(messages[i].fields, body, written_p, error);
  return zps_fail(error, ZPS_ERR_UNKNOWN, "there is no message '%.40s'", name);
}
