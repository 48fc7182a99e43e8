/*
 * The policy: the servers that the places of a running job should have, and when an elastic job goes on with other
 * ranks. It has pure functions of facts. It alone decides, whatever the cause: a loss, a drain, a cut, a free place, a
 * rank that asks, an administrator's wish.
 */
#ifndef ZPS_SERVER_MEMBERSHIP_PLACEMENT_H
#define ZPS_SERVER_MEMBERSHIP_PLACEMENT_H

#include "proto/control.h"
#include "server/membership/view.h"

/* A place of the job, and its server. */
struct zps_place_fact {
  enum zps_place_state state;
  bool drains;     /* The server is to have no jobs. */
  bool is_cut_off; /* Ranks cannot reach the server over the data plane. */
  bool is_refused; /* JOINING: the server cannot take the place. */
  bool is_stale;   /* JOINING: the job has changed since the server was asked. */
  bool owes;       /* JOINING: the server has answers to give. */
};

/* A server that takes jobs and has no place in this one. */
struct zps_spare_fact {
  bool was_cut_off;  /* It had to leave this job. It comes after the others. */
  uint64_t ready_ns; /* It has settled then. A server that was cut off: its pause ends then. */
};

struct zps_placement_facts {
  uint64_t now_ns;
  uint64_t settled_ns; /* The job has settled then: no server is asked before. */
  bool outlives;       /* Jobs outlive their servers (coordinator.server_loss). */
  bool is_movable;     /* No sum or push of the job would be lost with a server that leaves in peace. */
  bool is_changing;    /* Servers or ranks have yet to answer for the present epoch. */
  bool is_away;        /* The connection of a server or rank of the job has ended. */
  bool is_full;        /* The job takes no servers in: it is elastic, about to end, or opens a tensor. */
  bool is_urgent;      /* An administrator wants free places taken now. */
  uint32_t n_places, n_spares;
  struct zps_place_fact places[ZPS_SERVERS_MAX];
  struct zps_spare_fact spares[ZPS_SERVERS_MAX]; /* In the order in which they came. */
};

struct zps_placement {
  bool fails;        /* The job cannot go on. */
  bool moves;        /* Partitions get other owners: a view change begins. */
  bool is_answer;    /* The administrator's wish is granted, or no server is there for it. */
  uint64_t again_ns; /* Time changes nothing before that. ZPS_NEVER: nor after it. */
  enum zps_place_state wants[ZPS_SERVERS_MAX];
  uint32_t spares[ZPS_SERVERS_MAX]; /* The spare server of a place that goes from FREE to JOINING. */
};

/* Fills in the first n_places entries. */
void zps_placement_decide(const struct zps_placement_facts *facts, struct zps_placement *placement);

/* An elastic job: the ranks of its last generation, and the processes that ask to be in the next one. */
struct zps_seating_facts {
  uint32_t n_survivors;             /* Ranks of the last generation that ask. */
  uint32_t n_newcomers;             /* Others that ask. */
  uint32_t n_awaited;               /* Ranks of the last generation that have yet to ask. */
  uint32_t last_world;              /* Ranks that the last generation had. */
  uint32_t min_world, max_world;    /* Fewest and most ranks of a generation. */
  uint64_t waited_ns, last_call_ns; /* Ends of the wait for more ranks, and for those that are awaited. */
  bool is_opening;                  /* The next generation has begun, and does not run yet. */
  bool is_running;                  /* The last generation runs. */
  bool is_changed;                  /* Its ranks are to begin the next one already. */
  bool is_wanted;                   /* An administrator wants that. */
  uint64_t spare_ns;                /* Time to take in servers that have come. ZPS_NEVER: the job needs none. */
};

/* When the next generation begins. ZPS_NEVER: not without another event. */
uint64_t zps_seating_begins_ns(const struct zps_seating_facts *facts);
/* When the ranks of the last generation are to begin the next one, though nothing is wrong. */
uint64_t zps_seating_changes_ns(const struct zps_seating_facts *facts);

#endif
