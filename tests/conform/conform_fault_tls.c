#include "tests/conform/conform.h"
#include "tests/conform/conform_certs.h"

#ifndef CONNECTIONS
#define CONNECTIONS 1 /* of a peer */
#endif

#ifdef OFFERS
#include "common/net/fault_impl.h"
#include "common/net/tls/impl.h"

/* Every link is a long one. */
static void opened(struct zps_net *net) {
  tlsnet_of(to_fault(net)->inner)->long_trip_us = 0;
}
#define OFFER .dials = true, .opened = opened
#else
#define OFFER .offers = false
#endif

int main(int argc, char **argv) {
  struct conform_target target = {.provider = "fault+tls",
                                  .interface = "lo",
                                  .answers_reads = true,
                                  .connections = CONNECTIONS,
                                  OFFER,
                                  .fault = "seed=11,again=0.05,delay=0.02:200us,hold=1ms"};
  target.tls = conform_certs_open();
  if (!target.tls) return 1;
  const int status = conform_main(argc, argv, &target);
  conform_certs_close(target.tls);
  return status;
}
