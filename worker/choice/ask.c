#include "worker/choice/ask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/base/group.h"
#include "worker/choice/auto.h"
#include "worker/round/round.h"
#include "worker/schemes/parts.h"

#define CHUNK_BYTES (1u << 20)

#define SAME_BIT(part, bit, name, scheme) \
  _Static_assert((int)ZENPS_WITHOUT_##part == (int)ZPS_WITHOUT_##part, "zenps.h and without.h say the same");
ZPS_PLAN_PART_LIST(SAME_BIT)

/* ------------------------------------------------------------ the request for a scheme */

/* What ranks must agree on. `name` is without that of a scheme between hosts. */
static void set_spec(struct zps_scheme_ask *ask, const char *name) {
  const struct zps_peer_plan *plan = &ask->plan;
  struct zps_scheme_spec *spec = &ask->spec;
  *spec = (struct zps_scheme_spec){.choices = ask->choices,
                                   .n_levels = plan->n_levels,
                                   .k = plan->k,
                                   .chunks = plan->chunks > 1 ? plan->chunks : 0,
                                   .bits = plan->bits,
                                   .boundary_period = plan->boundary_period,
                                   .threshold_period = plan->threshold_period,
                                   .without = plan->without,
                                   .allgather = ask->allgather,
                                   .delta = plan->delta};
  snprintf(spec->name, sizeof spec->name, "%s", name);
  if (ask->between || plan->inner)
    snprintf(spec->between, sizeof spec->between, "%s", ask->between ? ask->between->name : plan->inner->name);
  memcpy(spec->levels, ask->levels, plan->n_levels * sizeof spec->levels[0]);
  for (uint32_t i = 0; i < plan->n_levels; i++) spec->algorithms[i] = ask->algorithms[i];
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

/* Servers alone count who contributes. */
static bool counts_ranks(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_served(scheme) && !(zps_plan_scheme_flags(scheme) & ZPS_SCHEME_NESTS);
}

static zps_err_t check_op(const struct zps_scheme_ask *ask, int op, const char *name, struct zps_error *error) {
  bool counts = !ask->scheme;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (ask->choices >> i & 1) counts = counts && counts_ranks((enum zps_plan_scheme)i);
  if (op == ZENPS_OP_MEAN_PRESENT && !counts)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: op is mean_present, but ranks count who contributes over servers alone: take balanced, "
                    "sparse-ps, dense-ps, omnireduce, or auto of such",
                    name);
  if (op != ZENPS_OP_MAX && op != ZENPS_OP_MIN) return ZPS_OK;
  if (sends_zeros(ask))
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: scheme %s sends zeros for rows that a rank does not have, of which a max or min would be "
        "made; take a sparse one",
        name, ask->name);
  return ZPS_OK;
}

/* Whether the result of each scheme that may run tells rows of zeros that some rank has from others. */
static zps_err_t check_keep(const struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, const char *name,
                            const char *scheme, struct zps_error *error) {
  bool tells = !sends_zeros(ask) && !(ask->scheme && ask->scheme->lossy);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (ask->choices >> i & 1) tells = tells && zps_plan_scheme_shows_union((enum zps_plan_scheme)i);
  if (!given->keep_zero_rows) return ZPS_OK;
  if (!tells)
    return zps_fail(
        error, ZPS_ERR_UNSUPPORTED,
        "tensor %s: keep_zero_rows is 1, but results of scheme %s do not tell which rows ranks sent; take "
        "balanced, sparse-ps, recursive-doubling, split-allgather, agsparse, or hierarchical with one of them",
        name, scheme);
  if (given->delta > 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: keep_zero_rows is 1 and delta is %g, but streams that keep rows of zeros never become "
                    "dense: leave one out",
                    name, given->delta);
  return ZPS_OK;
}

static bool adds_in_rank_order(enum zps_plan_scheme scheme) {
  return zps_plan_scheme_flags(scheme) & ZPS_SCHEME_RANK_ORDER;
}

