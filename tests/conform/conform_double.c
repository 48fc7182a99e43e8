/* The double of a fabric (tests/support/double): -DDOUBLE names it, -DUNLUCKY gives it all bad luck that it may have.
 */
#include "tests/conform/conform.h"
#include "tests/support/double/use.h"

#include <string.h>

int main(int argc, char **argv) {
  static struct conform_target target = {.provider = DOUBLE, .answers_reads = true, .must_be_there = true};
  double_use(DOUBLE);
#ifdef UNLUCKY
  double_be_unlucky();
  if (strcmp(DOUBLE, "efa") == 0) {
    setenv("ZPS_DOUBLE_FD", "1", 1); /* from libfabric 2.5 on */
    setenv("ZPS_DOUBLE_SILENT", "1", 1);
    target.silent_death = true;
  }
  target.reorders = true;
  target.answers_reads = false; /* one that is refused at first is not under way */
  target.slowness = 10;
#endif
  return conform_main(argc, argv, &target);
}
