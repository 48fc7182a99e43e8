#include "tests/conform/conform.h"
#include "tests/conform/conform_certs.h"

#ifndef CONNECTIONS
#define CONNECTIONS 1 /* of a peer */
#endif

#ifdef OFFERS
#include "common/net/tls/impl.h"

/* Every link is a long one. */
static void opened(struct zps_net *net) {
  tlsnet_of(net)->long_trip_us = 0;
}
#define OFFER .opened = opened, .offers = true
#else
#define OFFER .offers = false
#endif

int main(int argc, char **argv) {
  struct conform_target target = {
      .provider = "tls", .interface = "lo", .answers_reads = true, .connections = CONNECTIONS, .dials = true, OFFER};
  target.tls = conform_certs_open();
  if (!target.tls) return 1;
  const int status = conform_main(argc, argv, &target);
  conform_certs_close(target.tls);
  return status;
}
