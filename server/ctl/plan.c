#include "server/ctl/plan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec/values.h"
#include "common/plan/scheme_options.h"
#include "common/plan/trace.h"
#include "server/ctl/ctl.h"

#define GBIT (1e9 / 8)

/* "all", "lossless", "balanced,dsar,bits=4" or "oktopk:k=1000": the schemes, and the options that the model knows. */
static zps_err_t parse_schemes(const char *text, struct zps_ctl_plan *plan, struct zps_error *error) {
  const bool one = strchr(text, ':');
  char whole[ZPS_SCHEME_TEXT_MAX + 1];
  struct zps_scheme_text given;
  struct zps_plan_input *const input = &plan->input;
  if (snprintf(whole, sizeof whole, "%s%s", one ? "" : "auto:", text) >= (int)sizeof whole)
    return zps_fail(error, ZPS_ERR_INVALID, "--schemes: longer than %u bytes", ZPS_SCHEME_TEXT_MAX);
  zps_err_t err = zps_scheme_text_parse(whole, "", &given, error);
  if (err) return err;
  const char *const names = one ? given.scheme : given.scheme + strcspn(given.scheme, ":") + 1;
  const struct zps_scheme_options *const options = &given.options;
  struct zps_scheme_options others = *options;
  char text_of_others[ZPS_SCHEME_TEXT_MAX + 1] = "";
  others.k = others.bits = 0;
  others.density = 0;
  if (*zps_scheme_options_add(&others, text_of_others))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--schemes: the model knows the options k, density and bits alone, not %.80s", text_of_others + 1);
  input->k = options->k ? options->k : (uint64_t)llround(options->density * (double)input->tensor.rows);
  input->bits = options->bits;
  plan->schemes = strcmp(names, "all") == 0        ? (1u << ZPS_PLAN_SCHEMES) - 1
                  : strcmp(names, "lossless") == 0 ? zps_plan_lossless()
                                                   : 0;
  return plan->schemes ? ZPS_OK : zps_plan_schemes_parse(names, strlen(names), &plan->schemes, error);
}

static zps_err_t measure(const struct zps_ctl_plan_options *options, struct zps_plan_input *input,
                         struct zps_error *error) {
  const bool standard = strcmp(options->trace, "-") == 0;
  FILE *const file = standard ? stdin : fopen(options->trace, "r");
  struct zps_plan_trace trace;
  if (!file) return zps_fail_errno(error, ZPS_ERR_INVALID, errno, "cannot open the trace %s", options->trace);
  zps_err_t err = zps_plan_trace_read(file, standard ? "standard input" : options->trace, &trace, error);
  if (!standard) fclose(file);
  if (err) return err;
  const struct zps_plan_sampling sampling = {.rows = options->rows,
                                             .width = (uint32_t)options->width,
                                             .batch = (uint32_t)options->batch,
                                             .ranks = (uint32_t)options->workers_max,
                                             .steps = (uint32_t)options->trace_steps,
                                             .seed = options->seed};
  err = zps_plan_trace_profile(&trace, &sampling, &input->profile, error);
  input->tensor.rows = options->rows ? options->rows : trace.domain;
  zps_plan_trace_fini(&trace);
  return err;
}

static zps_err_t profile(const struct zps_ctl_plan_options *options, struct zps_plan_input *input,
                         struct zps_error *error) {
  struct zps_plan_profile *p = &input->profile;
  *p = (struct zps_plan_profile){.density = options->density,
                                 .overlap = options->overlap ? ZPS_PLAN_DISJOINT : ZPS_PLAN_INDEPENDENT,
                                 .run = options->run};
  zps_err_t err = options->trace ? measure(options, input, error) : ZPS_OK;
  if (!err && options->gamma) {
    err = zps_plan_curve_parse(options->gamma, &p->gamma, error);
    p->overlap = ZPS_PLAN_MEASURED;
  }
  if (!err && options->skew) err = zps_plan_curve_parse(options->skew, &p->skew, error);
  if (options->block_density > 0) p->block_density = options->block_density;
  return err;
}

