/* A stranger's end of the fabric. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "tests/integration/stranger.h"

int stranger_give_up(const char *what, const char *why) {
  fprintf(stderr, "stranger: %s: %s\n", what, why);
  return 2;
}

void stranger_put(uint8_t *at, uint64_t value, unsigned n_bytes) {
  for (unsigned i = 0; i < n_bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static void on_message(void *ctx, const void *data, size_t len) {
  (void)ctx, (void)data, (void)len;
}

static void on_peer_error(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text) {
  struct stranger *stranger = ctx;
  (void)peer, (void)code, (void)text;
  stranger->is_lost = true;
}

bool stranger_open(struct stranger *stranger) {
  struct zps_error error;
  const struct zps_net_config config = {
      .provider = "tcp", .interface = "lo", .max_msg = ZPS_NET_MSG_MAX, .n_recv = 8, .connect_timeout_ms = 10000};
  const struct zps_net_handler handler = {.ctx = stranger, .on_message = on_message, .on_peer_error = on_peer_error};
  if (zps_net_open(&config, &handler, &stranger->net, &error) == ZPS_OK) return true;
  stranger_give_up("no fabric", error.text);
  return false;
}

bool stranger_connect(struct stranger *stranger, const void *addr, size_t len) {
  struct zps_error error;
  if (stranger->is_lost) {
    zps_net_peer_evict(stranger->peer);
    stranger->peer = NULL;
    stranger->is_lost = false;
    stranger->n_lost++;
  }
  if (stranger->peer) return true;
  if (zps_net_peer_add(stranger->net, addr, len, stranger, &stranger->peer, &error) == ZPS_OK) return true;
  stranger_give_up("cannot reach it", error.text);
  return false;
}

void stranger_turn(struct stranger *stranger) {
  if (zps_net_progress(stranger->net) == 0) zps_net_wait(stranger->net, ZPS_NS_PER_MS);
}

bool stranger_address(const char *text, struct sockaddr_in *to) {
  const char *const scheme = "fi_sockaddr_in://";
  char host[64];
  unsigned port;
  if (strncmp(text, scheme, strlen(scheme)) != 0) return false;
  *to = (struct sockaddr_in){.sin_family = AF_INET};
  if (sscanf(text + strlen(scheme), "%63[0-9.]:%u", host, &port) != 2 || port > UINT16_MAX) return false;
  to->sin_port = htons((uint16_t)port);
  return inet_pton(AF_INET, host, &to->sin_addr) == 1;
}
