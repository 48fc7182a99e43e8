#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "tcp;ofi_rxm", .interface = "lo", .answers_reads = true, .leaks_when_stuck = true};
  return conform_main(argc, argv, &target);
}
