/* What the store promises over any backend. */
#ifndef ZPS_TESTS_SERVER_STATE_STORE_CONFORM_H
#define ZPS_TESTS_SERVER_STATE_STORE_CONFORM_H

#include "server/state/store.h"

/* Opens the same journal again and again; nothing is in it at first. */
typedef struct zps_store_backend *store_conform_open_fn(void);
void store_conform(store_conform_open_fn *open);

#endif
