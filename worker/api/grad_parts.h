/* Gradients and results in parts (zenps_part_t), made ready for a round. */
#ifndef ZPS_WORKER_API_GRAD_PARTS_H
#define ZPS_WORKER_API_GRAD_PARTS_H

#include "common/codec/sections.h"
#include "worker/api/tensor.h"
#include "worker/round/out_parts.h"

/* Of one operation. Rounds over servers that own rows take parts where they are; for all others they are copied to one
 * array, and back. */
struct zps_grad_parts {
  const zenps_grad_t *in; /* of the round: the caller's, or one_in and one_out */
  zenps_grad_t *out;
  zenps_grad_t one_in, one_out;
  struct zps_sections in_sections, out_sections; /* list NULL: it has none */
  struct zps_out_parts split;                    /* parts NULL: likewise */
  zenps_grad_t *result;                          /* the caller's, where it is parts; else NULL */
  int64_t *row_ids;                              /* the gradient as one array, where it is copied */
  void *values;
  void *dense; /* the result likewise; NULL: it is made in place */
  uint64_t copied_bytes;
};

/* Whether parts can be right. */
zps_err_t zps_grad_parts_check(const struct zenps_tensor *tensor, const zenps_grad_t *grad, bool is_out,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* They were checked. `in` or `out` may be NULL. *parts_p is NULL where neither is parts. */
zps_err_t zps_grad_parts_create(const struct zenps_tensor *tensor, const zenps_grad_t *in, zenps_grad_t *out,
                                struct zps_grad_parts **parts_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The round has filled `out`: tells the caller's result. */
void zps_grad_parts_done(struct zps_grad_parts *parts);
void zps_grad_parts_destroy(struct zps_grad_parts *parts); /* NULL is allowed */

#endif
