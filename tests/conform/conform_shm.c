#include <rdma/fabric.h>

#include "tests/conform/conform.h"

/* shm of libfabric 2 checks keys, and does not answer a read with a wrong one. */
int main(int argc, char **argv) {
  const bool is_2 = FI_MAJOR(fi_version()) >= 2;
  const struct conform_target target = {.provider = "shm",
                                        .shares_regions = true,
                                        .silent_death = true,
                                        .dies_with_peer = is_2,
                                        .trusts_keys = !is_2,
                                        .loses_wrong_keys = is_2};
  return conform_main(argc, argv, &target);
}
