/*
 * The connections of a listener whose peers have not said hello yet: how many there may be, in all and from one
 * address, and what becomes of one more. Pure: no socket, no clock.
 *
 * Honest peers speak as soon as they are connected, so a crowd of them passes quickly, also one that comes from behind
 * one address: one more waits for a moment. A crowd that stays longer is none of honest peers. Then its most silent
 * connection makes room for the newcomer, since silent peers that connect again and again would keep every seat: the
 * oldest that has said nothing, else the oldest.
 */
#ifndef ZPS_CONTROL_STRANGERS_H
#define ZPS_CONTROL_STRANGERS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/origin.h"

#define ZPS_STRANGERS_MAX 512u
#define ZPS_STRANGERS_OF_ORIGIN_MAX 128u
#define ZPS_STRANGERS_PATIENCE_MS 250u

struct zps_stranger { /* in its connection */
  struct zps_stranger *prev, *next;
  struct zps_origin origin;
  uint64_t came_ns;
  bool is_listed;
  bool has_spoken; /* the owner sets it: with bytes, or where TLS is spoken with the end of its handshake */
};

struct zps_strangers { /* zero: none */
  struct zps_stranger *oldest, *newest;
  unsigned n;
};

void zps_strangers_add(struct zps_strangers *strangers, struct zps_stranger *stranger, struct zps_origin origin,
                       uint64_t now_ns);
/* One that is not listed is left alone. */
void zps_strangers_remove(struct zps_strangers *strangers, struct zps_stranger *stranger);

enum zps_strangers_verdict {
  ZPS_STRANGER_FITS,
  ZPS_STRANGER_WAITS,      /* nobody else comes in: look again when one is removed, and at *until_ns_p */
  ZPS_STRANGER_MAKES_ROOM, /* *whom_p goes; of the same address if that is full */
};
/* `stranger` is listed. `read_ns`: all that peers had sent by then has been read. *n_p: how many there are besides, of
 * its address if that is full, else in all. */
enum zps_strangers_verdict zps_strangers_judge(const struct zps_strangers *strangers,
                                               const struct zps_stranger *stranger, uint64_t read_ns,
                                               struct zps_stranger **whom_p, unsigned *n_p, uint64_t *until_ns_p);

#endif
