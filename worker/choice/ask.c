#include "worker/choice/ask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/choice/auto.h"
#include "worker/round/round.h"
#include "worker/schemes/parts.h"

#define CHUNK_BYTES (1u << 20)

/* ------------------------------------------------------------ the request for a scheme */

/* What ranks must agree on. `name` is without that of a scheme between hosts. */
static void set_spec(struct zps_scheme_ask *ask, const char *name) {
  const struct zps_peer_plan *plan = &ask->plan;
  struct zps_scheme_spec *spec = &ask->spec;
  *spec = (struct zps_scheme_spec){.choices = ask->choices,
                                   .n_levels = plan->n_levels,
                                   .k = plan->k,
                                   .chunks = plan->chunks > 1 ? plan->chunks : 0,
                                   .bits = plan->bits};
  snprintf(spec->name, sizeof spec->name, "%s", name);
  if (ask->between || plan->inner)
    snprintf(spec->between, sizeof spec->between, "%s", ask->between ? ask->between->name : plan->inner->name);
  memcpy(spec->levels, ask->levels, plan->n_levels * sizeof spec->levels[0]);
  if (!ask->served || !ask->served->blocks) return;
  spec->of_rows = plan->rows; /* what servers see of the tensor does not say it */
  spec->of_width = plan->width;
}

/* "hierarchical", or "hierarchical:" and the scheme between hosts: balanced, unless it is said. */
static zps_err_t find_scheme(struct zps_scheme_ask *ask, const char *scheme, const char *name,
                             struct zps_error *error) {
  const char *const colon = strchr(scheme, ':');
  char outer[ZPS_SCHEME_NAME_MAX + 1];
  snprintf(outer, sizeof outer, "%.*s", colon ? (int)(colon - scheme) : (int)strlen(scheme), scheme);
  ask->scheme = zps_peer_scheme_find(outer);
  if (!ask->scheme && !colon) ask->served = zps_served_kind_find(scheme);
  char meant[64];
  if ((!ask->scheme && !ask->served) || (colon && !ask->scheme->nests))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: there is no scheme '%.40s'; there are:" ZPS_PLAN_ALL_TEXT " hierarchical:NAME%s", name,
                    scheme, zps_plan_scheme_meant(outer, strlen(outer), meant, sizeof meant));
  if (!ask->scheme || !ask->scheme->nests) {
    snprintf(ask->name, sizeof ask->name, "%s", scheme);
    return ZPS_OK;
  }
  const char *const inner = colon ? colon + 1 : "balanced";
  ask->between = zps_served_kind_find(inner);
  if (!ask->between) ask->plan.inner = zps_peer_scheme_find(inner);
  const struct zps_peer_scheme *const peer = ask->plan.inner;
  if (!ask->between && (!peer || peer->lossy || peer->stateful || peer->nests))
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: scheme %s takes another one between hosts that loses nothing, not '%.40s'", name,
                    ask->scheme->name, inner);
  snprintf(ask->name, sizeof ask->name, "%s:%s", ask->scheme->name, inner);
  return ZPS_OK;
}

static bool served_sends_zeros(const struct zps_served_kind *served) {
  return served && (served->all_rows || served->blocks);
}

static bool sends_zeros(const struct zps_scheme_ask *ask) {
  return (ask->scheme && ask->scheme->sends_zeros) || (ask->plan.inner && ask->plan.inner->sends_zeros) ||
         served_sends_zeros(ask->served) || served_sends_zeros(ask->between);
}

static zps_err_t check_op(const struct zps_scheme_ask *ask, int op, const char *name, struct zps_error *error) {
  if (op != ZENPS_OP_MAX && op != ZENPS_OP_MIN) return ZPS_OK;
  if (sends_zeros(ask))
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: scheme %s sends zeros for rows that a rank does not have, of which a max or min would be "
        "made; take a sparse one",
        name, ask->name);
  return ZPS_OK;
}

/* The others lay rows out in ranges, or have no partitions. */
static bool partitions_rows(const struct zps_served_kind *served) {
  return served && !served->ranges;
}

static zps_err_t check_partitioner(const struct zps_scheme_ask *ask, zenps_partitioner_t partitioner, const char *name,
                                   const char *scheme, struct zps_error *error) {
  bool does = partitions_rows(ask->served ? ask->served : ask->between);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const char *const choice = zps_plan_scheme_name((enum zps_plan_scheme)i);
    if (ask->choices >> i & 1) does = does && partitions_rows(zps_served_kind_find(choice));
  }
  if (partitioner == 0 || does) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "tensor %s: rows are dealt to partitions for balanced alone; with scheme %s the option partitioner "
                  "must be 0, not %s",
                  name, scheme, zps_partitioner_name((enum zps_partitioner)partitioner));
}

