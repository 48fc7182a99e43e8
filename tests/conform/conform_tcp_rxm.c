#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {.provider = "tcp;ofi_rxm", .interface = "lo", .leaks_when_stuck = true};
  return conform_main(argc, argv, &target);
}
