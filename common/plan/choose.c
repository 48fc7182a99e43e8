#include "common/plan/choose.h"

#include <math.h>

/* Looks that two schemes have before one of them is called faster; within how much they have them; and how far off,
 * where it was measured before with another profile. */
#define LOOKS 3
#define CLOSE 1.1
#define KNOWN_DOUBT 1.3

const char *zps_plan_state_name(enum zps_plan_state state) {
  static const char *const names[] = {"profiling", "probing", "holding", "wavering"};
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

/* The mean of the first looks; then it follows at an eighth a round. By ratio. */
static void measured(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double seconds) {
  const double expected = predicted(input, chooser->scheme);
  const uint32_t looks = ++chooser->looks[chooser->scheme];
  if (!(seconds > 0) || !isfinite(seconds) || !(expected > 0)) return;
  double *time_s = &chooser->time_s[chooser->scheme];
  *time_s = *time_s > 0 ? *time_s * pow(seconds / *time_s, 1.0 / (looks < 8 ? looks : 8)) : seconds;
  chooser->off[chooser->scheme] = *time_s / expected;
}

/* Of those that were measured. */
static double mean_off(const struct zps_plan_chooser *chooser) {
  double sum = 0;
  unsigned n = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (chooser->time_s[i] <= 0) continue;
    sum += log(chooser->off[i]);
    n++;
  }
  return n ? exp(sum / n) : 1;
}

double zps_plan_expected(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input,
                         enum zps_plan_scheme scheme) {
  const double present = chooser->off[chooser->scheme], own = chooser->off[scheme];
  if (chooser->policy.doubt > 0 && chooser->time_s[scheme] > 0) return chooser->time_s[scheme];
  double off = present > 0 ? sqrt(present) : 1;
  if (chooser->policy.doubt > 0) off = mean_off(chooser);
  if (own > 0) off = own;
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

/* The best of the allowed ones that have had `least` looks or more. */
static enum zps_plan_scheme best_of(struct zps_plan_chooser *chooser, const struct zps_plan_input *input,
                                    uint32_t least) {
  enum zps_plan_scheme best = chooser->scheme;
  /* One that may not be any more is as slow as can be. */
  const bool may_be = chooser->policy.allowed >> best & 1;
  chooser->present_s = chooser->promised_s = may_be ? zps_plan_expected(chooser, input, best) : INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(chooser->policy.allowed >> i & 1) || chooser->looks[i] < least) continue;
    const double seconds = zps_plan_expected(chooser, input, (enum zps_plan_scheme)i);
    if (seconds >= chooser->promised_s) continue;
    chooser->promised_s = seconds;
    best = (enum zps_plan_scheme)i;
  }
  return best;
}

static bool take(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, enum zps_plan_scheme scheme,
                 enum zps_plan_state state) {
  const bool another = scheme != chooser->scheme;
  chooser->scheme = scheme;
  remember(chooser, input);
  enter(chooser, state);
  return another;
}

/* The most promising one that might be the fastest and was not tried, or too little to tell it from the best;
 * ZPS_PLAN_SCHEMES: none. */
static enum zps_plan_scheme next_probe(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const enum zps_plan_scheme best = best_of(chooser, input, 1);
  const double best_s = chooser->promised_s;
  enum zps_plan_scheme next = ZPS_PLAN_SCHEMES;
  double next_s = INFINITY;
  bool close = false;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    if (!(chooser->policy.allowed >> i & 1) || scheme == best) continue;
    const double seconds = zps_plan_expected(chooser, input, scheme);
    /* What was measured with another profile is less in doubt. */
    const double doubt = chooser->looks[i] > 0 ? CLOSE
                         : chooser->off[i] > 0 ? fmin(chooser->policy.doubt, KNOWN_DOUBT)
                                               : chooser->policy.doubt;
    if (seconds > doubt * best_s) continue;
    close = close || (chooser->looks[i] > 0 && chooser->looks[i] <= LOOKS);
    if (chooser->looks[i] >= LOOKS || seconds / doubt >= next_s) continue;
    next = scheme;
    next_s = seconds / doubt;
  }
  return next == ZPS_PLAN_SCHEMES && close && chooser->looks[best] < LOOKS ? best : next;
}

static bool probe(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const enum zps_plan_scheme next = next_probe(chooser, input);
  if (next != ZPS_PLAN_SCHEMES) return take(chooser, input, next, ZPS_PLAN_PROBING);
  return take(chooser, input, best_of(chooser, input, 1), ZPS_PLAN_HOLDING);
}

static void start_again(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (chooser->policy.doubt <= 0) chooser->off[i] = 0; /* of another profile, and never measured again */
    chooser->looks[i] = 0;
    chooser->time_s[i] = 0;
  }
  remember(chooser, input);
  enter(chooser, ZPS_PLAN_PROFILING);
}

bool zps_plan_choose(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s) {
  const struct zps_plan_policy *policy = &chooser->policy;
  measured(chooser, input, measured_s);
  chooser->rounds++;
  if (chooser->state != ZPS_PLAN_PROFILING && drifted(chooser, input)) {
    start_again(chooser, input);
    return false;
  }
  if (chooser->state == ZPS_PLAN_PROBING) return probe(chooser, input);
  const enum zps_plan_scheme best = best_of(chooser, input, 0);
  const bool worth = best != chooser->scheme && chooser->promised_s < (1 - policy->gain) * chooser->present_s;
  switch (chooser->state) {
    case ZPS_PLAN_PROFILING:
      if (chooser->rounds < policy->profile_rounds) return false;
      if (policy->doubt > 0) return probe(chooser, input);
      return take(chooser, input, worth ? best : chooser->scheme, ZPS_PLAN_HOLDING);
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
  return chooser->rounds >= policy->patience && take(chooser, input, best, ZPS_PLAN_HOLDING);
}
