#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {.provider = "fault+loop",
                                               .fault = "seed=7,again=0.1,delay=0.02:200us,hold=1ms",
                                               .rails = 2,
                                               .in_process = true,
                                               .wakes_each_ms = true};
  return conform_main(argc, argv, &target);
}
