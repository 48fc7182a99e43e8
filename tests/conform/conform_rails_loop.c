#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "loop", .rails = 2, .in_process = true, .wakes_each_ms = true};
  return conform_main(argc, argv, &target);
}
