/* Views without JSON, which the data plane links. */
#include <stdlib.h>
#include <string.h>

#include "proto/control_view.h"

uint32_t zps_view_image_count_in(const struct zps_view_image *view) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < view->n_places; i++) n += zps_view_image_is_in(view, i);
  return n;
}

bool *zps_view_image_without(const struct zps_view_image *view) {
  bool *const without = calloc(view->n_places + 1u, sizeof *without);
  for (uint32_t i = 0; without && i < view->n_places; i++) without[i] = !zps_view_image_is_in(view, i);
  return without;
}

zps_err_t zps_view_image_copy(struct zps_view_image *copy, const struct zps_view_image *view) {
  struct zps_place_image *const places = calloc(view->n_places + 1u, sizeof *places);
  *copy = (struct zps_view_image){.epoch = 0};
  if (!places) return ZPS_ERR_NOMEM;
  *copy = *view;
  copy->places = places;
  if (view->n_places > 0) memcpy(places, view->places, view->n_places * sizeof *places);
  return ZPS_OK;
}

void zps_view_image_fini(struct zps_view_image *view) {
  free(view->places);
  *view = (struct zps_view_image){.epoch = 0};
}

zps_err_t zps_view_image_check_named(const struct zps_view_image *view, uint32_t min_since, struct zps_error *error) {
  for (uint32_t i = 0; i < view->n_places; i++) {
    const struct zps_place_image *const place = &view->places[i];
    if (place->state == ZPS_PLACE_IN && place->since >= min_since && place->server.addr_len == 0)
      return zps_fail(error, ZPS_ERR_PROTOCOL, "member 'view.places[%u].address' is missing, want that of its server",
                      i);
  }
  return ZPS_OK;
}
