/* Ranks of elastic jobs. */
#ifndef ZPS_TESTS_SIM_ELASTIC_H
#define ZPS_TESTS_SIM_ELASTIC_H

#include "tests/sim/cluster.h"

/* elastic.c: the program of a rank. */
void sim_elastic_main(void *rank);

/* generations.c, of faults. The rank was killed, or may be given up. */
void sim_elastic_lost(struct sim_rank *rank, const char *why);
/* About to happen. */
void sim_elastic_befalls(const struct sim_fault *fault);

#endif
