/*
 * Rules of the fault injector (fault.c), which wraps any backend when the provider's name starts with "fault+".
 *
 * A rules string is a list of NAME=VALUE separated by commas; none of them is needed, an empty string only checks:
 *   seed=N     of the random decisions; the same seed and the same calls give the same faults (default 1)
 *   again=P    a send is refused with ZPS_ERR_AGAIN with probability P
 *   delay=P:T  a message, or the completion of a read, is held back for T with probability P; messages keep their order
 *   drop=P     a message vanishes with probability P
 *   reorder=P  a message is held back with probability P while 1 to 32 later messages to the same peer overtake it; for
 *              1 ms at most
 *   cut=P      after a send or read, the connection to its peer is cut with probability P
 *   cut=T      every T, the connection to one of the peers is cut
 *   claim=P    after a send or read, a stranger takes over the connection to its peer with probability P: a cut of
 *              which the peer is told; what this end sends and reads in the next 50 ms, at most, is lost, too
 *   flip=P     a read brings another byte somewhere than there was, with probability P
 *   kill=N     after N sends and reads this endpoint falls silent: nothing leaves, nothing arrives, nothing completes,
 *              and no error is reported, as a hung process would look to itself
 *   stall=N    reads from the N-th peer that was added, from 1 on, do not end before it is evicted: as if it had been
 *              stopped when it had sent its last message
 *   hold=T     reads of an evicted peer stay in quarantine for T more
 *   dmabuf=1   device memory is reached through mappings of its dmabufs, which those of emulated devices allow
 *   gbit=N     this endpoint passes for a card of N Gbit/s that moves bytes by itself
 *
 * A cut loses the messages under way in both directions. Reads in flight at either end are called back with
 * ZPS_ERR_PEER_LOST. In process, dice choose the ends that are told by on_peer_error(): both, one or none. Over a real
 * fabric, TCP connections alone are cut, and the provider tells. The peer lives: zps_net_peer_add() of its address and
 * zps_net_peer_renew() work at once, and so does the old handle at an end that was not told.
 *
 * Probabilities are 0 to 1; times are a number with us, ms or s.
 *
 * The wrapper always checks the caller, and ends the process with abort() after an error line when it breaks a rule of
 * net.h: a call from a second thread (the thread that first calls zps_net_progress() owns the endpoint; closing is
 * free), a read into memory that is not registered, a zps_net_read used again or modified in flight, memory released
 * under a read. It checks the wrapped backend too: callbacks only inside zps_net_progress(). The buffer of a read in
 * quarantine is overwritten right before release(), as a late fabric might, so that code which used the buffer too
 * early sees it.
 */
#ifndef ZPS_NET_FAULT_H
#define ZPS_NET_FAULT_H

#include <stdint.h>

#include "common/base/err.h"

struct zps_fault_rules {
  uint64_t seed;
  double again, drop, delay, flip, reorder, cut, claim;
  uint64_t delay_ns, hold_ns;
  uint64_t cut_ns; /* 0: never */
  uint64_t kill;   /* 0: never */
  uint64_t stall;  /* 0: no peer */
  uint64_t gbit;   /* 0: as the card says */
  uint64_t dmabuf; /* not 0: device memory is reached through mappings of its dmabufs, which emulated devices allow */
};

/* `text` may be NULL. ZPS_ERR_INVALID names the wrong rule, and the right form. */
zps_err_t zps_fault_parse(const char *text, struct zps_fault_rules *rules_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
