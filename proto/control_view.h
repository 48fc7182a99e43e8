/*
 * The view of a job: its servers in one epoch. job.join answers with it, job.open and job.view carry it, and the
 * coordinator's state keeps it. It is always whole: whoever gets a view compares it with the one he has, and a view
 * that comes twice changes nothing.
 */
#ifndef ZPS_PROTO_CONTROL_VIEW_H
#define ZPS_PROTO_CONTROL_VIEW_H

#include "common/net/net.h"
#include "proto/control.h"

/* The first four are words of the protocol. The coordinator alone has the others. */
enum zps_place_state {
  ZPS_PLACE_FREE,     /* No server. */
  ZPS_PLACE_IN,       /* Its server has the place's partitions. */
  ZPS_PLACE_LEAVING,  /* Its server lives, has no partitions any more, and goes when all ranks know. */
  ZPS_PLACE_JOINING,  /* Its server gets to know the job, and then takes the place. */
  ZPS_PLACE_LOST,     /* Its server is gone, and the next epoch is not made yet. */
  ZPS_PLACE_DISMISSED /* Its server need not take the place. Some of its answers are still under way. */
};

#define ZPS_NO_SERVER (UINT32_MAX - 2)

struct zps_place_server {
  char name[ZPS_NAME_MAX + 1]; /* Empty: the view does not name the server. */
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
};

struct zps_place_image {
  enum zps_place_state state;
  bool was_lost;   /* Its last server was lost. Else that server left in peace, or none ever came. */
  uint32_t since;  /* Epoch with which a later server took the place, or takes it; 0: none has. */
  uint32_t number; /* The server's, in the coordinator's state; ZPS_NO_SERVER: in messages. */
  struct zps_place_server server;
};

struct zps_view_image {
  uint32_t epoch;
  uint32_t n_first; /* Places that had servers at first. They come before the others. */
  uint32_t n_places;
  struct zps_place_image *places; /* malloc'd by the reader. */
};
/* A part of messages: member "view". */
extern const struct zps_fields zps_control_view;

static inline bool zps_view_image_is_in(const struct zps_view_image *view, uint32_t place) {
  return view->places[place].state == ZPS_PLACE_IN;
}
uint32_t zps_view_image_count_in(const struct zps_view_image *view);
/* malloc'd, of each place: no server has its partitions. That is what zps_owners_reassign() wants. NULL: no memory. */
bool *zps_view_image_without(const struct zps_view_image *view);
/* ZPS_ERR_NOMEM: *copy is empty. */
zps_err_t zps_view_image_copy(struct zps_view_image *copy, const struct zps_view_image *view) ZPS_MUSTCHECK;
void zps_view_image_fini(struct zps_view_image *view);
/* A reader's rule: servers that are in have addresses, those with a `since` of min_since or more. */
zps_err_t zps_view_image_check_named(const struct zps_view_image *view, uint32_t min_since,
                                     struct zps_error *error) ZPS_MUSTCHECK;

#endif