static zps_err_t set_k(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, const char *name, uint64_t rows,
                       struct zps_error *error) {
  const char *scheme = ask->scheme->name;
  if (!(given->density >= 0 && given->density <= 1) || given->k > rows)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: k %" PRIu64 ", density %g; k is at most the %" PRIu64 " rows, density 0 to 1", name,
                    given->k, given->density, rows);
  if (!ask->scheme->lossy && (given->k || given->density > 0))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: scheme %s loses nothing: it takes no k and no density", name,
                    scheme);
  if (!ask->scheme->lossy) return ZPS_OK;
  if (!given->k && given->density <= 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: scheme %s keeps only the greatest rows: say how many, by k or density", name, scheme);
  ask->plan.k = given->k ? given->k : (uint64_t)llround(given->density * (double)rows);
  if (ask->plan.k == 0) ask->plan.k = 1;
  return ZPS_OK;
}

static zps_err_t set_levels(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, uint64_t world,
                            const char *name, struct zps_error *error) {
  if (given->n_levels == 0) return ZPS_OK;
  if (given->n_levels > ZPS_SCHEME_LEVELS_MAX || !given->levels)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: %" PRIu32 " levels; 0 to %u can be", name, given->n_levels,
                    ZPS_SCHEME_LEVELS_MAX);
  uint64_t product = 1;
  for (uint32_t i = 0; i < given->n_levels; i++) {
    ask->levels[i] = given->levels[i];
    if (product <= world) product *= given->levels[i];
  }
  if (product != world)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: the product of the levels is not the number of ranks, %" PRIu64,
                    name, world);
  ask->plan.n_levels = given->n_levels;
  return ZPS_OK;
}

/* Blocks of a dense scheme travel in pieces of a megabyte, unless an option says otherwise. */
static uint32_t default_chunks(const struct zps_scheme_ask *ask, uint64_t world, uint64_t rows, uint64_t row_bytes) {
  if (!ask->scheme->sends_zeros && !(ask->plan.inner && ask->plan.inner->sends_zeros)) return 1;
  const double chunks = (double)rows * (double)row_bytes / (double)world / CHUNK_BYTES;
  return chunks <= 1 ? 1 : chunks >= 8 ? 8 : (uint32_t)chunks;
}

zps_err_t zps_scheme_ask_init(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given,
                              const struct zps_worker_options *options, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, bool narrow, struct zps_error *error) {
  const char *scheme = given->scheme                               ? given->scheme
                       : dtype == ZPS_DTYPE_U8 || !options->scheme ? "balanced"
                                                                   : options->scheme;
  *ask = (struct zps_scheme_ask){0};
  ask->plan = (struct zps_peer_plan){.rows = rows, .width = width, .chunks = 1, .levels = ask->levels};
  zps_err_t err;
  if (zps_automatic_is(scheme)) { /* options are for the schemes that may be chosen */
    ask->served = zps_served_kind_find("balanced");
    const struct zps_automatic_limits limits = {.balanced_only = rows >= 1ull << 32,
                                                .no_zeros = given->op == ZENPS_OP_MAX || given->op == ZENPS_OP_MIN,
                                                .narrow = narrow,
                                                .lossy_bits = given->bits != 0};
    err = zps_automatic_parse(scheme, name, &limits, &ask->choices, error);
    if (err != ZPS_OK) return err;
    set_spec(ask, zps_plan_scheme_name(ZPS_PLAN_AUTO));
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    return check_partitioner(ask, given->partitioner, name, zps_scheme_spec_text(&ask->spec, text), error);
  }
  err = find_scheme(ask, scheme, name, error);
  if (err == ZPS_OK) err = check_op(ask, (int)given->op, name, error);
  if (err == ZPS_OK) err = check_partitioner(ask, given->partitioner, name, scheme, error);
  if (err != ZPS_OK) return err;
  if (!ask->scheme) {
    if (given->k || given->density != 0 || given->n_levels || given->chunks || given->bits)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: k, density, levels, chunks and bits are for schemes between ranks, not for %s", name,
                      scheme);
    set_spec(ask, ask->served->name);
    return ZPS_OK;
  }
  if (rows >= 1ull << 32)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: scheme %s takes fewer than 2^32 rows, not %" PRIu64 "; balanced takes more", name,
                    scheme, rows);
  if (given->chunks > ZPS_SCHEME_CHUNKS_MAX ||
      (given->bits != 0 && given->bits != 2 && given->bits != 4 && given->bits != 8))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: %" PRIu32 " chunks, %" PRIu32 " bits; 0 to %u chunks and 0, 2, 4 or 8 bits can be",
                    name, given->chunks, given->bits, ZPS_SCHEME_CHUNKS_MAX);
  err = set_k(ask, given, name, rows, error);
  if (err == ZPS_OK) err = set_levels(ask, given, options->world, name, error);
  if (err != ZPS_OK) return err;
  ask->plan.chunks = given->chunks ? given->chunks
                                   : default_chunks(ask, options->world, rows, (uint64_t)width * zps_dtype_size(dtype));
  ask->plan.bits = given->bits;
  set_spec(ask, ask->scheme->name);
  return ZPS_OK;
}

void zps_scheme_ask_between_hosts(const struct zps_scheme_ask *ask, struct zps_scheme_ask *inner) {
  *inner = (struct zps_scheme_ask){.served = ask->between, .plan = {.rows = ask->plan.rows, .width = ask->plan.width}};
  snprintf(inner->name, sizeof inner->name, "%s", ask->between->name);
  set_spec(inner, ask->between->name);
}
