#include "worker/choice/scheme_ask.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "worker/base/group.h"
#include "worker/choice/auto.h"
#include "worker/round/round.h"
#include "worker/schemes/common.h"

#define CHUNK_BYTES (1u << 20)

/* ------------------------------------------------------------ the request for a scheme */

/* What ranks must agree on. `name` is without that of a scheme between hosts. */
static void set_spec(struct zps_scheme_ask *ask, const char *name) {
  const struct zps_peer_plan *plan = &ask->plan;
  struct zps_scheme_spec *spec = &ask->spec;
  *spec = (struct zps_scheme_spec){.choices = ask->choices, .options = plan->options};
  zps_scheme_options_share(&spec->options);
  if (spec->chunks == 1) spec->chunks = 0;
  snprintf(spec->name, sizeof spec->name, "%s", name);
  if (ask->between || plan->inner)
    snprintf(spec->between, sizeof spec->between, "%s", ask->between ? ask->between->name : plan->inner->name);
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
    snprintf(ask->name, sizeof ask->name, "%.*s", (int)sizeof ask->name - 1, scheme);
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
  if (ask->options.delta > 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: keep_zero_rows is 1 and delta is %g, but streams that keep rows of zeros never become "
                    "dense: leave one out",
                    name, ask->options.delta);
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

static zps_err_t check_partitioner(const struct zps_scheme_ask *ask, const char *name, const char *scheme,
                                   struct zps_error *error) {
  bool does = partitions_rows(ask->served ? ask->served : ask->between);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const char *const choice = zps_plan_scheme_name((enum zps_plan_scheme)i);
    if (i == ZPS_PLAN_HIERARCHICAL) continue; /* balanced between hosts */
    if (ask->choices >> i & 1) does = does && partitions_rows(zps_served_kind_find(choice));
  }
  if (ask->options.partitioner == 0 || does) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "tensor %s: rows are dealt to partitions for balanced alone, over ranks or between hosts; scheme %s "
                  "lays rows out itself: leave the option partitioner=%s out",
                  name, scheme, zps_partitioner_word(ask->options.partitioner));
}

static zps_err_t set_k(struct zps_scheme_ask *ask, const char *name, struct zps_error *error) {
  const struct zps_scheme_options *options = &ask->options;
  const uint64_t rows = ask->plan.rows;
  if (!ask->scheme->lossy) return ZPS_OK;
  if ((options->k > 0) == (options->density > 0))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: scheme %s keeps only the greatest rows: say how many, by k or density%s", name,
                    ask->scheme->name, options->k ? ", not by both" : "");
  if (options->k > rows)
    return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: k is %" PRIu64 ", more than the %" PRIu64 " rows", name,
                    options->k, rows);
  ask->plan.k = options->k ? options->k : (uint64_t)llround(options->density * (double)rows);
  if (ask->plan.k == 0) ask->plan.k = 1;
  return ZPS_OK;
}

static bool is_power_of_two(uint32_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

static zps_err_t check_levels(const struct zps_scheme_ask *ask, uint64_t world, const char *name,
                              struct zps_error *error) {
  const struct zps_scheme_options *options = &ask->options;
  const bool chosen = ask->scheme == &zps_peer_blueconnect || ask->plan.inner == &zps_peer_blueconnect;
  uint64_t product = 1;
  for (uint32_t i = 0; i < options->n_levels; i++) {
    const uint32_t algorithm = options->algorithms[i];
    if (product <= world) product *= options->levels[i];
    if (algorithm && !chosen)
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: letters in levels are for blueconnect; scheme %s takes numbers of ranks alone", name,
                      ask->name);
    if (algorithm == ZPS_LEVEL_DOUBLING && !is_power_of_two(options->levels[i]))
      return zps_fail(error, ZPS_ERR_INVALID,
                      "tensor %s: levels has %" PRIu32 "d, but doubling needs a power of two; take %" PRIu32 "r", name,
                      options->levels[i], options->levels[i]);
  }
  if (options->n_levels == 0 || product == world) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "tensor %s: the product of the levels is not the number of ranks, %" PRIu64,
                  name, world);
}

/* Options that contradict each other under every scheme. */
static zps_err_t check_streams(const struct zps_scheme_options *options, int op, const char *name,
                               struct zps_error *error) {
  if (options->delta > 0 && (op == ZENPS_OP_MAX || op == ZENPS_OP_MIN))
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "tensor %s: delta is %g, but streams of a max or min never become dense: a row that is not there is "
        "not zero",
        name, options->delta);
  if (options->allgather == ZPS_ALLGATHER_DOUBLING && options->bits)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "tensor %s: allgather is doubling and bits %" PRIu32
                    ", but levels go straight to every rank: joined, they would be rounded again",
                    name, options->bits);
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

