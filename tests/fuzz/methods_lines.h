/* What clients of the control plane say: the coordinator's methods, with the golden lines of each
 * (proto/golden/control), changed. */
#ifndef ZPS_TESTS_FUZZ_METHODS_LINES_H
#define ZPS_TESTS_FUZZ_METHODS_LINES_H

#include "common/control/json.h"

enum { OF_SERVERS = 1, OF_RANKS = 2, OF_ADMINS = 4, OF_ALL = 7 };

/* As PROTOCOL.md says it, apart from the coordinator's own table. */
struct methods_method {
  const char *name;
  unsigned roles; /* the roles that may call it; 0: none */
  bool notifies;
  const char *body; /* of those without a golden line */
};

/* In an order that stays: inputs name them by their numbers. */
const struct methods_method *methods_method(unsigned which);
/* NULL: there is none of this name. */
const struct methods_method *methods_find(const char *name);
/* A copy of one of its golden bodies, for the caller to release. */
zps_json *methods_body(const struct methods_method *method, unsigned variant);
/* Consumes `body`; returns it with the value number `which`, counted depth first, replaced by another or left out. */
zps_json *methods_change(zps_json *body, unsigned which, unsigned what);

#endif
