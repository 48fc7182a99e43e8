/* The record of a job: all of it but tensors and groups. */
#include <stdlib.h>
#include <string.h>

#include "common/base/fair.h"
#include "proto/control_next.h"
#include "server/coordinator/records_impl.h"

const char *zps_record_rank_state(unsigned state) {
  return zps_rank_state_name((enum zps_rank_state)state);
}

#define AT(member) ZPS_FIELD_AT(struct zps_member_rank, member)
static const struct zps_field rank[] = {
    {"state", ZPS_FIELD_WORD, AT(state), .word = zps_record_rank_state, .min = ZPS_RANK_IN, .max = ZPS_RANK_LOST},
    {"host", ZPS_FIELD_TEXT, AT(host), .min = 1},
    {"rack", ZPS_FIELD_TEXT, AT(rack)},
    {"pid", ZPS_FIELD_NUMBER, AT(pid)},
    {"secret", ZPS_FIELD_HEX, AT(secret), .optional = true},
    {"fabric", ZPS_FIELD_OBJECT, AT(fabric), .part = &zps_control_fabric},
};
#undef AT
static const struct zps_fields rank_fields = {ZPS_FIELDS_OF(struct zps_member_rank, rank)};

/* The view in records of version 1, by place. */
struct view_1 {
  uint32_t epoch, n_first;
  uint32_t n_servers, *servers; /* ZPS_NO_SERVER: none, and none was lost. Any other unknown one: it was lost. */
  uint32_t n_leaving, *leaving; /* Servers that leave, and have not been let go. */
  uint32_t n_since, *since;
  uint32_t n_drained; /* Places without a server that lost none, though `servers` says so. */
};

struct image {
  struct zps_job_image job;
  struct zps_secret secret;
  struct zps_next_answer next;
  struct view_1 old;
};

/* ------------------------------------------------------------ version 1 */

#define LOST_SERVER_1 (UINT32_MAX - 1)

static zps_err_t check_old(struct view_1 *old, struct zps_error *error) {
  const char *key = NULL;
  uint32_t n = 0;
  if (old->n_servers == 0) return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'view' is missing, want an object");
  if (old->n_first == 0) old->n_first = old->n_servers;
  if (old->n_first > old->n_servers)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'began' is %u, want 1 to %u", old->n_first, old->n_servers);
  if (old->n_drained > old->n_servers)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'drained' is %u, want 0 to %u", old->n_drained, old->n_servers);
  if (old->leaving && old->n_leaving != old->n_servers) key = "leaving", n = old->n_leaving;
  if (old->since && old->n_since != old->n_servers) key = "since", n = old->n_since;
  if (!key) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %u elements, want one for each of %u servers", key, n,
                  old->n_servers);
}

static struct zps_place_image place_of_old(const struct view_1 *old, uint32_t i) {
  struct zps_place_image place = {.since = old->since ? old->since[i] : 0, .number = old->servers[i]};
  if (old->servers[i] < ZPS_NO_SERVER) {
    place.state = ZPS_PLACE_IN;
    return place;
  }
  place.was_lost = old->servers[i] == LOST_SERVER_1;
  place.number = old->leaving ? old->leaving[i] : ZPS_NO_SERVER;
  if (place.number < ZPS_NO_SERVER)
    place.state = ZPS_PLACE_LEAVING;
  else
    place.number = ZPS_NO_SERVER;
  return place;
}

static zps_err_t convert_old(struct view_1 *old, struct zps_view_image *view, struct zps_error *error) {
  const zps_err_t err = check_old(old, error);
  if (err) return err;
  view->places = calloc(old->n_servers, sizeof *view->places);
  if (!view->places) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %u places", old->n_servers);
  view->epoch = old->epoch;
  view->n_first = old->n_first;
  view->n_places = old->n_servers;
  for (uint32_t i = 0; i < old->n_servers; i++) view->places[i] = place_of_old(old, i);
  /* Such a journal has their number alone. The last places are those that may never have had a server. */
  for (uint32_t i = old->n_servers, n = old->n_drained; i-- > 0 && n > 0;) {
    n -= view->places[i].was_lost;
    view->places[i].was_lost = false;
  }
  return zps_control_view.check(view, error);
}

/* ------------------------------------------------------------ reading */

static zps_err_t check_job(void *read, struct zps_error *error) {
  static const struct zps_secret none;
  struct image *const image = read;
  struct zps_job_image *const job = &image->job;
  /* Records of before protocol 5 have no secret. The links of such a job are gone. */
  job->secret = memcmp(&image->secret, &none, sizeof none) == 0 ? NULL : &image->secret;
  zps_record_origin_read(&job->origin);
  zps_record_origin_read(&job->tenant);
  job->generation = image->next.generation;
  if (job->generation.number > 0 && image->next.world != job->world)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'world' is %u, want %u, as there are ranks", image->next.world,
                    job->world);
  return job->view.n_places > 0 ? ZPS_OK : convert_old(&image->old, &job->view, error);
}

#define AT(member) ZPS_FIELD_AT(struct image, member)
#define PLACES_AT(member, n_member) \
  ZPS_FIELD_LIST_AT(struct image, member, n_member), .n_min = 1, .n_max = ZPS_SERVERS_MAX, .max = UINT32_MAX - 1
