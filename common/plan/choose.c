#include "common/plan/choose.h"

#include <math.h>
#include <string.h>

/* The least error that predictions are allowed: of schemes measured with another profile, and where the predictions
 * hold. */
#define LEAST_DOUBT 1.5
/* Rounds until all are tried again, at first and at most. */
#define REST 16u
#define REST_MAX 1024u

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
static double follow(double time_s, double seconds, uint32_t looks) {
  return time_s > 0 ? time_s * pow(seconds / time_s, 1.0 / (looks < 8 ? looks : 8)) : seconds;
}

static void measured(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double seconds) {
  const enum zps_plan_scheme scheme = chooser->scheme;
  const bool probing = chooser->state == ZPS_PLAN_PROBING, tries = chooser->policy.doubt > 0;
  const double expected = predicted(input, scheme);
  if (probing) zps_plan_probe_ran(&chooser->probe, scheme, seconds);
  const bool known = seconds > 0 && isfinite(seconds) && expected > 0;
  /* The first rounds of all find nothing prepared: their times tell the worth of predictions, and nothing of the
   * scheme. */
  if (tries && chooser->state == ZPS_PLAN_PROFILING) {
    if (known) chooser->first_off = seconds / expected;
    return;
  }
  const uint32_t looks = ++chooser->looks[scheme];
  if (!known) return;
  double *time_s = &chooser->time_s[scheme];
  *time_s = probing ? zps_plan_probe_time(&chooser->probe, scheme) : follow(*time_s, seconds, looks);
  chooser->off[scheme] = *time_s / expected;
}

/* The time of the best scheme that was measured; INFINITY: none was. */
static double best_measured(const struct zps_plan_chooser *chooser) {
  double best_s = chooser->trusted_s > 0 ? chooser->trusted_s : INFINITY;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    if (chooser->time_s[i] > 0) best_s = fmin(best_s, chooser->time_s[i]);
  return best_s;
}

/* A scheme is not tried if its round is expected to take longer. Without measured rounds the prediction of the scheme
 * in force stands for one. */
static double most(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const double best_s = best_measured(chooser);
  return ZPS_PLAN_TOO_SLOW * (isfinite(best_s) ? best_s : predicted(input, chooser->scheme));
}

/* The predicted time of each scheme at the rate that measured rounds imply. */
static void slowed(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input,
                   double slowed_s[ZPS_PLAN_SCHEMES]) {
  double time_s[ZPS_PLAN_SCHEMES];
  memcpy(time_s, chooser->time_s, sizeof time_s);
  if (time_s[chooser->trusted] <= 0) time_s[chooser->trusted] = chooser->trusted_s;
  const double slowdown = zps_plan_slowdown(input, time_s);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++)
    slowed_s[i] = zps_plan_slowed(input, (enum zps_plan_scheme)i, slowdown);
}

/* The rounds of the scheme in force are what trials are held against. */
static void trust(struct zps_plan_chooser *chooser, double seconds) {
  chooser->trusted = chooser->scheme;
  chooser->trusted_s = seconds > 0 && isfinite(seconds) ? seconds : 0;
}

/* Of those that were measured with this profile. */
static double mean_off(const struct zps_plan_chooser *chooser) {
  double sum = 0;
  unsigned n = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (chooser->time_s[i] <= 0) continue;
    sum += log(chooser->off[i]);
    n++;
  }
  return n ? exp(sum / n) : chooser->first_off > 0 ? chooser->first_off : 1;
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

/* The best of the allowed ones. */
static enum zps_plan_scheme best_of(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  enum zps_plan_scheme best = chooser->scheme;
  /* One that may not be any more is as slow as can be. */
  const bool may_be = chooser->policy.allowed >> best & 1;
  chooser->present_s = chooser->promised_s = may_be ? zps_plan_expected(chooser, input, best) : INFINITY;
  const double most_s = most(chooser, input);
  double slowed_s[ZPS_PLAN_SCHEMES];
  slowed(chooser, input, slowed_s);
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(chooser->policy.allowed >> i & 1)) continue;
    if (may_be && i != chooser->scheme && slowed_s[i] > most_s) continue;
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

static bool tried(const struct zps_plan_chooser *chooser, unsigned scheme) {
  return chooser->probe.left >> scheme & 1;
}

/* The most promising untried scheme that might be the fastest; ZPS_PLAN_SCHEMES: none. It might be if predictions err
 * as far as the policy allows, or if its own prediction nearly holds. Notes the schemes that would take too long. */
static enum zps_plan_scheme candidate(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const double most_s = most(chooser, input);
  double best_s = INFINITY, next_s = INFINITY, slowed_s[ZPS_PLAN_SCHEMES];
  slowed(chooser, input, slowed_s);
  chooser->too_slow = 0;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (tried(chooser, i)) best_s = fmin(best_s, zps_plan_expected(chooser, input, (enum zps_plan_scheme)i));
  }
  enum zps_plan_scheme next = ZPS_PLAN_SCHEMES;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    const enum zps_plan_scheme scheme = (enum zps_plan_scheme)i;
    if (!(chooser->policy.allowed >> i & 1) || tried(chooser, i) || chooser->failed >> i & 1) continue;
    if (scheme != chooser->trusted && slowed_s[i] > most_s) {
      chooser->too_slow |= 1u << i;
      continue;
    }
    const bool known = chooser->off[i] > 0;
    const double doubt = known ? fmin(chooser->policy.doubt, LEAST_DOUBT) : chooser->policy.doubt;
    const double seconds = zps_plan_expected(chooser, input, scheme);
    const double least_s = known ? seconds / doubt : fmin(seconds / doubt, slowed_s[i] / LEAST_DOUBT);
    if (least_s > best_s || seconds >= next_s) continue;
    next = scheme;
    next_s = seconds;
  }
  return next;
}

