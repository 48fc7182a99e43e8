#include "common/plan/choose.h"

#include <math.h>

const char *zps_plan_state_name(enum zps_plan_state state) {
  static const char *const names[] = {"profiling", "holding", "wavering"};
  return (unsigned)state < sizeof names / sizeof names[0] ? names[state] : "?";
}

void zps_plan_policy_default(struct zps_plan_policy *policy) {
  *policy = (struct zps_plan_policy){
      .allowed = zps_plan_lossless(), .gain = 0.1, .patience = 8, .profile_rounds = 4, .drift = 0.25};
}

void zps_plan_chooser_init(struct zps_plan_chooser *chooser, const struct zps_plan_policy *policy,
                           enum zps_plan_scheme scheme) {
  *chooser = (struct zps_plan_chooser){.policy = *policy, .scheme = scheme, .candidate = scheme};
}

static void enter(struct zps_plan_chooser *chooser, enum zps_plan_state state) {
  chooser->state = state;
  chooser->rounds = 0;
}

static double predicted(const struct zps_plan_input *input, enum zps_plan_scheme scheme) {
  struct zps_plan_cost cost;
  zps_plan_predict(input, scheme, &cost);
  return cost.time_s;
}

/* The mean follows at an eighth a round, by ratio. */
static void measured(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double seconds) {
  const double expected = predicted(input, chooser->scheme);
  if (!(seconds > 0) || !isfinite(seconds) || !(expected > 0)) return;
  double *off = &chooser->off[chooser->scheme];
  const double now = seconds / expected;
  *off = *off > 0 ? *off * pow(now / *off, 0.125) : now;
}

static double corrected(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input,
                        enum zps_plan_scheme scheme) {
  const double present = chooser->off[chooser->scheme], own = chooser->off[scheme];
  const double off = own > 0 ? own : present > 0 ? sqrt(present) : 1;
  return off * predicted(input, scheme);
}

static bool differs(double now, double then, double part) {
  return fabs(now - then) > part * fmax(now, then);
}

static void remember(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  chooser->density = input->profile.density;
  chooser->gamma_n = zps_plan_gamma(&input->profile, input->cluster.n);
}

static bool drifted(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const double part = chooser->policy.drift;
  return differs(input->profile.density, chooser->density, part) ||
         differs(zps_plan_gamma(&input->profile, input->cluster.n), chooser->gamma_n, part);
}

static enum zps_plan_scheme best_of(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  enum zps_plan_scheme best = chooser->scheme;
  chooser->present_s = chooser->promised_s = corrected(chooser, input, chooser->scheme);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(chooser->policy.allowed >> i & 1)) continue;
    const double seconds = corrected(chooser, input, (enum zps_plan_scheme)i);
    if (seconds >= chooser->promised_s) continue;
    chooser->promised_s = seconds;
    best = (enum zps_plan_scheme)i;
  }
  return best;
}

static bool take(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, enum zps_plan_scheme scheme) {
  chooser->scheme = scheme;
  remember(chooser, input);
  enter(chooser, ZPS_PLAN_HOLDING);
  return true;
}

bool zps_plan_choose(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s) {
  const struct zps_plan_policy *policy = &chooser->policy;
  measured(chooser, input, measured_s);
  chooser->rounds++;
  if (chooser->state != ZPS_PLAN_PROFILING && drifted(chooser, input)) {
    for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) chooser->off[i] = 0; /* of another profile */
    remember(chooser, input);
    enter(chooser, ZPS_PLAN_PROFILING);
    return false;
  }
  const enum zps_plan_scheme best = best_of(chooser, input);
  const bool worth = best != chooser->scheme && chooser->promised_s < (1 - policy->gain) * chooser->present_s;
  switch (chooser->state) {
    case ZPS_PLAN_PROFILING:
      if (chooser->rounds < policy->profile_rounds) return false;
      if (worth) return take(chooser, input, best);
      remember(chooser, input);
      enter(chooser, ZPS_PLAN_HOLDING);
      return false;
    case ZPS_PLAN_HOLDING:
      if (!worth) return false;
      enter(chooser, ZPS_PLAN_WAVERING);
      break;
    case ZPS_PLAN_WAVERING:
    default:
      if (!worth) {
        enter(chooser, ZPS_PLAN_HOLDING);
        return false;
      }
      if (best != chooser->candidate) chooser->rounds = 0; /* another one: its time starts here */
  }
  chooser->candidate = best;
  if (chooser->rounds == 0) chooser->rounds = 1;
  return chooser->rounds >= policy->patience && take(chooser, input, best);
}
