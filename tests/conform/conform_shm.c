#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {
      .provider = "shm", .shares_regions = true, .silent_death = true, .trusts_keys = true};
  return conform_main(argc, argv, &target);
}
