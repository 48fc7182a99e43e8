/*
 * The choice of the scheme of a tensor's rounds: a pure state machine, fed with the profile and the time of each round.
 *
 *     PROFILING > PROBING > HOLDING <> WAVERING,  and PROFILING again when the gradients change
 *
 * PROFILING looks at a few rounds. PROBING tries the schemes that could be the fastest if predictions are as far off as
 * the policy thinks possible, in rungs (probe.h), and takes the one that is measured best. HOLDING keeps that scheme
 * until its rounds take longer than they did; WAVERING waits to see whether they stay longer, round after round, before
 * all are tried again, since times of another hour say nothing of this one. Each time that the same scheme wins again,
 * the next trial has to wait twice as long.
 *
 * Where nothing is probed, HOLDING waits for another scheme to promise a gain by its prediction, and WAVERING for as
 * many rounds to repeat that promise before the scheme is taken. So two schemes that cost about the same do not take
 * turns.
 *
 * A prediction is corrected by a factor: the measured time of the scheme over its prediction. For a scheme that was not
 * measured, it is the factor of those that were: a machine that is slower than thought is slower with all schemes.
 * Where nothing is probed, the root of that factor is taken: a scheme that runs far worse than predicted gives another
 * a chance.
 *
 * No trial may cost much (limit.h). A scheme is not tried if its bytes would take too long at the rate that measured
 * rounds imply. A trial begins with one round, and ends there if that takes far longer than the best scheme's rounds.
 *
 * The holder of the state (the coordinator, for all ranks) announces `scheme` with the step at which it starts.
 */
#ifndef ZPS_PLAN_CHOOSE_H
#define ZPS_PLAN_CHOOSE_H

#include "common/plan/limit.h"
#include "common/plan/probe.h"

struct zps_plan_policy {
  unsigned allowed;        /* bits 1u << scheme; lossy ones only where the tensor's options say so */
  double gain;             /* part of its time that a switch must save, or that was lost, such as 0.1 */
  uint32_t patience;       /* rounds in a row that promise it, or lose it */
  uint32_t profile_rounds; /* rounds before the first choice, and after a drift */
  double drift;            /* change of d or gamma_n, as a part, that is another profile */
  double doubt; /* predictions of schemes, against each other, may be off by this factor; 0: nothing is probed */
  /* Seconds that the first round of a scheme may take for connections and buffers. 0: a trial has no first round of its
   * own. */
  double first_s;
};

enum zps_plan_state { ZPS_PLAN_PROFILING, ZPS_PLAN_PROBING, ZPS_PLAN_HOLDING, ZPS_PLAN_WAVERING };

struct zps_plan_chooser {
  struct zps_plan_policy policy;
  enum zps_plan_scheme scheme; /* in force */
  enum zps_plan_state state;
  enum zps_plan_scheme candidate;   /* WAVERING: the scheme that promises a gain */
  uint32_t rounds;                  /* in this state */
  double density, gamma_n;          /* the profile that the choice was made for */
  double time_s[ZPS_PLAN_SCHEMES];  /* measured with this profile; 0: not */
  double off[ZPS_PLAN_SCHEMES];     /* measured over predicted time; 0: never measured */
  uint32_t looks[ZPS_PLAN_SCHEMES]; /* rounds that were measured with this profile */
  double first_off;                 /* measured over predicted time of the profiled rounds; 0: not known */
  double promised_s, present_s;     /* of the best and of the present scheme, as corrected, at the last round */
  struct zps_plan_probe probe;
  /* The scheme that was in force when the trial began, and the time of its rounds. 0: not known. */
  enum zps_plan_scheme trusted;
  double trusted_s;
  unsigned too_slow; /* bits 1u << scheme: not tried, as its bytes would take too long at the rate of measured rounds */
  unsigned failed;   /* bits: the first round took too long */
  bool is_first;     /* PROBING: the next round is the first of its scheme's trial, and the caller runs it alone */
  double chosen_s;   /* the time of the present scheme when it was chosen; 0: not known */
  uint32_t held, rest; /* rounds since then, and how many there are to be before all are tried again */
};

/* Lossless schemes, a tenth, 8 rounds, 4 rounds, a quarter, no doubt. */
void zps_plan_policy_default(struct zps_plan_policy *policy);
/* The first rounds run under `scheme`, which is among `policy`'s allowed. */
void zps_plan_chooser_init(struct zps_plan_chooser *chooser, const struct zps_plan_policy *policy,
                           enum zps_plan_scheme scheme);
/* The time that a round under `scheme` is expected to take, in seconds: the prediction, corrected by measurements. */
double zps_plan_expected(const struct zps_plan_chooser *chooser, const struct zps_plan_input *input,
                         enum zps_plan_scheme scheme);
/* A round under `chooser->scheme` is over: takes its profile (`input` was checked) and its time (0: not known). True
 * when another scheme is in force from here on. */
bool zps_plan_choose(struct zps_plan_chooser *chooser, const struct zps_plan_input *input, double measured_s);

#endif