static bool probe(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  struct zps_plan_probe *const race = &chooser->probe;
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (!(chooser->policy.allowed >> i & 1)) zps_plan_probe_drop(race, (enum zps_plan_scheme)i);
  }
  enum zps_plan_scheme next = zps_plan_probe_next(race);
  if (next == ZPS_PLAN_SCHEMES && race->rung == 0) {
    next = candidate(chooser, input);
    if (next != ZPS_PLAN_SCHEMES) zps_plan_probe_join(race, next);
  }
  if (next == ZPS_PLAN_SCHEMES && zps_plan_probe_repeat(race)) next = zps_plan_probe_next(race);
  if (next != ZPS_PLAN_SCHEMES) {
    chooser->is_first =
        chooser->policy.first_s > 0 && race->rung == 0 && next != chooser->scheme && next != chooser->trusted;
    return take(chooser, input, next, ZPS_PLAN_PROBING);
  }
  const enum zps_plan_scheme best = zps_plan_probe_best(race);
  const bool another =
      take(chooser, input, best == ZPS_PLAN_SCHEMES ? best_of(chooser, input) : best, ZPS_PLAN_HOLDING);
  chooser->chosen_s = chooser->time_s[chooser->scheme];
  chooser->rest = chooser->scheme == chooser->candidate && chooser->rest ? chooser->rest * 2 : REST;
  if (chooser->rest > REST_MAX) chooser->rest = REST_MAX;
  chooser->candidate = chooser->scheme;
  chooser->held = 0;
  return another;
}

/* The first round of a trial is over: the scheme goes on, or fails. */
static bool first_round(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s) {
  const enum zps_plan_scheme scheme = chooser->scheme;
  const bool is_slow = measured_s > ZPS_PLAN_TOO_SLOW * best_measured(chooser) + chooser->policy.first_s;
  chooser->is_first = false;
  if (!is_slow && chooser->policy.allowed >> scheme & 1) return false;
  if (is_slow) {
    chooser->failed |= 1u << scheme;
    chooser->off[scheme] = measured_s / predicted(input, scheme);
  }
  zps_plan_probe_drop(&chooser->probe, scheme);
  return probe(chooser, input);
}

static void forget(struct zps_plan_chooser *chooser) {
  for (unsigned i = 0; i < ZPS_PLAN_SCHEMES; i++) {
    if (chooser->policy.doubt <= 0) chooser->off[i] = 0; /* of another profile, and never measured again */
    chooser->looks[i] = 0;
    chooser->time_s[i] = 0;
  }
  chooser->failed = 0;
  chooser->is_first = false;
  chooser->probe = (struct zps_plan_probe){.left = 0};
}

/* With the scheme that is known to be good, not with one on trial. True: that is another one. */
static bool start_again(struct zps_plan_chooser *chooser, const struct zps_plan_input *input) {
  const enum zps_plan_scheme best = zps_plan_probe_best(&chooser->probe);
  const bool on_trial = chooser->state == ZPS_PLAN_PROBING;
  const enum zps_plan_scheme known = best < ZPS_PLAN_SCHEMES ? best : chooser->trusted;
  forget(chooser);
  chooser->rest = 0;
  chooser->trusted_s = 0;
  return take(chooser, input, on_trial && chooser->policy.allowed >> known & 1 ? known : chooser->scheme,
              ZPS_PLAN_PROFILING);
}

/* Schemes are tried: nothing but that tells which is faster. */
static bool choose_tried(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s) {
  const struct zps_plan_policy *policy = &chooser->policy;
  if (chooser->state == ZPS_PLAN_PROBING) return probe(chooser, input);
  if (chooser->state == ZPS_PLAN_PROFILING && chooser->rounds < policy->profile_rounds) return false;
  if (chooser->state != ZPS_PLAN_PROFILING && policy->allowed >> chooser->scheme & 1) {
    const bool slower = chooser->chosen_s > 0 && (1 - policy->gain) * measured_s > chooser->chosen_s;
    chooser->held++;
    if (slower != (chooser->state == ZPS_PLAN_WAVERING)) enter(chooser, slower ? ZPS_PLAN_WAVERING : ZPS_PLAN_HOLDING);
    if (!slower || chooser->rounds + 1 < policy->patience || chooser->held < chooser->rest) return false;
  }
  forget(chooser);
  trust(chooser, measured_s);
  return probe(chooser, input);
}

bool zps_plan_choose(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s) {
  const struct zps_plan_policy *policy = &chooser->policy;
  if (chooser->is_first) return first_round(chooser, input, measured_s);
  measured(chooser, input, measured_s);
  chooser->rounds++;
  if (chooser->state != ZPS_PLAN_PROFILING && drifted(chooser, input)) return start_again(chooser, input);
  if (policy->doubt > 0) return choose_tried(chooser, input, measured_s);
  const enum zps_plan_scheme best = best_of(chooser, input);
  const bool worth = best != chooser->scheme && chooser->promised_s < (1 - policy->gain) * chooser->present_s;
  switch (chooser->state) {
    case ZPS_PLAN_PROFILING:
      if (chooser->rounds < policy->profile_rounds) return false;
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
