#include "server/membership/view.h"

#include <stdlib.h>
#include <string.h>

#include "server/membership/member_tables.h"

zps_err_t zps_view_init(struct zps_view *view, uint32_t n_places, uint32_t n_first) {
  struct zps_view_place *const places = calloc(n_places + 1u, sizeof *places);
  if (!places) return ZPS_ERR_NOMEM;
  zps_view_fini(view);
  *view = (struct zps_view){.epoch = view->epoch, .n_places = n_places, .n_first = n_first, .places = places};
  return ZPS_OK;
}

void zps_view_fini(struct zps_view *view) {
  free(view->places);
  *view = (struct zps_view){.epoch = view->epoch};
}

static bool has_state(const struct zps_view_place *place, unsigned states) {
  return states >> place->state & 1;
}

struct zps_member_server *zps_view_listener(const struct zps_view *view, uint32_t position) {
  const struct zps_view_place *const place = &view->places[position];
  return has_state(place, 1u << ZPS_PLACE_IN | 1u << ZPS_PLACE_LEAVING) ? place->server : NULL;
}

uint32_t zps_view_find(const struct zps_view *view, const struct zps_member_server *server, unsigned states) {
  uint32_t i = 0;
  while (i < view->n_places && !(view->places[i].server == server && has_state(&view->places[i], states))) i++;
  return i;
}

uint32_t zps_view_count(const struct zps_view *view, enum zps_place_state state) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < view->n_places; i++) n += view->places[i].state == state;
  return n;
}

uint32_t zps_view_count_lost(const struct zps_view *view) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < view->n_places; i++) n += view->places[i].was_lost;
  return n;
}

bool zps_view_has_successors(const struct zps_view *view) {
  for (uint32_t i = 0; i < view->n_places; i++)
    if (view->places[i].since) return true;
  return false;
}

static void describe_server(const struct zps_member_server *server, struct zps_place_server *to) {
  strcpy(to->name, server->name);
  memcpy(to->addr, server->fabric.addr, server->fabric.addr_len);
  to->addr_len = server->fabric.addr_len;
}

static void describe_place(const struct zps_view_place *place, enum zps_view_reader reader,
                           struct zps_place_image *image) {
  *image = (struct zps_place_image){.was_lost = place->was_lost, .since = place->since, .number = ZPS_NO_SERVER};
  switch (place->state) {
    case ZPS_PLACE_IN:
    case ZPS_PLACE_LEAVING:
      image->state = place->state;
      if (reader == ZPS_VIEW_FOR_STATE) image->number = place->server->index;
      break;
    case ZPS_PLACE_JOINING:
      if (reader == ZPS_VIEW_FOR_STATE) break;
      image->state = ZPS_PLACE_JOINING;
      image->since = place->next_since;
      break;
    default:
      break;
  }
  const bool is_named = reader == ZPS_VIEW_FOR_NEW_RANK || (reader == ZPS_VIEW_FOR_RANK && place->since > 0);
  if (is_named && image->state == ZPS_PLACE_IN) describe_server(place->server, &image->server);
}

zps_err_t zps_view_describe(const struct zps_view *view, enum zps_view_reader reader, struct zps_view_image *image) {
  *image = (struct zps_view_image){.epoch = view->epoch, .n_first = view->n_first, .n_places = view->n_places};
  image->places = calloc(view->n_places + 1u, sizeof *image->places);
  if (!image->places) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < view->n_places; i++) describe_place(&view->places[i], reader, &image->places[i]);
  return ZPS_OK;
}

void zps_view_vacate(struct zps_view *view, uint32_t position) {
  struct zps_view_place *const place = &view->places[position];
  *place = (struct zps_view_place){.since = place->since, .was_lost = place->was_lost};
}

void zps_view_seize(struct zps_view *view, uint32_t position) {
  struct zps_view_place *const place = &view->places[position];
  *place = (struct zps_view_place){.state = ZPS_PLACE_IN, .server = place->server, .since = place->next_since};
}
