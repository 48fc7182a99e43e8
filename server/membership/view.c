#include "server/membership/view.h"

#include <stdlib.h>

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

zps_err_t zps_view_positions(const struct zps_view *view, unsigned states, uint32_t **positions_p, uint32_t *n_p) {
  uint32_t *const positions = calloc(view->n_places + 1u, sizeof *positions), n = 0;
  if (!positions) return ZPS_ERR_NOMEM;
  for (uint32_t i = 0; i < view->n_places; i++)
    if (has_state(&view->places[i], states)) positions[n++] = i;
  *positions_p = positions;
  *n_p = n;
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
