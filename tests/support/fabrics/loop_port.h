/* The part of an in-process endpoint that other endpoints' threads touch: its inbox and its readable memory, under one
 * lock. A port outlives its endpoint's closing while peers still name it. Private to loop.c. */
#ifndef ZPS_NET_LOOP_PORT_H
#define ZPS_NET_LOOP_PORT_H

#include "common/net/net.h"

struct zps_loop_port;
struct zps_loop_region;

struct zps_loop_message {
  struct zps_loop_message *next;
  uint64_t src; /* the sender's port */
  size_t len;
  uint8_t data[];
};

/* Makes a port with `n_receives` receives posted and lets others find it by its id. */
zps_err_t zps_loop_port_open(size_t n_receives, struct zps_loop_port **port_p) ZPS_MUSTCHECK;
uint64_t zps_loop_port_id(const struct zps_loop_port *port);
/* The open port with this id, referenced, or NULL. */
struct zps_loop_port *zps_loop_port_find(uint64_t id);
void zps_loop_port_unref(struct zps_loop_port *port); /* NULL is allowed */

/* By its owner: from now on no endpoint finds the port, sends to it or reads from it. */
void zps_loop_port_close(struct zps_loop_port *port);
zps_err_t zps_loop_port_reserve(struct zps_loop_port *port, int count) ZPS_MUSTCHECK;
struct zps_loop_region *zps_loop_port_expose(struct zps_loop_port *port, const void *base, size_t len, uint64_t *key_p);
void zps_loop_port_conceal(struct zps_loop_port *port, struct zps_loop_region *region);
/* The oldest message, if any; its receive stays taken until zps_loop_port_repost(). */
struct zps_loop_message *zps_loop_port_take(struct zps_loop_port *port);
void zps_loop_port_repost(struct zps_loop_port *port);
size_t zps_loop_port_receives(struct zps_loop_port *port);
uint64_t zps_loop_port_unmatched(struct zps_loop_port *port);
/* Blocks until a message can be taken, zps_loop_port_wake(), or zps_clock_ns() is `until_ns`. */
void zps_loop_port_wait(struct zps_loop_port *port, uint64_t until_ns);
void zps_loop_port_wake(struct zps_loop_port *port);

/* By anyone: the messages from port `src` that wait here are lost. The owner finds out by zps_loop_port_take_cut(). */
void zps_loop_port_cut(struct zps_loop_port *port, uint64_t src, bool is_told);
/* By its owner: true for a cut that was not taken before. */
bool zps_loop_port_take_cut(struct zps_loop_port *port, uint64_t *src_p, bool *is_told_p);

/* By others: consumes `message` on success only. ZPS_ERR_AGAIN: full; ZPS_ERR_PEER_LOST: closed. */
zps_err_t zps_loop_port_put(struct zps_loop_port *port, struct zps_loop_message *message) ZPS_MUSTCHECK;
/* Copies the bytes that `read`, started by port `src`, asks for. ZPS_ERR_AGAIN: `src` has a message waiting here
 * without a receive, which blocks its stream; ZPS_ERR_PEER_LOST: closed; ZPS_ERR_FABRIC: no such memory. */
zps_err_t zps_loop_port_read(struct zps_loop_port *port, uint64_t src, const struct zps_net_read *read) ZPS_MUSTCHECK;

#endif