/* Whether each scheme that may run adds as the option says. Of several the text has the first that does not. */
static zps_err_t check_order(const struct zps_scheme_ask *ask, int order, const char *scheme, const char *name,
                             struct zps_error *error) {
  const char *const said = zps_automatic_is(scheme) ? zps_automatic_order(scheme) : NULL;
  if (order < 0 || order > ZENPS_ORDER_ANY)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: order %d is none of ZENPS_ORDER_RANKS, ZENPS_ORDER_ANY", name,
                    order);
  if (order && said && (strcmp(said, "any") == 0) != (order == ZENPS_ORDER_ANY))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: scheme %s and option order contradict each other: leave one out", name, scheme);
  if (order != ZENPS_ORDER_RANKS) return ZPS_OK;
  enum zps_plan_scheme one;
  unsigned run = ask->choices;
  if (!run && zps_plan_scheme_parse(ask->scheme ? ask->scheme->name : ask->served->name, &one)) run = 1u << one;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(run >> i & 1) || adds_in_rank_order((enum zps_plan_scheme)i)) continue;
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: scheme %s adds in an order of its own; with order ranks take another one, such as auto",
                    name, zps_plan_scheme_name((enum zps_plan_scheme)i));
  }
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
    if (i == ZPS_PLAN_HIERARCHICAL) continue; /* balanced between hosts */
    if (ask->choices >> i & 1) does = does && partitions_rows(zps_served_kind_find(choice));
  }
  if (partitioner == 0 || does) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "tensor %s: rows are dealt to partitions for balanced alone, over ranks or between hosts; scheme %s "
                  "lays rows out itself: the option partitioner must be 0, not %s",
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

/* Defaults are left out, so that ranks agree whichever way they were asked for. */
static zps_err_t set_parts(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, const char *name,
                           const char *scheme, struct zps_error *error) {
  const unsigned schemes = ask->scheme ? 1u << ask->scheme->number : ask->choices;
  unsigned parts = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (schemes >> i & 1) parts |= zps_without_of((enum zps_plan_scheme)i);
  char text[ZPS_WITHOUT_TEXT_MAX + 1];
  if (!(schemes >> ZPS_PLAN_OKTOPK & 1) && (given->boundary_period || given->threshold_period))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: boundary_period and threshold_period are for oktopk, not for %s", name, scheme);
  if (given->without & ~parts)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: without is 0x%" PRIx32 ", but scheme %s can do without %s%s",
                    name, given->without, scheme, parts ? "no more than " : "no part", zps_without_text(parts, text));
  bool lossy = false;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    lossy = lossy || (schemes >> i & 1 && zps_plan_scheme_lossy((enum zps_plan_scheme)i));
  if (given->contributed && !lossy)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: contributed is %d, but scheme %s keeps all rows: all of a gradient is in the result",
                    name, given->contributed, scheme);
  ask->plan.contributed = ask->scheme && given->contributed;
  ask->plan.without = given->without;
  if (given->boundary_period != ZPS_OKTOPK_BOUNDARY_PERIOD) ask->plan.boundary_period = given->boundary_period;
  if (given->threshold_period != ZPS_OKTOPK_THRESHOLD_PERIOD) ask->plan.threshold_period = given->threshold_period;
  return ZPS_OK;
}

/* Flags of the scheme, or of the one between hosts. */
static unsigned flags_of(const struct zps_scheme_ask *ask) {
  unsigned flags = ask->scheme ? zps_plan_scheme_flags(ask->scheme->number) : 0;
  return flags | (ask->plan.inner ? zps_plan_scheme_flags(ask->plan.inner->number) : 0);
}

static zps_err_t set_levels(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, uint64_t world,
                            const char *name, struct zps_error *error) {
  if (given->n_levels == 0) return ZPS_OK;
  if (!(flags_of(ask) & ZPS_SCHEME_LEVELS))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: levels are for blueconnect, two-level and hierarchical, not for scheme %s", name,
                    ask->name);
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

