/* A stranger at the data plane: its end of the fabric (stranger_end.c), and its ways, which are messages
 * (stranger_junk.c) and reads (stranger_keys.c). */
#ifndef ZPS_TESTS_INTEGRATION_STRANGER_H
#define ZPS_TESTS_INTEGRATION_STRANGER_H

#include <netinet/in.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/net/net.h"

#define STRANGER_PATIENCE_NS (20 * ZPS_NS_PER_S) /* without any progress */

struct stranger {
  struct sockaddr_in to;
  struct zps_rng rng;
  uint64_t job;
  struct zps_net *net;
  struct zps_net_peer *peer; /* NULL: not there yet, or lost */
  bool is_lost;
  unsigned long n_tried, n_done, n_lost;
};

/* Says so on stderr. Returns the status 2. */
int stranger_give_up(const char *what, const char *why);
/* Its end of the fabric; false: there is none, which is said. */
bool stranger_open(struct stranger *stranger);
/* Connects to the peer where it is not, after the loss of another connection too, which is counted. */
bool stranger_connect(struct stranger *stranger, const void *addr, size_t len);
/* Drives its end; waits a moment where there is nothing to do. */
void stranger_turn(struct stranger *stranger);
/* Of an address as zenpsctl shows it; false: it is none of IPv4. */
bool stranger_address(const char *text, struct sockaddr_in *to);
void stranger_put(uint8_t *at, uint64_t value, unsigned n_bytes);

/* These return the program's status. */
int stranger_junk(struct stranger *stranger, unsigned long n);
int stranger_keys(struct stranger *stranger, unsigned long n);
/* `n` claims that are answered; `n_done` counts those that are accepted. */
int stranger_claims(struct stranger *stranger, unsigned long n, char **ports, int n_ports);

#endif
