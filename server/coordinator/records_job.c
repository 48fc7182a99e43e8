/* Records of jobs, ranks and groups. */
#include <stdlib.h>
#include <string.h>

#include "proto/control_map.h"
#include "proto/control_next.h"
#include "server/coordinator/records_impl.h"

#define LOST_SERVER (UINT32_MAX - 1) /* The place has no server: it was lost. */

/* ------------------------------------------------------------ jobs and ranks */

static zps_err_t get_state(const zps_json *record, enum zps_rank_state *state_p, struct zps_error *error) {
  const char *name = "";
  const zps_err_t err = zps_json_get_str(record, "state", &name, error);
  if (err) return err;
  for (int state = ZPS_RANK_IN; state <= ZPS_RANK_LOST; state++) {
    if (strcmp(name, zps_rank_state_name((enum zps_rank_state)state)) != 0) continue;
    *state_p = (enum zps_rank_state)state;
    return ZPS_OK;
  }
  return zps_fail(error, ZPS_ERR_PROTOCOL, "there is no state '%.40s' of ranks", name);
}

static zps_json *rank_object(const struct zps_member_rank *rank) {
  zps_json *object = zps_json_set_str(zps_json_object(), "state", zps_rank_state_name(rank->state));
  object = zps_json_set_str(object, "host", rank->host);
  object = zps_json_set_str(object, "rack", rank->rack);
  object = zps_json_set_u64(object, "pid", rank->pid);
  object = zps_control_set_opt_word(object, "secret", rank->secret);
  return zps_control_fabric_write(object, &rank->fabric);
}

/* Of a job that lost servers: whether all have heard, and which steps ranks hear of that come back. */
static zps_json *set_map(zps_json *record, const struct zps_member_job *job, bool is_whole) {
  if (job->state != ZPS_JOB_RUNNING || is_whole) return record;
  if (zps_member_map_is_open(job)) return zps_json_set_bool(record, "maps", true);
  struct zps_job_steps steps = job->map.steps;
  steps.job_id = job->job_id;
  steps.epoch = job->view.epoch;
  return zps_json_set(record, "replay", zps_control_job_steps_write(&steps));
}

static uint32_t index_of(const struct zps_member_server *server, bool was_lost) {
  return server ? server->index : was_lost ? LOST_SERVER : ZPS_NO_SERVER;
}

/* Servers that still live, and are about to leave the job. They are released with this note where all have heard. */
static zps_json *set_leaving(zps_json *record, const struct zps_member_job *job) {
  const struct zps_view *const view = &job->view;
  if (job->map.state == ZPS_MAP_OVER || zps_view_count(view, ZPS_PLACE_LEAVING) == 0) return record;
  zps_json *leaving = zps_json_array();
  for (uint32_t i = 0; i < view->n_places; i++) {
    const struct zps_view_place *const place = &view->places[i];
    leaving = zps_json_append_u64(leaving, index_of(place->state == ZPS_PLACE_LEAVING ? place->server : NULL, true));
  }
  return zps_json_set(record, "leaving", leaving);
}

/* Epochs with which later servers took places. */
static zps_json *set_since(zps_json *record, const struct zps_view *view) {
  if (!zps_view_has_successors(view)) return record;
  zps_json *since = zps_json_array();
  for (uint32_t i = 0; i < view->n_places; i++) since = zps_json_append_u64(since, view->places[i].since);
  return zps_json_set(record, "since", since);
}

static zps_err_t get_map(const zps_json *record, struct zps_job_image *image, struct zps_error *error) {
  const zps_json *const replay = zps_json_get(record, "replay");
  image->maps = zps_json_opt_bool(record, "maps", false);
  return replay ? zps_control_job_steps_read(replay, &image->replay, error) : ZPS_OK;
}

zps_json *zps_record_job_write(const struct zps_member_note *note) {
  const struct zps_member_job *job = note->job;
  zps_json *servers = zps_json_array(), *ranks = zps_json_array();
  bool is_whole = !zps_view_has_successors(&job->view);
  for (uint32_t i = 0; i < job->view.n_places; i++) {
    const struct zps_member_server *const server = zps_view_server(&job->view, i);
    servers = zps_json_append_u64(servers, index_of(server, job->view.places[i].was_lost));
    is_whole = is_whole && (server || i >= job->view.n_first);
  }
  for (uint32_t r = 0; r < job->world; r++) ranks = zps_json_append(ranks, rank_object(job->ranks[r]));
  zps_json *record = zps_json_set_str(zps_control_job_id_write(job->job_id), "name", job->name);
  record = zps_json_set_hex(record, "seed", job->seed);
  record = zps_control_link_secret_write(record, &job->secret);
  if (job->checksums) record = zps_json_set_bool(record, "checksums", true);
  if (job->weight > 1) record = zps_json_set_u64(record, "weight", job->weight);
  if (job->view.n_first < job->view.n_places) record = zps_json_set_u64(record, "began", job->view.n_first);
  record = zps_json_set_u64(record, "epoch", job->view.epoch);
  record = zps_control_generation_write(record, &job->generation, 0, job->world);
  record = zps_json_set_u64(record, "next_tensor", job->next_tensor);
  if (job->state == ZPS_JOB_CLOSING) record = zps_record_set_error(record, &job->error);
  record = set_since(set_leaving(set_map(record, job, is_whole), job), &job->view);
  return zps_json_set(zps_json_set(record, "servers", servers), "ranks", ranks);
}

