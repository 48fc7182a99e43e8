#include "tests/conform/conform.h"
#include "tests/conform/conform_certs.h"

#ifndef CONNECTIONS
#define CONNECTIONS 1 /* of a peer */
#endif

int main(int argc, char **argv) {
  struct conform_target target = {
      .provider = "tls", .interface = "lo", .answers_reads = true, .connections = CONNECTIONS, .dials = true};
  target.tls = conform_certs_open();
  if (!target.tls) return 1;
  const int status = conform_main(argc, argv, &target);
  conform_certs_close(target.tls);
  return status;
}