static const struct zps_field fields[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job.job_id)},
    {"name", ZPS_FIELD_NAME, AT(job.name), .min = 1, .max = ZPS_NAME_MAX},
    {"seed", ZPS_FIELD_HEX, AT(job.seed)},
    {"link_secret", ZPS_FIELD_SECRET, AT(secret), .optional = true, .always = true},
    {"origin", ZPS_FIELD_SECRET, AT(job.origin.bytes), .optional = true},
    {"tenant", ZPS_FIELD_SECRET, AT(job.tenant.bytes), .optional = true},
    {"checksums", ZPS_FIELD_FLAG, AT(job.checksums), .optional = true},
    {"weight", ZPS_FIELD_NUMBER, AT(job.weight), .min = 1, .max = ZPS_FAIR_WEIGHT_MAX, .optional = true, .absent = 1},
    {"began", ZPS_FIELD_NUMBER, AT(old.n_first), .min = 1, .optional = true},
    {"epoch", ZPS_FIELD_NUMBER, AT(old.epoch), .optional = true},
    {"view", ZPS_FIELD_OBJECT, AT(job.view), .part = &zps_control_view, .optional = true},
    {.type = ZPS_FIELD_PART, AT(next), .part = &zps_control_next_answer, .optional = true},
    {"next_tensor", ZPS_FIELD_NUMBER, AT(job.next_tensor)},
    {"started_ms", ZPS_FIELD_NUMBER, AT(job.started_ms), .optional = true},
    {.type = ZPS_FIELD_PART, AT(job.error), .part = &zps_record_why, .optional = true},
    {"cause", ZPS_FIELD_OBJECT, AT(job.cause), .part = &zps_record_cause, .optional = true},
    {"maps", ZPS_FIELD_FLAG, AT(job.maps), .optional = true},
    {"replay", ZPS_FIELD_OBJECT, AT(job.replay), .part = &zps_control_job_steps, .optional = true},
    {"leaving", ZPS_FIELD_NUMBER, PLACES_AT(old.leaving, old.n_leaving), .optional = true},
    {"drained", ZPS_FIELD_NUMBER, AT(old.n_drained), .optional = true},
    {"lost_servers", ZPS_FIELD_TEXT, AT(job.lost_servers), .optional = true},
    {"since", ZPS_FIELD_NUMBER, PLACES_AT(old.since, old.n_since), .optional = true},
    {"servers", ZPS_FIELD_NUMBER, PLACES_AT(old.servers, old.n_servers), .optional = true},
    {"ranks", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct image, job.ranks, job.world), .by_pointer = true, .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .part = &rank_fields},
};
#undef PLACES_AT
#undef AT
const struct zps_fields zps_record_job = {.name = "job", ZPS_FIELDS_OF(struct image, fields), .check = check_job};

/* ------------------------------------------------------------ writing */

/* When all have heard, this note releases the servers that still live and are about to leave the job. */
static void release_leavers(struct zps_view_image *view) {
  for (uint32_t i = 0; i < view->n_places; i++) {
    if (view->places[i].state != ZPS_PLACE_LEAVING) continue;
    view->places[i].state = ZPS_PLACE_FREE;
    view->places[i].number = ZPS_NO_SERVER;
  }
}

/* A job that lost servers: whether all have heard, and the steps for ranks that come back. */
static void set_map(struct zps_job_image *image, const struct zps_member_job *job) {
  bool is_whole = !zps_view_has_successors(&job->view);
  for (uint32_t i = 0; i < job->view.n_first; i++) is_whole = is_whole && zps_view_server(&job->view, i);
  if (job->state != ZPS_JOB_RUNNING || is_whole) return;
  image->maps = zps_member_map_is_open(job);
  if (image->maps) return;
  image->replay = job->map.steps;
  image->replay.job_id = job->job_id;
  image->replay.epoch = job->view.epoch;
}

const void *zps_record_job_of(const struct zps_member_job *job, void *room, void **list_p) {
  struct image *const image = room;
  struct zps_view_image view;
  if (zps_view_describe(&job->view, ZPS_VIEW_FOR_STATE, &view)) return NULL;
  if (job->map.state == ZPS_MAP_OVER) release_leavers(&view);
  *list_p = view.places;
  image->job = (struct zps_job_image){.name = job->name,
                                      .job_id = job->job_id,
                                      .seed = job->seed,
                                      .origin = job->origin,
                                      .tenant = job->tenant,
                                      .checksums = job->checksums,
                                      .weight = job->weight,
                                      .world = job->world,
                                      .next_tensor = job->next_tensor,
                                      .started_ms = job->started_ms,
                                      .cause = job->cause,
                                      .view = view,
                                      .ranks = job->ranks};
  strcpy(image->job.lost_servers, job->lost_servers);
  image->secret = job->secret;
  image->next = (struct zps_next_answer){.generation = job->generation, .world = job->world};
  if (job->state == ZPS_JOB_CLOSING) image->job.error = job->error;
  set_map(&image->job, job);
  return image;
}

zps_err_t zps_record_job_restore(struct zps_members *members, void *read, uint64_t now_ns) {
  return zps_members_restore_job(members, &((struct image *)read)->job, now_ns);
}
