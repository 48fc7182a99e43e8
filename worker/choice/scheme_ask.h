/* What a caller asks a tensor's rounds to be run as: checked, and in the form that ranks must agree on. */
#ifndef ZPS_WORKER_CHOICE_SCHEME_ASK_H
#define ZPS_WORKER_CHOICE_SCHEME_ASK_H

#include "proto/control_scheme.h"
#include "worker/base/options.h"
#include "worker/peer/tensor.h"
#include "worker/schemes/peer_scheme.h"
#include "worker/served/kinds.h"
#include "zenps/zenps.h"

/* The scheme and options that a caller asks for, in the form that ranks must agree on. */
struct zps_scheme_ask {
  const struct zps_peer_scheme *scheme;  /* between ranks; NULL: the scheme is over servers */
  const struct zps_served_kind *served;  /* over servers; balanced where there are `choices` */
  unsigned choices;                      /* bits 1u << enum zps_plan_scheme */
  const struct zps_served_kind *between; /* hosts, where the scheme nests and plan.inner is NULL */
  char name[ZPS_SCHEME_NAME_MAX + 1];    /* with that of a nested one: "hierarchical:balanced" */
  struct zps_scheme_spec spec;           /* name and options, in the coordinator's form */
  struct zps_scheme_options options;     /* All that the text has. */
  struct zps_peer_plan plan;             /* options alone: no ranks yet */
};

/* `given`: complete options; `values`: in which values travel. The library's own tensors (of bytes) are
 * balanced, whatever the environment says. */
zps_err_t zps_scheme_ask_init(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given,
                              const struct zps_worker_options *options, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, enum zps_value_codec values, struct zps_error *error) ZPS_MUSTCHECK;
/* The scheme over servers of the masters, which push for their hosts. */
void zps_scheme_ask_between_hosts(const struct zps_scheme_ask *ask, struct zps_scheme_ask *inner);

#endif