static zps_err_t ask_automatic(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given, const char *scheme,
                               const char *name, enum zps_value_codec values, struct zps_error *error) {
  ask->served = zps_served_kind_find("balanced");
  const struct zps_automatic_limits limits = {
      .balanced_only = ask->plan.rows >= 1ull << 32,
      .no_zeros = given->op == ZENPS_OP_MAX || given->op == ZENPS_OP_MIN || given->keep_zero_rows,
      .narrow = values != ZPS_VALUES_RAW,
      .lossy_bits = ask->options.bits != 0,
      .served_only = given->op == ZENPS_OP_MEAN_PRESENT,
      .any_order = given->order == ZENPS_ORDER_ANY || strcmp(scheme, "auto:any") == 0};
  zps_err_t err = zps_automatic_parse(scheme, name, &limits, &ask->choices, error);
  if (err == ZPS_OK) err = check_order(ask, (int)given->order, scheme, name, error);
  if (err == ZPS_OK && given->op == ZENPS_OP_MEAN_PRESENT) err = check_op(ask, (int)given->op, name, error);
  if (err == ZPS_OK) err = check_keep(ask, given, name, scheme, error);
  if (err != ZPS_OK) return err;
  set_spec(ask, zps_plan_scheme_name(ZPS_PLAN_AUTO));
  char text[ZPS_SCHEME_TEXT_MAX + 1];
  return check_partitioner(ask, name, zps_scheme_spec_text(&ask->spec, text), error);
}

zps_err_t zps_scheme_ask_init(struct zps_scheme_ask *ask, const zenps_tensor_options_t *given,
                              const struct zps_worker_options *options, const char *name, uint64_t rows, uint32_t width,
                              enum zps_dtype dtype, enum zps_value_codec values, struct zps_error *error) {
  const char *const otherwise = dtype == ZPS_DTYPE_U8 || !options->scheme ? "balanced" : options->scheme;
  const uint64_t world = given->group ? given->group->n_ranks : options->world;
  struct zps_scheme_text text;
  struct zps_error why;
  *ask = (struct zps_scheme_ask){0};
  ask->plan = (struct zps_peer_plan){.rows = rows, .width = width, .chunks = 1};
  zps_err_t err = zps_scheme_text_parse(given->scheme ? given->scheme : otherwise, otherwise, &text, &why);
  if (err != ZPS_OK) return zps_fail(error, err, "tensor %s: %s", name, why.text);
  const char *const scheme = text.scheme;
  ask->options = text.options;
  err = check_streams(&ask->options, (int)given->op, name, error);
  if (err != ZPS_OK) return err;
  if (zps_automatic_is(scheme)) return ask_automatic(ask, given, scheme, name, values, error);
  err = find_scheme(ask, scheme, name, error);
  if (err == ZPS_OK) err = check_order(ask, (int)given->order, scheme, name, error);
  if (err == ZPS_OK) err = check_op(ask, (int)given->op, name, error);
  if (err == ZPS_OK) err = check_keep(ask, given, name, scheme, error);
  if (err == ZPS_OK) err = check_partitioner(ask, name, scheme, error);
  if (err != ZPS_OK) return err;
  if (!ask->scheme) {
    set_spec(ask, ask->served->name);
    return ZPS_OK;
  }
  if (rows >= 1ull << 32)
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    "tensor %s: scheme %s takes fewer than 2^32 rows, not %" PRIu64 "; balanced takes more", name,
                    scheme, rows);
  ask->plan.options = ask->options;
  err = set_k(ask, name, error);
  if (err == ZPS_OK) err = check_levels(ask, world, name, error);
  if (err != ZPS_OK) return err;
  if (ask->plan.chunks == 0)
    ask->plan.chunks = default_chunks(ask, world, rows, (uint64_t)width * zps_dtype_size(dtype));
  ask->plan.value_bytes = zps_dtype_size(dtype);
  ask->plan.values = values == ZPS_VALUES_RAW ? 0 : values;
  set_spec(ask, ask->scheme->name);
  return ZPS_OK;
}

void zps_scheme_ask_between_hosts(const struct zps_scheme_ask *ask, struct zps_scheme_ask *inner) {
  *inner = (struct zps_scheme_ask){.served = ask->between, .plan = {.rows = ask->plan.rows, .width = ask->plan.width}};
  snprintf(inner->name, sizeof inner->name, "%s", ask->between->name);
  set_spec(inner, ask->between->name);
}
