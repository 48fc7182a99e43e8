/* The scheme of a tensor's rounds with its options: member "scheme" of tensor.register. */
#ifndef ZPS_PROTO_CONTROL_SCHEME_H
#define ZPS_PROTO_CONTROL_SCHEME_H

#include "common/plan/scheme_options.h"
#include "proto/control.h"

#define ZPS_SCHEME_NAME_MAX 47u

/* Zeroed where an option is not given; ranks must agree on all of it. */
struct zps_scheme_spec {
  char name[ZPS_SCHEME_NAME_MAX + 1];    /* "auto": the coordinator chooses; empty: "balanced" */
  char between[ZPS_SCHEME_NAME_MAX + 1]; /* the scheme between hosts, of one that nests */
  unsigned choices;                      /* of auto: bits 1u << enum zps_plan_scheme; 0: those alike in their results */
  uint64_t of_rows;                      /* of a scheme that registers blocks: the tensor that these are of */
  uint32_t of_width;
  ZPS_SCHEME_OPTIONS_HERE; /* those that ranks agree on (zps_scheme_options_share()) */
};

bool zps_scheme_spec_is_auto(const struct zps_scheme_spec *scheme);
bool zps_scheme_spec_same(const struct zps_scheme_spec *a, const struct zps_scheme_spec *b);
/* The scheme and its options for people, in the form in which they are given: "oktopk:k=5,without=balancing",
 * "auto:balanced,ring"; and "omnireduce of 10x3". `text` has ZPS_SCHEME_TEXT_MAX + 1 characters. Returns it. */
const char *zps_scheme_spec_text(const struct zps_scheme_spec *scheme, char *text);

extern const struct zps_fields zps_control_scheme;

#endif
