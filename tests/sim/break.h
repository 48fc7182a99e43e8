/* Bugs that can be switched on, which the checker must find. */
#ifndef ZPS_TESTS_SIM_BREAK_H
#define ZPS_TESTS_SIM_BREAK_H

#include <stdbool.h>

/* False: there is none of this name. */
bool sim_break(const char *name);
/* The disk says that it has written what it has not. */
bool sim_breaks_sync(void);
/* One name after the other; NULL: there are no more. */
const char *sim_break_name(unsigned i);

#endif
