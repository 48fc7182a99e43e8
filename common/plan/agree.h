/*
 * How the ranks of a tensor whose scheme is "auto" agree on its schedule, so that no two of them ever differ, whether
 * there is a coordinator or not.
 *
 * The first of the tensor's ranks decides, alone. The coordinator knows what all ranks have measured, and proposes; a
 * decider that has no coordinator takes the scheme of the latest run that was no trial for ZPS_PLAN_ALONE steps more.
 * It extends its schedule, and tells it to all in a round over servers. Its own steps wait for that round, too: a step
 * that began ahead of it would hold what the round may need of a server.
 * All ranks take part in these rounds, one after the other, each as soon as it is due for the next run, or cannot go on
 * without.
 *
 * Why no two ranks differ: the schedule of each rank comes from one process, and that process only adds to it. Rounds
 * carry all of it, so a failed round takes nothing away: the next one has the same runs, and more. A coordinator's
 * words, death or restarts change later decisions only. Without the decider, or any other rank, steps have no sums,
 * whatever their scheme.
 *
 * Why no rank waits for ever: the steps of a rank make it due for the next run. So all come to the round. The decider
 * begins it when the coordinator has answered, or is out of reach; the coordinator answers as soon as one rank waits. A
 * lost server costs no round (worker/round/replay.h).
 *
 * A round may fail on some ranks alone. All ranks know the same steps only when all have had the round, so each rank
 * marks its next round: "another round follows at once". The decider marks a round with runs that it has not told
 * before. A rank marks the first round after one that failed there. A round with a mark is followed by another on all
 * ranks. So ranks stop only after a round without marks, and then every rank has the runs of the round before it. A
 * rank that a round failed on begins the next one after a while, and the others wait for it there. All ranks take part
 * in all rounds, in the order of their numbers.
 *
 * Pure: tests/unit/plan/test_agree.c runs ranks and coordinators against each other.
 */
#ifndef ZPS_PLAN_AGREE_H
#define ZPS_PLAN_AGREE_H

#include <stddef.h>

#include "common/plan/schedule.h"

/* Steps of a run that is decided without a coordinator. */
#define ZPS_PLAN_ALONE 16u

/* A schedule as bytes: how many runs (1), the first one's `from` (8, little-endian), and of each `until` (8) and its
 * scheme (1). The rest is zeros. */
enum { ZPS_PLAN_WORD_BYTES = 1 + 8 + ZPS_PLAN_RUNS * 9 };

/* A round is a word, from the decider, and behind it one byte from each rank: its mark. */
#define ZPS_PLAN_ROUND_BYTES(n_ranks) (ZPS_PLAN_WORD_BYTES + (size_t)(n_ranks))

/* A rank's end of it. Zeroed, but for `index`, `n_ranks` and `first`: nothing is agreed on yet. */
struct zps_plan_agreement {
  uint32_t index, n_ranks;           /* this rank among the tensor's; the first one (0) decides */
  enum zps_plan_scheme first;        /* of the first steps, without a coordinator */
  bool is_due;                       /* a round is to begin: a step wants to know its scheme */
  bool is_owed;                      /* a round is to begin: the last one has failed here, or had a mark */
  bool has_failed;                   /* the last round has failed here */
  bool is_under_way;                 /* a round is to end */
  uint64_t number;                   /* of the round under way, else of the next */
  uint64_t step;                     /* the schedule is to go beyond it */
  bool is_alone;                     /* decider: no coordinator will say how */
  struct zps_plan_schedule proposed; /* decider: by the coordinator */
  struct zps_plan_schedule decided;  /* decider: what its rounds tell, ahead of its own schedule until one went well */
};

static inline bool zps_plan_agreement_decides(const struct zps_plan_agreement *agreement) {
  return agreement->index == 0;
}

/* The rank asks for the scheme of `step` (zps_plan_follower_begin()): the coordinator too, unless `is_alone`. */
void zps_plan_agreement_want(struct zps_plan_agreement *agreement, uint64_t step, bool is_alone);
/* The coordinator may not have heard what it was asked last. */
void zps_plan_agreement_unheard(struct zps_plan_agreement *agreement);
/* The coordinator's word: one run, or, as `whole`, all that it remembers. */
void zps_plan_agreement_propose(struct zps_plan_agreement *agreement, const struct zps_plan_run *runs, unsigned n,
                                bool whole);
/* Whether round `number` is to begin now; the decider has decided on more steps then, if any were wanted. */
bool zps_plan_agreement_begin(struct zps_plan_agreement *agreement);
/* Writes what this rank gives in the round that begins: ZPS_PLAN_ROUND_BYTES(n_ranks), of which no two ranks give the
 * same. */
void zps_plan_agreement_give(const struct zps_plan_agreement *agreement, const struct zps_plan_schedule *schedule,
                             unsigned char *given);
/* It could not be begun here: it is owed. */
void zps_plan_agreement_unbegun(struct zps_plan_agreement *agreement);
/* It is over: `round` is what all ranks have given, and the schedule, also the decider's, takes the decider's word.
 * NULL: it has failed here; another one is owed. False: the word is none, or contradicts an earlier one. Nothing was
 * taken, and another round is owed. */
bool zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                            const unsigned char *round);

#endif