static bool is_power_of_two(uint32_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

static zps_err_t set_algorithms(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, const char *name,
                                struct zps_error *error) {
  static const char *const names[] = {"auto", "ring", "doubling"};
  const bool takes = ask->scheme == &zps_peer_blueconnect || ask->plan.inner == &zps_peer_blueconnect;
  if (!given->level_algorithms) return ZPS_OK;
  if (!takes || ask->plan.n_levels == 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: level_algorithms are for the levels of blueconnect; scheme %s has %s", name, ask->name,
                    takes ? "no levels given" : "none");
  for (uint32_t i = 0; i < ask->plan.n_levels; i++) {
    const unsigned algorithm = (unsigned)given->level_algorithms[i];
    if (algorithm > ZENPS_LEVEL_DOUBLING)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: level_algorithms[%" PRIu32 "] is %u; 0 (auto), 1 (ring) or 2 (doubling) can be", name,
                      i, algorithm);
    if (algorithm == ZENPS_LEVEL_DOUBLING && !is_power_of_two(ask->levels[i]))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: level_algorithms[%" PRIu32 "] is %s, but level %" PRIu32 " has %" PRIu32
                      " ranks, no power of two",
                      name, i, names[algorithm], i, ask->levels[i]);
    ask->algorithms[i] = (enum zps_level_algorithm)algorithm;
  }
  ask->plan.algorithms = ask->algorithms;
  return ZPS_OK;
}

/* Options that are wrong under every scheme. */
static zps_err_t check_streams(const zenps_tensor_options_t *given, const char *name, struct zps_error *error) {
  if ((unsigned)given->allgather > ZENPS_ALLGATHER_DOUBLING)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: allgather is %u; 0 (auto), 1 (direct) or 2 (doubling) can be",
                    name, (unsigned)given->allgather);
  if (!(given->delta >= 0 && given->delta <= 1))
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: delta is %g; a share of the rows, 0 to 1, can be", name,
                    given->delta);
  if (given->delta > 0 && (given->op == ZENPS_OP_MAX || given->op == ZENPS_OP_MIN))
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "tensor %s: delta is %g, but streams of a max or min never become dense: a row that is not there is "
        "not zero",
        name, given->delta);
  if (given->allgather == ZENPS_ALLGATHER_DOUBLING && given->bits)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: allgather is doubling and bits %" PRIu32
                    ", but levels go straight to every rank: joined, they would be rounded again",
                    name, given->bits);
  return ZPS_OK;
}

static zps_err_t set_streams(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, enum zps_dtype dtype,
                             enum zps_value_codec values, const char *name, struct zps_error *error) {
  static const enum zps_peer_gather gathers[] = {ZPS_GATHER_AUTO, ZPS_GATHER_DIRECT, ZPS_GATHER_DOUBLING};
  const unsigned flags = flags_of(ask);
  if (given->allgather && !(flags & ZPS_SCHEME_GATHERS))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: allgather is for split-allgather, dsar and topkdsa, not for scheme %s", name,
                    ask->name);
  if (given->bits && !zps_plan_flags_round(flags))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: bits are for the dense halves of dsar and topkdsa, not for scheme %s", name, ask->name);
  if (given->delta > 0 && !(flags & ZPS_SCHEME_STREAMS))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: delta is for schemes that send sparse streams between ranks, not for scheme %s", name,
                    ask->name);
  ask->plan.value_bytes = zps_dtype_size(dtype);
  ask->plan.values = values == ZPS_VALUES_RAW ? 0 : values;
  ask->plan.gather = gathers[given->allgather];
  ask->plan.delta = given->delta;
  ask->allgather = (unsigned)given->allgather;
  return ZPS_OK;
}

/* Blocks of a dense scheme, and Ok-Topk's regions, travel in pieces of a megabyte, unless an option says otherwise. */
static uint32_t default_chunks(const struct zps_scheme_ask *ask, uint64_t world, uint64_t rows, uint64_t row_bytes) {
  const bool dense = ask->scheme->sends_zeros || (ask->plan.inner && ask->plan.inner->sends_zeros);
  if (!dense && ask->scheme->number != ZPS_PLAN_OKTOPK) return 1;
  const double block = dense ? (double)rows * (double)row_bytes : (double)ask->plan.k * (double)(row_bytes + 4);
  const double chunks = block / (double)world / CHUNK_BYTES;
  return chunks <= 1 ? 1 : chunks >= 8 ? 8 : (uint32_t)chunks;
}

