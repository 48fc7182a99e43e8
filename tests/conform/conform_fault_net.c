#include "tests/conform/conform.h"

int main(int argc, char **argv) {
  static const struct conform_target target = {.provider = "fault+net",
                                               .interface = "lo",
                                               .answers_reads = true,
                                               .fault = "seed=11,again=0.05,delay=0.02:200us,hold=1ms"};
  return conform_main(argc, argv, &target);
}
