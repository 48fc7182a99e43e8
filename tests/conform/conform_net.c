#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {.provider = "net", .interface = "lo", .answers_reads = true};
  return conform_main(argc, argv, &target);
}