static zps_err_t rank_read(const zps_json *object, struct zps_member_rank *rank, struct zps_error *error) {
  zps_err_t err = get_state(object, &rank->state, error);
  if (!err) err = zps_control_get_text(object, "host", 1, ZPS_NAME_MAX, rank->host, error);
  if (!err) err = zps_control_get_text(object, "rack", 0, ZPS_NAME_MAX, rank->rack, error);
  if (!err) err = zps_control_get_u32(object, "pid", 0, UINT32_MAX, &rank->pid, error);
  if (!err) err = zps_control_opt_word(object, "secret", &rank->secret, error);
  return err ? err : zps_control_fabric_read(object, &rank->fabric, error);
}

zps_err_t zps_record_job_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                              struct zps_error *error) {
  struct zps_job_image image = {.name = ""};
  struct zps_secret secret;
  const zps_json *from = NULL;
  uint32_t *servers = NULL, *leaving = NULL, *since = NULL;
  zps_err_t err = zps_control_job_id_read(record, &image.job_id, error);
  if (!err) err = zps_control_get_name(record, "name", 1, ZPS_NAME_MAX, &image.name, error);
  if (!err) err = zps_json_get_hex(record, "seed", &image.seed, error);
  if (!err && zps_json_get(record, "link_secret")) { /* none in records of before protocol 5, whose links are gone */
    err = zps_control_link_secret_read(record, &secret, error);
    image.secret = &secret;
  }
  image.checksums = zps_json_opt_bool(record, "checksums", false);
  if (!err) err = zps_control_opt_weight(record, &image.weight, error);
  if (!err) err = zps_control_get_u32(record, "epoch", 0, UINT32_MAX, &image.epoch, error);
  if (!err) err = zps_control_get_u32(record, "next_tensor", 0, UINT32_MAX, &image.next_tensor, error);
  if (!err) err = zps_json_get_array(record, "ranks", &from, error);
  image.world = (uint32_t)zps_json_array_len(from);
  if (!err && (image.world == 0 || image.world > ZPS_WORLD_MAX))
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "a job of %u ranks", image.world);
  if (!err)
    err = zps_control_get_u32s(record, "servers", ZPS_SERVERS_MAX, UINT32_MAX, &servers, &image.n_servers, error);
  image.n_first = image.n_servers;
  if (!err && zps_json_get(record, "began"))
    err = zps_control_get_u32(record, "began", 1, image.n_servers, &image.n_first, error);
  if (!err && zps_json_get(record, "leaving"))
    err = zps_control_get_u32s(record, "leaving", ZPS_SERVERS_MAX, UINT32_MAX, &leaving, &image.n_leaving, error);
  if (!err && zps_json_get(record, "drained"))
    err = zps_control_get_u32(record, "drained", 0, image.n_servers, &image.n_drained, error);
  if (!err && zps_json_get(record, "since"))
    err = zps_control_get_u32s(record, "since", ZPS_SERVERS_MAX, UINT32_MAX, &since, &image.n_since, error);
  if (err) {
    free(servers);
    free(leaving);
    free(since);
    return err;
  }
  zps_record_get_error(record, &image.error);
  struct zps_member_rank *ranks = calloc(image.world, sizeof *ranks);
  if (!ranks) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for a job of %u ranks", image.world);
  for (uint32_t r = 0; !err && r < image.world; r++) err = rank_read(zps_json_at(from, r), &ranks[r], error);
  uint32_t unused = 0, world = image.world;
  if (!err) err = zps_control_generation_read(record, &image.generation, &unused, &world, error);
  if (!err && world != image.world)
    err = zps_fail(error, ZPS_ERR_PROTOCOL, "a generation of %u ranks in a job of %u", world, image.world);
  image.ranks = ranks;
  image.servers = servers;
  image.leaving = leaving;
  image.since = since;
  if (!err) err = get_map(record, &image, error);
  if (!err) err = zps_record_fits(zps_members_restore_job(members, &image, now_ns), error);
  zps_job_steps_fini(&image.replay);
  free(ranks);
  free(servers);
  free(leaving);
  free(since);
  return err;
}

