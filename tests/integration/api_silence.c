/* A server that stops in the midst of a read: rank 0's log tells when a sum is announced, on the thread that reads it
 * next, and goes on when the server has stopped. Which server has the sums is tried out: another one goes on before
 * anyone misses it. */
#include <inttypes.h>
#include <signal.h>

#include "tests/integration/api_test.h"

enum { STOPPED_AT = WORDS - 2, FOUND = WORDS - 1 }; /* words: the step when one was stopped last; the server */

static pid_t tried_at(const struct rank *rank, uint64_t step) {
  const unsigned server = (unsigned)(step - SILENCE_FIRST_STEP) % rank->cluster->n_servers;
  return rank->cluster->servers[server];
}

const char *const silence_settings[] = {"ZENPS_CONTROL_DEAD=1s", "ZENPS_CONTROL_HEARTBEAT=250ms", NULL};

void silence_log(void *ctx, int level, const char *component, const char *text) {
  const struct rank *rank = ctx;
  uint64_t step = 0;
  (void)level;
  (void)component;
  if (rank->rank != 0 || atomic_load(&rank->words[FOUND]) > 0 || !strstr(text, "-> pulling") ||
      sscanf(text, "tensor t step %" SCNu64, &step) != 1 || step < SILENCE_FIRST_STEP)
    return;
  if (atomic_exchange(&rank->words[STOPPED_AT], (unsigned)step) != step) process_stop(tried_at(rank, step));
}

bool silence_found(const struct rank *rank, uint64_t step, bool was_missed) {
  if (atomic_load(&rank->words[FOUND]) > 0) return true;
  if (step < SILENCE_FIRST_STEP) return false;
  if (was_missed) {
    atomic_store(&rank->words[FOUND], (unsigned)tried_at(rank, step));
    return true;
  }
  CHECK(kill(tried_at(rank, step), SIGCONT) == 0);
  return false;
}

void silence_end(const struct rank *rank) {
  CHECK(kill((pid_t)atomic_load(&rank->words[FOUND]), SIGCONT) == 0);
}
