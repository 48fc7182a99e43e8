#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {.provider = "loop", .in_process = true};
  return conform_main(argc, argv, &target);
}