static void calibrate(const struct zps_ctl_plan_options *options, struct zps_plan_input *input) {
  const bool paper = options->codec != ZPS_PLAN_CODEC_AUTO;
  if (options->compute == 2 || (options->compute == 0 && paper)) return;
  struct zps_plan_calibration *calibration = &input->calibration;
  zps_plan_calibration_default(calibration);
  zps_plan_calibration_scale(calibration, options->machine);
  calibration->threads = options->threads;
  if (options->rows_in) calibration->scan_value_ns = calibration->clear_value_ns = 0;
}

/* From options, and the trace that they name, to the question. */
static zps_err_t plan_init(const struct zps_ctl_plan_options *options, struct zps_ctl_plan *plan,
                           struct zps_error *error) {
  *plan = (struct zps_ctl_plan){.workers = (uint32_t)options->workers, .workers_max = (uint32_t)options->workers_max};
  struct zps_plan_input *input = &plan->input;
  enum zps_dtype dtype = ZPS_DTYPE_F32;
  const enum zps_value_codec values = (enum zps_value_codec)(options->values + 1);
  (void)zps_dtype_parse(zps_ctl_plan_dtypes[options->dtype], &dtype); /* all of them are names */
  if (!zps_values_suit(values, dtype))
    return zps_fail(error, ZPS_ERR_INVALID, "--values=%s: values of dtype %s travel as raw, qsgd2, qsgd4 or qsgd8",
                    zps_values_name(values), zps_dtype_name(dtype));
  input->cluster = (struct zps_plan_cluster){
      .n = plan->workers,
      .ranks_per_host = (uint32_t)options->ranks_per_host,
      .hosts_per_rack = (uint32_t)options->hosts_per_rack,
      .servers = (uint32_t)options->servers,
      .servers_apart = options->servers_apart,
      .net = {options->bandwidth_gbit * GBIT, options->latency_us * 1e-6},
      .host = {options->host_bandwidth_gbit * GBIT, options->host_latency_us * 1e-6},
      .rack = {options->rack_bandwidth_gbit * GBIT, options->latency_us * 1e-6},
  };
  input->tensor = (struct zps_plan_tensor){
      .rows = options->rows ? options->rows : 1000000,
      .width = (uint32_t)options->width,
      .value_bytes = (double)zps_dtype_size(dtype),
      .served_bytes = (double)zps_values_bytes(values, dtype, ZPS_VALUES_BUCKET) / ZPS_VALUES_BUCKET,
  };
  input->codec = (enum zps_plan_codec)options->codec;
  input->imbalance = options->imbalance;
  input->published = options->as_published;
  calibrate(options, input);
  zps_err_t err = profile(options, input, error);
  if (!err) err = parse_schemes(options->schemes ? options->schemes : "all", plan, error);
  if (!err) err = zps_plan_check(input, error);
  for (uint32_t n = 2; n < plan->workers_max; n *= 2) plan->points[plan->n_points++] = n;
  plan->points[plan->n_points++] = plan->workers_max;
  return err;
}

static zps_err_t run(const void *ctx, const struct zps_config_rest *rest, FILE *out, struct zps_error *error) {
  const struct zps_ctl_plan_options *const options = ctx;
  struct zps_ctl_plan plan;
  (void)rest;
  zps_err_t err = plan_init(options, &plan, error);
  if (err) return err;
  zps_json *report = zps_ctl_plan_report(&plan);
  if (!report || (options->json && zps_ctl_print_json(out, report, false)))
    err = zps_fail(error, ZPS_ERR_NOMEM, "no memory for the report");
  else if (!options->json)
    zps_ctl_plan_print(out, report);
  zps_json_unref(report);
  if (!err) err = zps_ctl_flush(out, error);
  if (!err && options->svg) err = zps_ctl_plan_draw(options->svg, &plan, error);
  return err;
}

zps_err_t zps_ctl_plan_run(int argc, char **argv, FILE *out, struct zps_error *error) {
  static const struct zps_ctl_apart apart = {&zps_ctl_plan_table, run};
  struct zps_ctl_plan_options options;
  return zps_ctl_apart_run(&apart, argc, argv, &options, out, error);
}
