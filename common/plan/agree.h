/*
 * How the ranks of a tensor whose scheme is "auto" agree on its schedule, so that no two of them ever differ, whether
 * there is a coordinator or not.
 *
 * The first of the tensor's ranks decides, alone. The coordinator knows what all ranks have measured, and proposes; a
 * decider that has no coordinator takes the scheme of the latest run that was no trial for ZPS_PLAN_ALONE steps more.
 * It extends its schedule, and tells it to all in a round over servers, in which it gives one row and the others none.
 * All ranks take part in these rounds, one after the other, each as soon as it is due for the next run, or cannot go on
 * without.
 *
 * Why no two ranks differ: what a rank knows of the schedule was written by one process, which only ever adds to it.
 * Rounds carry all of it, so one that fails (on some ranks, or on all) takes nothing away: the next one has that and
 * more. A coordinator's words, death or restarts change later decisions only. Without the decider, or any other rank,
 * steps have no sums, whatever their scheme.
 *
 * Why no rank waits for ever: a rank becomes due for the next run by the steps that it begins, of which it knows the
 * schemes. So all come to the round; the decider begins it when the coordinator has answered, which answers as soon as
 * one waits, or is out of reach. A server that is lost costs no round (worker/round/replay.h).
 *
 * Pure: tests/unit/plan/test_agree.c runs ranks and coordinators against each other.
 */
#ifndef ZPS_PLAN_AGREE_H
#define ZPS_PLAN_AGREE_H

#include "common/plan/schedule.h"

/* Steps of a run that is decided without a coordinator. */
#define ZPS_PLAN_ALONE 16u

/* A schedule as bytes: how many runs (1), the first one's `from` (8, little-endian), and of each `until` (8) and its
 * scheme (1). The rest is zeros. */
enum { ZPS_PLAN_WORD_BYTES = 1 + 8 + ZPS_PLAN_RUNS * 9 };

/* A rank's end of it. Zeroed, but for `decides` and `first`: nothing is agreed on yet. */
struct zps_plan_agreement {
  bool decides;                      /* this is the first of the tensor's ranks */
  enum zps_plan_scheme first;        /* of the first steps, without a coordinator */
  bool is_due;                       /* a round is to begin */
  bool is_under_way;                 /* a round is to end */
  uint64_t number;                   /* of the round under way, else of the next */
  uint64_t step;                     /* decides: the schedule is to go beyond it */
  bool is_alone;                     /* decides: no coordinator will say how */
  struct zps_plan_schedule proposed; /* decides: by the coordinator */
};

/* The rank asks for the scheme of `step` (zps_plan_follower_begin()): the coordinator too, unless `is_alone`. */
void zps_plan_agreement_want(struct zps_plan_agreement *agreement, uint64_t step, bool is_alone);
/* The coordinator may not have heard what it was asked last. */
void zps_plan_agreement_unheard(struct zps_plan_agreement *agreement);
/* The coordinator's word: one run, or, as `whole`, all that it remembers. */
void zps_plan_agreement_propose(struct zps_plan_agreement *agreement, const struct zps_plan_run *runs, unsigned n,
                                bool whole);
/* Whether round `number` is to begin now; the decider has extended its schedule then. */
bool zps_plan_agreement_begin(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule);
/* It could not be begun here: it is due as before. */
void zps_plan_agreement_unbegun(struct zps_plan_agreement *agreement);
/* It is over: `word` is what the decider told; NULL: the round has failed, and another one is due. False: the word is
 * none, or contradicts an earlier one; nothing was taken. */
bool zps_plan_agreement_end(struct zps_plan_agreement *agreement, struct zps_plan_schedule *schedule,
                            const unsigned char *word);

/* Of a schedule that has runs. */
void zps_plan_word_write(const struct zps_plan_schedule *schedule, unsigned char word[ZPS_PLAN_WORD_BYTES]);

#endif
