/* Two endpoints of the encrypted fabric in one process: a rank that dials, and a server that answers. Each has memory
 * to lend, and memory where reads land. TLS is empty (plain_tls.h). Include it after cmocka.h. */
#ifndef ZPS_TESTS_TLS_ENDS_H
#define ZPS_TESTS_TLS_ENDS_H

#include <string.h>

#include "common/net/tls/impl.h"
#include "tests/support/net_pair.h"
#include "tests/support/plain_tls.h"

enum { RANK, SERVER, BYTES = 4 << 20 };

static uint8_t identity; /* never looked at */
static struct end ends[2];
static uint8_t lent[2][BYTES], landed[2][BYTES];
static struct zps_net_mem lent_mem[2], landed_mem[2];

static inline void contents_set(unsigned i, unsigned version) {
  for (unsigned k = 0; k < BYTES; k++) lent[i][k] = (uint8_t)(k * 31 + (k >> 11) + i + 17 * version);
}

static inline void open_end(unsigned i, unsigned connections, bool bbr) {
  const struct zps_net_handler handler = {
      .ctx = &ends[i], .on_message = end_on_message, .on_peer_error = end_on_peer_error};
  const struct zps_net_config config = {.provider = "tls",
                                        .interface = "lo",
                                        .max_msg = ZPS_NET_MSG_MAX,
                                        .n_recv = 4,
                                        .connect_timeout_ms = PATIENCE_NEVER_MS,
                                        .connections = connections,
                                        .dials = i == RANK,
                                        .bbr = bbr,
                                        .tls = (struct zps_tls *)(void *)&identity};
  struct zps_error error = {.text = ""};
  ends[i] = (struct end){0};
  if (zps_net_tls_open(&config, &handler, &ends[i].net, &error) != ZPS_OK) fail_msg("%s", error.text);
  contents_set(i, 0);
  memset(landed[i], 0, BYTES);
  lent_mem[i] = end_register(&ends[i], lent[i], BYTES);
  landed_mem[i] = end_register(&ends[i], landed[i], BYTES);
}

#endif
