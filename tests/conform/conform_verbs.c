#include "tests/conform/conform.h"

/* Skipped on machines without a card; tests/cluster/softroce runs it. */
int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "verbs;ofi_rxm", .reads_need_no_peer = true, .leaks_when_stuck = true, .slowness = 10};
  return conform_main(argc, argv, &target);
}