zps_json *zps_record_failed_write(const struct zps_member_note *note) {
  return zps_record_set_error(zps_control_job_id_write(note->job->job_id), &note->job->error);
}

zps_err_t zps_record_failed_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                 struct zps_error *error) {
  struct zps_error why;
  uint64_t job_id = 0;
  (void)now_ns;
  const zps_err_t err = zps_control_job_id_read(record, &job_id, error);
  zps_record_get_error(record, &why);
  return err ? err : zps_record_fits(zps_members_restore_failed(members, job_id, &why), error);
}

zps_json *zps_record_job_gone_write(const struct zps_member_note *note) {
  return zps_control_job_id_write(note->job->job_id);
}

zps_err_t zps_record_job_gone_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                   struct zps_error *error) {
  uint64_t job_id = 0;
  (void)now_ns;
  const zps_err_t err = zps_control_job_id_read(record, &job_id, error);
  return err ? err : zps_record_fits(zps_members_restore_job_gone(members, job_id), error);
}

zps_json *zps_record_rank_write(const struct zps_member_note *note) {
  zps_json *record = zps_json_set_u64(zps_control_job_id_write(note->job->job_id), "rank", note->rank);
  return zps_json_set_str(record, "state", zps_rank_state_name(note->job->ranks[note->rank]->state));
}

zps_err_t zps_record_rank_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                               struct zps_error *error) {
  enum zps_rank_state state = ZPS_RANK_LOST;
  uint64_t job_id = 0;
  uint32_t rank = 0;
  (void)now_ns;
  zps_err_t err = zps_control_job_id_read(record, &job_id, error);
  if (!err) err = zps_control_get_u32(record, "rank", 0, ZPS_WORLD_MAX - 1, &rank, error);
  if (!err) err = get_state(record, &state, error);
  return err ? err : zps_record_fits(zps_members_restore_rank(members, job_id, rank, state), error);
}

/* ------------------------------------------------------------ groups */

zps_json *zps_record_group_write(const struct zps_member_note *note) {
  const struct zps_member_group *group = note->group;
  zps_json *record =
               zps_control_group_close_write(&(struct zps_job_call){.job_id = note->job->job_id, .text = group->name}),
           *left = zps_json_array();
  for (uint32_t i = 0; i < group->n_ranks; i++)
    if (!group->members[i].here) left = zps_json_append_u64(left, group->ranks[i]);
  record = zps_json_set_u64(record, "first_rank", group->first_rank);
  record = zps_control_set_u32s(record, "ranks", group->ranks, group->n_ranks);
  return zps_json_set(record, "left", left);
}

zps_err_t zps_record_group_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                                struct zps_error *error) {
  const zps_json *left = NULL;
  struct zps_job_call of = {.text = ""};
  uint32_t first_rank = 0, n_ranks = 0, *ranks = NULL;
  (void)now_ns;
  zps_err_t err = zps_control_group_close_read(record, &of, error);
  if (!err) err = zps_control_get_u32(record, "first_rank", 0, ZPS_WORLD_MAX - 1, &first_rank, error);
  if (!err) err = zps_json_get_array(record, "left", &left, error);
  if (!err) err = zps_control_get_u32s(record, "ranks", ZPS_WORLD_MAX, ZPS_WORLD_MAX, &ranks, &n_ranks, error);
  if (err) return err;
  const uint32_t n_left = (uint32_t)zps_json_array_len(left);
  uint32_t *gone = calloc(n_left + 1u, sizeof *gone);
  if (!gone) err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for a group");
  for (uint32_t i = 0; !err && i < n_left; i++) {
    uint64_t rank = 0;
    err = zps_json_at_u64(left, i, ZPS_WORLD_MAX - 1, &rank, error);
    gone[i] = (uint32_t)rank;
  }
  if (!err)
    err = zps_record_fits(
        zps_members_restore_group(members, of.job_id, of.text, first_rank, ranks, n_ranks, gone, n_left), error);
  free(gone);
  free(ranks);
  return err;
}

zps_json *zps_record_seat_write(const struct zps_member_note *note) {
  return zps_json_set_u64(
      zps_control_group_close_write(&(struct zps_job_call){.job_id = note->job->job_id, .text = note->group->name}),
      "rank", note->rank);
}

zps_err_t zps_record_seat_read(struct zps_members *members, const zps_json *record, uint64_t now_ns,
                               struct zps_error *error) {
  struct zps_job_call of = {.text = ""};
  uint32_t rank = 0;
  (void)now_ns;
  zps_err_t err = zps_control_group_close_read(record, &of, error);
  if (!err) err = zps_control_get_u32(record, "rank", 0, ZPS_WORLD_MAX - 1, &rank, error);
  return err ? err : zps_record_fits(zps_members_restore_seat(members, of.job_id, of.text, rank), error);
}
