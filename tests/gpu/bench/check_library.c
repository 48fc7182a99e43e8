/* gpu-check LIBRARY [ROWS [SHAPES]]: compares the device of a library, such as libzenps_cuda.so.0, with the cpu, on
 * gradients of up to ROWS rows. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/bench/check.h"
#include "tests/support/device_cpu.h"

enum { ROWS_DEFAULT = 20000 };

int main(int argc, char **argv) {
  const unsigned long long rows = argc > 2 ? strtoull(argv[2], NULL, 10) : ROWS_DEFAULT;
  const unsigned n_shapes = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : ZPS_BENCH_SHAPES;
  struct zps_device *cpu = NULL, *device = NULL;
  struct zps_error error;
  unsigned n_checks = 0;
  if (argc < 2 || argc > 4 || rows < 1000 || n_shapes < 1) {
    fprintf(stderr,
            "usage: gpu-check LIBRARY [ROWS [SHAPES]]\n"
            "  ROWS: of the largest gradient, from 1000 on (%d); SHAPES: how many (%d)\n",
            (int)ROWS_DEFAULT, (int)ZPS_BENCH_SHAPES);
    return 2;
  }
  zps_err_t code = zps_device_cpu_open(NULL, &cpu, &error);
  if (code == ZPS_OK) code = zps_device_load(argv[1], 0, &device, &error);
  if (code != ZPS_OK) {
    fprintf(stderr, "gpu-check: %s\n", error.text);
    zps_device_close(cpu);
    return 1;
  }
  const bool is_good = zps_bench_check(cpu, device, rows, n_shapes, &n_checks);
  printf("%u comparisons of %s with the cpu: %s\n", n_checks, argv[1],
         is_good ? "all the same" : "the last one differs");
  zps_device_close(device);
  zps_device_close(cpu);
  return is_good ? 0 : 1;
}
