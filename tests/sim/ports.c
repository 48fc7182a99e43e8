/* Endpoints that processes have opened. Linked by --wrap. */
#include <stdlib.h>

#include "tests/support/fabrics/loop.h"
#include "tests/support/fabrics/loop_port.h"
#include "tests/sim/cluster.h"

struct opened {
  const struct sim_process *process;
  uint64_t id;
  struct opened *next;
};
static struct opened *all;

zps_err_t __real_zps_loop_port_open(size_t n_receives, struct zps_loop_port **port_p);
zps_err_t __wrap_zps_loop_port_open(size_t n_receives, struct zps_loop_port **port_p);
zps_err_t __wrap_zps_loop_port_open(size_t n_receives, struct zps_loop_port **port_p) {
  const zps_err_t err = __real_zps_loop_port_open(n_receives, port_p);
  struct opened *const opened = err == ZPS_OK ? malloc(sizeof *opened) : NULL;
  if (!opened) return err;
  *opened = (struct opened){.process = sim_process_here(), .id = zps_loop_port_id(*port_p), .next = all};
  all = opened;
  return err;
}

void sim_ports_close(const struct sim_process *process) {
  for (const struct opened *opened = all; opened; opened = opened->next) {
    struct zps_loop_port *const port = opened->process == process ? zps_loop_port_find(opened->id) : NULL;
    if (!port) continue;
    zps_loop_port_close(port);
    zps_loop_port_unref(port);
  }
}
