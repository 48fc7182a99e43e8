#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "sockets", .interface = "lo", .silent_death = true, .slowness = 20};
  return conform_main(argc, argv, &target);
}
