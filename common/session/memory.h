/*
 * Requests for registered memory, and the order in which they are served when it is short. The order is the same at
 * both ends: by `age`, then by `part`, then as they came. The share of each request is not known here: one function
 * decides it, request by request, so that each end decides in one place. All on the engine thread.
 */
#ifndef ZPS_SESSION_MEMORY_H
#define ZPS_SESSION_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

struct zps_buf;

/* A request; embedded in the object that asks. */
struct zps_memory_wait {
  uint64_t age; /* the smaller, the earlier it is served */
  uint32_t part;
  uint64_t len_bytes;
  struct zps_buf *buf_p;                         /* where the buffer goes */
  void (*granted)(struct zps_memory_wait *wait); /* NULL: ask() does the work that follows */
  struct zps_memory_wait *prev, *next;           /* from here on of the line */
  bool is_queued;
};

enum zps_memory_answer {
  ZPS_MEMORY_NOW,    /* its memory is taken */
  ZPS_MEMORY_PASSED, /* it waits, and those behind it are asked for */
  ZPS_MEMORY_LATER,  /* it waits, and those behind it do, too */
  ZPS_MEMORY_REFUSED /* the object that asked was ended, with a text, and its requests were canceled */
};

struct zps_memory_line {
  enum zps_memory_answer (*ask)(void *ctx, struct zps_memory_wait *wait);
  void *ctx;
  struct zps_memory_wait *first, *last;
  bool is_serving;
};

/* `ask` takes memory for a request, if it may have some now. It may add and cancel requests, also the one it is asked
 * for. */
void zps_memory_init(struct zps_memory_line *memory,
                     enum zps_memory_answer (*ask)(void *ctx, struct zps_memory_wait *wait), void *ctx);
/* Puts the request in line; it is served by a later zps_memory_serve(). */
void zps_memory_add(struct zps_memory_line *memory, struct zps_memory_wait *wait);
/* Asks for those that wait, oldest first, and begins again after each that was served or refused. granted() may add and
 * cancel requests; to serve from there is for the call that is under way. */
void zps_memory_serve(struct zps_memory_line *memory);
/* A request that does not wait is left alone. */
void zps_memory_cancel(struct zps_memory_line *memory, struct zps_memory_wait *wait);

#endif
