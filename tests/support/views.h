/* Views of a job, one letter a place. */
#ifndef ZPS_TESTS_SUPPORT_VIEWS_H
#define ZPS_TESTS_SUPPORT_VIEWS_H

#include "proto/control_view.h"

/* "i": in, "l": leaving, "j": joining, "f": free, "x": lost. The view borrows `places`, one for each letter. */
static inline struct zps_view_image view_of(struct zps_place_image *places, uint32_t epoch, uint32_t n_first,
                                            const char *letters) {
  struct zps_view_image view = {.epoch = epoch, .n_first = n_first, .places = places};
  for (; letters[view.n_places]; view.n_places++) {
    const char letter = letters[view.n_places];
    places[view.n_places] = (struct zps_place_image){.state = letter == 'i'   ? ZPS_PLACE_IN
                                                              : letter == 'l' ? ZPS_PLACE_LEAVING
                                                              : letter == 'j' ? ZPS_PLACE_JOINING
                                                                              : ZPS_PLACE_FREE,
                                                     .was_lost = letter == 'x',
                                                     .number = ZPS_NO_SERVER};
  }
  return view;
}

#endif
