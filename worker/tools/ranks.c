#include "worker/tools/ranks.h"

#include <stdio.h>
#include <stdlib.h>

/* The process of a rank, and those before it. */
struct place {
  unsigned turn; /* 1 for the first process */
  struct zps_tries tries;
};

struct zps_ranks {
  struct zps_ranks_config config;
  uint64_t seen;     /* zps_child.ended of the last rank whose end was seen */
  uint64_t survived; /* zps_child.ended of the last rank whose loss does not make the run fail */
  bool done;         /* one has ended with 0 */
  unsigned left;     /* ranks that lived when the run failed */
  struct place places[];
};

static zps_err_t start(struct zps_ranks *ranks, unsigned place, const struct zps_child **child_p,
                       struct zps_error *error) {
  char turn[16] = "", label[32];
  if (++ranks->places[place].turn > 1) snprintf(turn, sizeof turn, "-%u", ranks->places[place].turn);
  snprintf(label, sizeof label, "%u%s", ranks->config.first + place, turn);
  return ranks->config.start(ranks->config.ctx, place, label, child_p, error);
}

zps_err_t zps_ranks_start(const struct zps_ranks_config *config, struct zps_ranks **ranks_p, struct zps_error *error) {
  struct zps_ranks *const ranks = calloc(1, sizeof *ranks + config->n * sizeof ranks->places[0]);
  const struct zps_child *child;
  zps_err_t err = ZPS_OK;
  if (!ranks) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory starting %u ranks", config->n);
  ranks->config = *config;
  for (unsigned i = 0; !err && i < config->n; i++) err = start(ranks, i, &child, error);
  *ranks_p = ranks;
  return err;
}

static const char *plural(unsigned n) {
  return n == 1 ? "" : "s";
}

/* "rank 2 (pid 71) was killed by signal 9 (Killed)" */
static void tell_end(const struct zps_ranks *ranks, const struct zps_child *child) {
  char end[80];
  zps_launch_say(ranks->config.launch, "zenpsrun: rank %s (pid %d) %s", child->label, (int)child->pid,
                 zps_child_end_text(child, end, sizeof end));
}

/* Tells what fills the place, or why nothing does. */
static void fill(struct zps_ranks *ranks, const struct zps_child *lost) {
  const unsigned number = lost->number - ranks->config.first;
  const struct zps_child *child;
  struct zps_error error;
  if (!zps_tries_again(&ranks->places[number].tries, lost->ended_ns - lost->started_ns)) {
    zps_launch_say(ranks->config.launch,
                   "; no other is started in its place, since %d in a row have ended within %d s of their start",
                   (int)ZPS_TRIES_MAX, (int)ZPS_TRIES_SOON_S);
  } else if (start(ranks, number, &child, &error) != ZPS_OK) {
    zps_launch_say(ranks->config.launch, "; no other is started in its place: %s", error.text);
  } else {
    zps_launch_say(ranks->config.launch, "; started rank %s (pid %d) in its place", child->label, (int)child->pid);
  }
}

static unsigned running(const struct zps_ranks *ranks) {
  return zps_launch_running(ranks->config.launch, ZPS_CHILD_RANK);
}

/* False: those that are left are too few. */
static bool survive(struct zps_ranks *ranks, const struct zps_child *lost) {
  const bool restarts = ranks->config.elastic.loss == ZPS_RANK_LOSS_RESTART;
  unsigned left;
  if (!restarts && running(ranks) < ranks->config.elastic.min)
    return false; /* the line about the failure reports this
                     end */
  tell_end(ranks, lost);
  if (restarts) fill(ranks, lost);
  left = running(ranks);
  if (left < ranks->config.elastic.min) {
    zps_launch_say(ranks->config.launch, "\n");
    return false;
  }
  zps_launch_say(ranks->config.launch, "; the job goes on with %u rank%s\n", left, plural(left));
  return true;
}

bool zps_ranks_check(struct zps_ranks *ranks) {
  const struct zps_child *child;
  if (ranks->config.elastic.loss == ZPS_RANK_LOSS_FAIL) return zps_ranks_failure(ranks) != NULL;
  while ((child = zps_launch_next_end(ranks->config.launch, ZPS_CHILD_RANK, ranks->seen))) {
    ranks->seen = child->ended;
    ranks->done |= child->status == 0;
    if (ranks->done) continue;
    if (!survive(ranks, child)) {
      ranks->left = running(ranks);
      return true;
    }
    ranks->survived = child->ended;
  }
  return false;
}

const struct zps_child *zps_ranks_failure(const struct zps_ranks *ranks) {
  return zps_launch_first_failure(ranks->config.launch, ZPS_CHILD_RANK, ranks->survived);
}

void zps_ranks_tell_failure(const struct zps_ranks *ranks, const struct zps_child *failed) {
  const struct zps_elastic *const elastic = &ranks->config.elastic;
  tell_end(ranks, failed);
  if (elastic->loss != ZPS_RANK_LOSS_FAIL && ranks->done) {
    zps_launch_say(ranks->config.launch, ", when others had ended");
  } else if (elastic->loss != ZPS_RANK_LOSS_FAIL) {
    zps_launch_say(ranks->config.launch, "; %u rank%s %s left, and --elastic asks for %u", ranks->left,
                   plural(ranks->left), ranks->left == 1 ? "is" : "are", elastic->min);
  }
  zps_launch_say(ranks->config.launch, "\n");
}
