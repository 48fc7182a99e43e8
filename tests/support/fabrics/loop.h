/* A program that includes this has the in-process fabric, provider "loop". Endpoints of one process find each other by
 * an id in their address. Each may be driven by its own thread. */
#ifndef ZPS_TESTS_FABRICS_LOOP_H
#define ZPS_TESTS_FABRICS_LOOP_H

#include "common/net/backend.h"

extern zps_net_open_t zps_net_loop_open;
/* Makes the linker take loop.o, to which open.c refers weakly. */
static zps_net_open_t *const zps_net_loop_is_linked __attribute__((used)) = zps_net_loop_open;

#endif
