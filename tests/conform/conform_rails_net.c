/* Two cards of each endpoint, in a network of this program's own. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conform/conform.h"

#define CARD(n)                                                                                            \
  "ip link add eth" #n " type veth peer name to" #n " && ip link set to" #n " up && ip addr add 10.79." #n \
  ".1/24 dev eth" #n " && ip link set eth" #n " up"

int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "net", .interface = "eth0,eth1", .rails = 2, .answers_reads = true};
  const bool is_child = argc > 2 && strcmp(argv[1], "--child") == 0; /* in that network already */
  if (!is_child && (unshare(CLONE_NEWNET) != 0 || system("ip link set lo up && " CARD(0) " && " CARD(1)) != 0)) {
    puts("no network of its own: it needs root and iproute2");
    return 77;
  }
  return conform_main(argc, argv, &target);
}
