/*
 * The servers of a job. A view is an epoch and its places: a place has partitions, and at most one server. Events write
 * facts about places, places.c changes their states, and view_change.c makes the next epoch known to servers and ranks.
 * They get the view, and the state keeps it, as a struct zps_view_image.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_VIEW_H
#define ZPS_SERVER_MEMBERSHIP_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/control_view.h"

struct zps_member_server;

/* What a server or rank has heard of the present epoch. One that comes back has heard nothing. */
enum zps_view_notice { ZPS_NOTIFIED_NOTHING, ZPS_NOTIFIED_VIEW, ZPS_NOTIFIED_REPLAY };

struct zps_view_place {
  enum zps_place_state state;
  struct zps_member_server *server; /* NULL: FREE. */
  uint32_t since;                   /* Epoch with which a later server took the place; 0: none has. */
  uint32_t next_since;              /* JOINING: epoch with which the server comes. No job lives in it. */
  unsigned n_pending;               /* JOINING, DISMISSED: calls without an answer. */
  uint32_t version;                 /* JOINING: the job's version when its server was asked. */
  bool is_refused;                  /* JOINING: its server cannot take the place. */
  bool is_cut_off;                  /* IN, LEAVING: ranks cannot reach its server. */
  enum zps_view_notice notified;    /* IN, LEAVING. */
  bool was_lost;                    /* Its last server was lost. Else that server left in peace, or none ever came. */
  bool has_mapped;                  /* Its server has answered job.view of this epoch. */
};

struct zps_view {
  uint32_t epoch; /* From OPENING on. */
  uint32_t n_places;
  uint32_t n_first; /* Places that had servers at first. They come before the others. */
  struct zps_view_place *places;
};

/* Free places; `n_first` of them are to have servers at first. ZPS_ERR_NOMEM. */
zps_err_t zps_view_init(struct zps_view *view, uint32_t n_places, uint32_t n_first) ZPS_MUSTCHECK;
void zps_view_fini(struct zps_view *view);

/* The server that has the place's partitions; NULL: none. */
static inline struct zps_member_server *zps_view_server(const struct zps_view *view, uint32_t position) {
  return view->places[position].state == ZPS_PLACE_IN ? view->places[position].server : NULL;
}
/* The server that hears of the next epoch: one that leaves stops then, and says nothing more to ranks. NULL: none. */
struct zps_member_server *zps_view_listener(const struct zps_view *view, uint32_t position);
/* The position of the server, in one of the states with bits `1u << state`; n_places: it has none. */
uint32_t zps_view_find(const struct zps_view *view, const struct zps_member_server *server, unsigned states);
uint32_t zps_view_count(const struct zps_view *view, enum zps_place_state state);
/* Places whose last server was lost, and no other one came. */
uint32_t zps_view_count_lost(const struct zps_view *view);
/* A later server has taken one of the places. */
bool zps_view_has_successors(const struct zps_view *view);
/* Who reads an image of the view. */
enum zps_view_reader {
  ZPS_VIEW_FOR_NEW_RANK, /* Has no view yet: all servers that are in have their names and addresses. */
  ZPS_VIEW_FOR_RANK,     /* Knows the servers that the job began with: the later ones have names and addresses. */
  ZPS_VIEW_FOR_SERVER,   /* Needs no other server: there are no names. */
  ZPS_VIEW_FOR_STATE     /* Has the servers: places have their numbers. Servers that join do not count. */
};
/* Fills the image, which the caller frees. ZPS_ERR_NOMEM. */
zps_err_t zps_view_describe(const struct zps_view *view, enum zps_view_reader reader,
                            struct zps_view_image *image) ZPS_MUSTCHECK;

/* The place is free again. */
void zps_view_vacate(struct zps_view *view, uint32_t position);
/* The server that joins takes its place. */
void zps_view_seize(struct zps_view *view, uint32_t position);

#endif
