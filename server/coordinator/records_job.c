/* The record of a job: all of it but tensors and groups. */
#include <stdlib.h>
#include <string.h>

#include "common/base/fair.h"
#include "proto/control_map.h"
#include "proto/control_next.h"
#include "server/coordinator/records_impl.h"

#define LOST_SERVER (UINT32_MAX - 1) /* The place has no server: it was lost. */

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

struct image {
  struct zps_job_image job;
  struct zps_secret secret;
  struct zps_next_answer next;
};

static zps_err_t check_lists(const struct zps_job_image *job, struct zps_error *error) {
  const char *key = NULL;
  uint32_t n = 0;
  if (job->leaving && job->n_leaving != job->n_servers) key = "leaving", n = job->n_leaving;
  if (job->since && job->n_since != job->n_servers) key = "since", n = job->n_since;
  if (!key) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_PROTOCOL, "member '%s' has %u elements, want one for each of %u servers", key, n,
                  job->n_servers);
}

static zps_err_t check_job(void *read, struct zps_error *error) {
  static const struct zps_secret none;
  struct image *const image = read;
  struct zps_job_image *const job = &image->job;
  /* Records of before protocol 5 have no secret. The links of such a job are gone. */
  job->secret = memcmp(&image->secret, &none, sizeof none) == 0 ? NULL : &image->secret;
  zps_record_origin_read(&job->origin);
  zps_record_origin_read(&job->tenant);
  job->generation = image->next.generation;
  if (job->n_first == 0) job->n_first = job->n_servers;
  if (job->n_first > job->n_servers)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'began' is %u, want 1 to %u", job->n_first, job->n_servers);
  if (job->n_drained > job->n_servers)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'drained' is %u, want 0 to %u", job->n_drained, job->n_servers);
  if (job->generation.number > 0 && image->next.world != job->world)
    return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'world' is %u, want %u, as there are ranks", image->next.world,
                    job->world);
  return check_lists(job, error);
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
    {"began", ZPS_FIELD_NUMBER, AT(job.n_first), .min = 1, .optional = true},
    {"epoch", ZPS_FIELD_NUMBER, AT(job.epoch)},
    {.type = ZPS_FIELD_PART, AT(next), .part = &zps_control_next_answer, .optional = true},
    {"next_tensor", ZPS_FIELD_NUMBER, AT(job.next_tensor)},
    {"started_ms", ZPS_FIELD_NUMBER, AT(job.started_ms), .optional = true},
    {.type = ZPS_FIELD_PART, AT(job.error), .part = &zps_record_why, .optional = true},
    {"cause", ZPS_FIELD_OBJECT, AT(job.cause), .part = &zps_record_cause, .optional = true},
    {"maps", ZPS_FIELD_FLAG, AT(job.maps), .optional = true},
    {"replay", ZPS_FIELD_OBJECT, AT(job.replay), .part = &zps_control_job_steps, .optional = true},
    {"leaving", ZPS_FIELD_NUMBER, PLACES_AT(job.leaving, job.n_leaving), .optional = true},
    {"drained", ZPS_FIELD_NUMBER, AT(job.n_drained), .optional = true},
    {"lost_servers", ZPS_FIELD_TEXT, AT(job.lost_servers), .optional = true},
    {"since", ZPS_FIELD_NUMBER, PLACES_AT(job.since, job.n_since), .optional = true},
    {"servers", ZPS_FIELD_NUMBER, PLACES_AT(job.servers, job.n_servers)},
    {"ranks", ZPS_FIELD_OBJECT, ZPS_FIELD_LIST_AT(struct image, job.ranks, job.world), .by_pointer = true, .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .part = &rank_fields},
};
#undef PLACES_AT
#undef AT
const struct zps_fields zps_record_job = {.name = "job", ZPS_FIELDS_OF(struct image, fields), .check = check_job};

static uint32_t index_of(const struct zps_member_server *server, bool was_lost) {
  return server ? server->index : was_lost ? LOST_SERVER : ZPS_NO_SERVER;
}

/* Servers that still live, and are about to leave the job, are released with this note when all have heard. */
static void set_places(struct zps_job_image *image, const struct zps_view *view, bool has_leavers, uint32_t *lists) {
  uint32_t *const servers = lists, *const leaving = servers + view->n_places, *const since = leaving + view->n_places;
  for (uint32_t i = 0; i < view->n_places; i++) {
    const struct zps_view_place *const place = &view->places[i];
    servers[i] = index_of(zps_view_server(view, i), place->was_lost);
    leaving[i] = index_of(place->state == ZPS_PLACE_LEAVING ? place->server : NULL, true);
    since[i] = place->since;
  }
  image->servers = servers;
  image->n_servers = view->n_places;
  image->leaving = leaving;
  image->n_leaving = has_leavers ? view->n_places : 0;
  image->since = since;
  image->n_since = zps_view_has_successors(view) ? view->n_places : 0;
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

const void *zps_record_job_of(const struct zps_member_job *job, void *room, uint32_t **lists_p) {
  const struct zps_view *const view = &job->view;
  struct image *const image = room;
  *lists_p = calloc(3 * view->n_places + 1u, sizeof **lists_p);
  if (!*lists_p) return NULL;
  image->job = (struct zps_job_image){.name = job->name,
                                      .job_id = job->job_id,
                                      .seed = job->seed,
                                      .origin = job->origin,
                                      .tenant = job->tenant,
                                      .checksums = job->checksums,
                                      .weight = job->weight,
                                      .epoch = view->epoch,
                                      .world = job->world,
                                      .next_tensor = job->next_tensor,
                                      .started_ms = job->started_ms,
                                      .cause = job->cause,
                                      .n_first = view->n_first < view->n_places ? view->n_first : 0,
                                      .ranks = job->ranks};
  strcpy(image->job.lost_servers, job->lost_servers);
  image->secret = job->secret;
  image->next = (struct zps_next_answer){.generation = job->generation, .world = job->world};
  if (job->state == ZPS_JOB_CLOSING) image->job.error = job->error;
  set_map(&image->job, job);
  set_places(&image->job, view, job->map.state != ZPS_MAP_OVER && zps_view_count(view, ZPS_PLACE_LEAVING) > 0,
             *lists_p);
  return image;
}

zps_err_t zps_record_job_restore(struct zps_members *members, void *read, uint64_t now_ns) {
  return zps_members_restore_job(members, &((struct image *)read)->job, now_ns);
}
