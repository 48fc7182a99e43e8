/*
 * The coordinators that a client may find: a list of addresses, "HOST:PORT,HOST:PORT", and which of them to try next.
 * One after another is tried, from the one that answered last on, each once a turn; then the client waits a while. A
 * coordinator that does not lead may name the one that does: that is tried next, if it is in the list, so that nobody
 * sends a client to where its user did not.
 */
#ifndef ZPS_CONTROL_ADDRESSES_H
#define ZPS_CONTROL_ADDRESSES_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define ZPS_ADDRESSES_MAX 16u
#define ZPS_ADDRESS_TEXT_MAX 272u /* of one, with its NUL */

struct zps_addresses {
  unsigned n, now, last; /* last: the one that answered last, or the first */
  uint32_t tried;        /* those before `now` in this turn, a bit each */
  char text[ZPS_ADDRESSES_MAX][ZPS_ADDRESS_TEXT_MAX];
};

/* One address or more, with commas in between (so that a Unix socket's path has none); blanks around one do not
 * count. ZPS_ERR_INVALID: the text names the item, and what is wrong. */
zps_err_t zps_addresses_parse(const char *text, struct zps_addresses *addresses_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
/* The host of the first one that has one, a name or a number; "": all are Unix sockets, or the text
 * is NULL or no such list. */
void zps_addresses_host(const char *text, char *host, size_t size);
/* The address to try now. */
const char *zps_addresses_now(const struct zps_addresses *addresses);
/* Whether no other host can reach any of them. */
bool zps_addresses_are_loopback(const struct zps_addresses *addresses);
/* Those that this turn has still to try, with the present one. */
unsigned zps_addresses_left(const struct zps_addresses *addresses);
/* The present one answered: the next turn begins with it. */
void zps_addresses_answered(struct zps_addresses *addresses);
/* The present one did not answer, or does not lead, and says that `leader` does (NULL, "": it does not know). False:
 * the turn is over, and the next one begins. */
bool zps_addresses_next(struct zps_addresses *addresses, const char *leader);

#endif
