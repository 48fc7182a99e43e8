/* Records of groups, and of the seats of elastic jobs. */
#include <stdlib.h>

#include "server/coordinator/records_impl.h"
#include "server/membership/elastic.h"

/* ------------------------------------------------------------ groups */

struct image {
  uint64_t job_id;
  const char *name;
  uint32_t first_rank, n_ranks, n_left;
  const uint32_t *ranks, *left;
};

#define AT(member) ZPS_FIELD_AT(struct image, member)
static const struct zps_field group_members[] = {
    {"job_id", ZPS_FIELD_HEX, AT(job_id)},
    {"group", ZPS_FIELD_NAME, AT(name), .min = 1, .max = ZPS_NAME_MAX},
    {"first_rank", ZPS_FIELD_NUMBER, AT(first_rank), .max = ZPS_WORLD_MAX - 1},
    {"ranks", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct image, ranks, n_ranks), .n_min = 1, .n_max = ZPS_WORLD_MAX,
     .max = ZPS_WORLD_MAX - 1},
    {"left", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct image, left, n_left), .n_max = ZPS_WORLD_MAX,
     .max = ZPS_WORLD_MAX - 1},
};
#undef AT
const struct zps_fields zps_record_group = {.name = "group", ZPS_FIELDS_OF(struct image, group_members)};

const void *zps_record_group_of(const struct zps_member_note *note, void *room, void **list_p) {
  const struct zps_member_group *const group = note->group;
  struct image *const image = room;
  uint32_t *const left = *list_p = calloc(group->n_ranks, sizeof *left);
  if (!left) return NULL;
  *image = (struct image){.job_id = note->job->job_id,
                          .name = group->name,
                          .first_rank = group->first_rank,
                          .ranks = group->ranks,
                          .n_ranks = group->n_ranks,
                          .left = left};
  for (uint32_t i = 0; i < group->n_ranks; i++)
    if (!group->members[i].here) left[image->n_left++] = group->ranks[i];
  return image;
}

zps_err_t zps_record_group_restore(struct zps_members *members, const void *read) {
  const struct image *const is = read;
  return zps_members_restore_group(members, is->job_id, is->name, is->first_rank, is->ranks, is->n_ranks, is->left,
                                   is->n_left);
}

/* ------------------------------------------------------------ seats of elastic jobs */

#define AT(member) ZPS_FIELD_AT(struct zps_seats_image, member)
static const struct zps_field seats[] = {
    {"name", ZPS_FIELD_NAME, AT(name), .min = 1, .max = ZPS_NAME_MAX},
    {"generation", ZPS_FIELD_NUMBER, AT(number)},
    {"last_job", ZPS_FIELD_HEX, AT(last_job)},
    {"world", ZPS_FIELD_NUMBER, AT(world), .min = 1, .max = ZPS_WORLD_MAX},
    {"moving", ZPS_FIELD_NUMBER, ZPS_FIELD_LIST_AT(struct zps_seats_image, moving, n_moving), .n_min = 1,
     .n_max = ZPS_WORLD_MAX, .max = ZPS_WORLD_MAX - 1, .optional = true},
};
#undef AT
const struct zps_fields zps_record_seats = {.name = "seats", ZPS_FIELDS_OF(struct zps_seats_image, seats)};

const void *zps_record_seats_of(const struct zps_member_elastic *elastic, void *room, void **list_p) {
  struct zps_seats_image *const image = room;
  uint32_t *const moving = *list_p = calloc(elastic->last_world + 1u, sizeof *moving);
  if (!moving) return NULL;
  *image = (struct zps_seats_image){.name = elastic->name,
                                    .last_job = elastic->last_job,
                                    .number = elastic->number,
                                    .world = elastic->last_world,
                                    .moving = moving};
  for (uint32_t r = 0; r < elastic->last_world; r++)
    if (elastic->moves[r]) moving[image->n_moving++] = r;
  return image;
}
