#include "worker/examples/train_elastic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/exit.h"
#include "worker/tools/gather.h"

void train_joined(struct train *train) {
  train->generation.struct_size = sizeof train->generation;
  if (zenps_job_generation(train->job, &train->generation) != ZENPS_OK) train->generation.number = 0;
  train->rank = zenps_rank(train->job);
  train->world = zenps_world(train->job);
  train->gathers = 0; /* tensors are new in each generation */
  train->told_by_first = UINT64_MAX;
}

/* ------------------------------------------------------------ who is there */

/* What each rank says of itself. */
enum { WAS_IN, WAS_RANK, WAS_WORLD, TOLD, ORIGIN_WIDTH };

struct crowd {
  int n_gone, n_new;
  char gone[200]; /* "1, 2", by their ranks in the generation before */
};

static bool stayed(const double *origin, double before) {
  return before > 0 && origin[WAS_IN] == before;
}

static void compare(const double *all, int world, struct crowd *crowd) {
  double before = 0, was_world = 0;
  *crowd = (struct crowd){.n_gone = 0};
  for (int rank = 0; rank < world; rank++) {
    const double *const origin = all + rank * ORIGIN_WIDTH;
    if (origin[WAS_IN] <= before) continue;
    before = origin[WAS_IN];
    was_world = origin[WAS_WORLD];
  }
  for (int rank = 0; rank < world; rank++) crowd->n_new += !stayed(all + rank * ORIGIN_WIDTH, before);
  for (int was = 0; was < (int)was_world; was++) {
    const size_t used = strlen(crowd->gone);
    bool is_here = false;
    for (int rank = 0; rank < world && !is_here; rank++)
      is_here = stayed(all + rank * ORIGIN_WIDTH, before) && (int)all[rank * ORIGIN_WIDTH + WAS_RANK] == was;
    if (is_here) continue;
    snprintf(crowd->gone + used, sizeof crowd->gone - used, "%s%d", crowd->n_gone++ > 0 ? ", " : "", was);
  }
}

static void tell(const struct train *train, const struct crowd *crowd) {
  const zenps_generation_t *const now = &train->generation;
  char gone[240] = "", added[40] = "";
  if (train->json) {
    printf("{\"generation\": %u, \"world\": %d, \"gone\": [%s], \"new\": %d, \"step\": %llu}\n", now->number,
           now->world, crowd->gone, crowd->n_new, (unsigned long long)now->step);
  } else {
    if (crowd->n_gone > 0)
      snprintf(gone, sizeof gone, crowd->n_gone == 1 ? "rank %s is gone" : "ranks %s are gone", crowd->gone);
    if (crowd->n_new > 0) snprintf(added, sizeof added, crowd->n_new == 1 ? "%d is new" : "%d are new", crowd->n_new);
    const char *const comma = *gone && *added ? ", " : "", *const open = *gone || *added ? " (" : "";
    printf("generation %u: %d rank%s%s%s%s%s%s, from step %llu\n", now->number, now->world, now->world == 1 ? "" : "s",
           open, gone, comma, added, *open ? ")" : "", (unsigned long long)now->step);
  }
  fflush(stdout);
}

bool train_meet(struct train *train) {
  const double own[ORIGIN_WIDTH] = {[WAS_IN] = train->was.number,
                                    [WAS_RANK] = train->was.rank,
                                    [WAS_WORLD] = train->was.world,
                                    [TOLD] = train->told == UINT64_MAX ? -1 : (double)train->told};
  double *all;
  struct crowd crowd;
  if (train->generation.number <= 1) return true;
  if (zps_gather(train->job, "generation", 0, ORIGIN_WIDTH, own, &all) != ZENPS_OK)
    return train_fail(train, "cannot meet the other ranks");
  compare(all, train->world, &crowd);
  if (train->rank == 0) tell(train, &crowd);
  if (all[TOLD] >= 0) train->told_by_first = (uint64_t)all[TOLD];
  free(all);
  return true;
}

/* ------------------------------------------------------------ from one generation to the next */

bool train_changed(struct train *train) {
  if (train->generation.number == 0 || !zenps_job_changed(train->job)) return false;
  train->goes_on = true;
  snprintf(train->why, sizeof train->why, "the ranks of the job have changed");
  return true;
}

bool train_next(struct train *train, uint64_t steps) {
  while (train->goes_on) {
    train->goes_on = false;
    train->was = train->generation;
    const zenps_status_t status = zenps_job_next(&train->job, steps, &train->generation);
    if (status != ZENPS_OK) {
      train->status = zps_exit_of((zps_err_t)status);
      fprintf(stderr, "%s: %s; the job does not go on: %s\n", train->program, train->why, zenps_last_error()->text);
      return false;
    }
    train_joined(train);
    if (train_meet(train)) return true;
  }
  return false;
}

/* ------------------------------------------------------------ the state */

/* Into `copies`, on all ranks but the source, which gives its own. */
static bool fetch(struct train *train, const struct train_state *parts, void **copies, unsigned n) {
  const int source = train->generation.source;
  for (unsigned i = 0; i < n; i++) {
    if (train->rank != source && !(copies[i] = malloc(parts[i].len + 1))) {
      fprintf(stderr, "%s: out of memory for the state of rank %d\n", train->program, source);
      return false;
    }
    if (zenps_broadcast(train->job, copies[i] ? copies[i] : parts[i].data, parts[i].len, source) != ZENPS_OK)
      return train_fail(train, "cannot take the state of another rank");
  }
  return true;
}

bool train_take(struct train *train, const struct train_state *parts, unsigned n) {
  if (train->generation.number <= 1) return true; /* all begin alike */
  void **const copies = calloc(n, sizeof *copies);
  if (!copies) {
    fprintf(stderr, "%s: out of memory\n", train->program);
    return false;
  }
  /* What is half taken is no state that anybody could go on with, so a rank keeps its own until all is there. */
  const bool ok = fetch(train, parts, copies, n);
  for (unsigned i = 0; i < n; i++) {
    if (ok && copies[i]) memcpy(parts[i].data, copies[i], parts[i].len);
    free(copies[i]);
  }
  free(copies);
  return ok;
}

bool train_is_untold(struct train *train, uint64_t epochs) {
  if (train->told_by_first < epochs) return true;
  train->told = epochs;
  return false;
}