zps_err_t zps_scheme_ask_init(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given,
                              const struct zps_worker_options *options, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, enum zps_value_codec values, struct zps_error *error) {
  const char *scheme = given->scheme                               ? given->scheme
                       : dtype == ZPS_DTYPE_U8 || !options->scheme ? "balanced"
                                                                   : options->scheme;
  const uint64_t world = given->group ? given->group->n_ranks : options->world;
  *ask = (struct zps_scheme_ask){0};
  ask->plan = (struct zps_peer_plan){.rows = rows, .width = width, .chunks = 1, .levels = ask->levels};
  zps_err_t err = check_streams(given, name, error);
  if (err != ZPS_OK) return err;
  if (zps_automatic_is(scheme)) { /* options are for the schemes that may be chosen */
    ask->served = zps_served_kind_find("balanced");
    const struct zps_automatic_limits limits = {
        .balanced_only = rows >= 1ull << 32,
        .no_zeros = given->op == ZENPS_OP_MAX || given->op == ZENPS_OP_MIN || given->keep_zero_rows,
        .narrow = values != ZPS_VALUES_RAW,
        .lossy_bits = given->bits != 0,
        .served_only = given->op == ZENPS_OP_MEAN_PRESENT,
        .any_order = given->order == ZENPS_ORDER_ANY || strcmp(scheme, "auto:any") == 0};
    err = zps_automatic_parse(scheme, name, &limits, &ask->choices, error);
    if (err == ZPS_OK) err = check_order(ask, (int)given->order, scheme, name, error);
    if (err == ZPS_OK && given->op == ZENPS_OP_MEAN_PRESENT) err = check_op(ask, (int)given->op, name, error);
    if (err == ZPS_OK) err = check_keep(ask, given, name, scheme, error);
    if (err != ZPS_OK) return err;
    set_spec(ask, zps_plan_scheme_name(ZPS_PLAN_AUTO));
    char text[ZPS_SCHEME_TEXT_MAX + 1];
    err = check_partitioner(ask, given->partitioner, name, zps_scheme_spec_text(&ask->spec, text), error);
    return err == ZPS_OK ? set_parts(ask, given, name, scheme, error) : err;
  }
  err = find_scheme(ask, scheme, name, error);
  if (err == ZPS_OK) err = check_order(ask, (int)given->order, scheme, name, error);
  if (err == ZPS_OK) err = check_op(ask, (int)given->op, name, error);
  if (err == ZPS_OK) err = check_keep(ask, given, name, scheme, error);
  if (err == ZPS_OK) err = check_partitioner(ask, given->partitioner, name, scheme, error);
  if (err == ZPS_OK) err = set_parts(ask, given, name, scheme, error);
  if (err != ZPS_OK) return err;
  if (!ask->scheme) {
    if (given->k || given->density != 0 || given->n_levels || given->chunks || given->bits || given->allgather ||
        given->delta > 0 || given->level_algorithms)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: k, density, levels, level_algorithms, chunks, bits, allgather and delta are for "
                      "schemes between ranks, not for %s",
                      name, scheme);
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
  if (err == ZPS_OK) err = set_levels(ask, given, world, name, error);
  if (err == ZPS_OK) err = set_algorithms(ask, given, name, error);
  if (err == ZPS_OK) err = set_streams(ask, given, dtype, values, name, error);
  if (err != ZPS_OK) return err;
  ask->plan.chunks =
      given->chunks ? given->chunks : default_chunks(ask, world, rows, (uint64_t)width * zps_dtype_size(dtype));
  ask->plan.bits = given->bits;
  set_spec(ask, ask->scheme->name);
  return ZPS_OK;
}

void zps_scheme_ask_between_hosts(const struct zps_scheme_ask *ask, struct zps_scheme_ask *inner) {
  *inner = (struct zps_scheme_ask){.served = ask->between, .plan = {.rows = ask->plan.rows, .width = ask->plan.width}};
  snprintf(inner->name, sizeof inner->name, "%s", ask->between->name);
  set_spec(inner, ask->between->name);
}
