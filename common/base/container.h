/* From an object to the one that it is embedded in. */
#ifndef ZPS_BASE_CONTAINER_H
#define ZPS_BASE_CONTAINER_H

#include <stddef.h>

/* The `type` whose `member` is at `ptr`. */
#define zps_container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

#endif
