/* A server that stops in the midst of a read. The fault injector sees to the read, since no signal can be timed so:
 * reads from the job's first server do not end before that server is lost. It is stopped when rank 0's log tells of a
 * read. */
#include <signal.h>

#include "tests/integration/api_test.h"

enum { STOPPED = WORDS - 1 }; /* word: the server's process */

const char *const silence_settings[] = {"ZENPS_CONTROL_DEAD=2s", "ZENPS_CONTROL_HEARTBEAT=250ms", NULL};

void silence_faults(const char *rules) {
  char text[64];
  snprintf(text, sizeof text, "stall=1,%s", rules);
  setenv("ZENPS_PROVIDER", "fault+net", 1);
  setenv("ZENPS_FABRIC_FAULT", text, 1);
}

void silence_no_faults(void) {
  unsetenv("ZENPS_PROVIDER");
  unsetenv("ZENPS_FABRIC_FAULT");
}

/* Of the job's first server. */
static pid_t first_server(const struct rank *rank) {
  char text[4096];
  int pid = 0;
  CHECK(cluster_ask(rank->cluster->address, "members", text, sizeof text) == 0);
  const char *const first = strstr(text, "\"server\": 0,"), *const field = first ? strstr(first, "\"pid\": ") : NULL;
  CHECK(field != NULL && sscanf(field, "\"pid\": %d", &pid) == 1);
  return pid;
}

void silence_log(void *ctx, int level, const char *component, const char *text) {
  const struct rank *rank = ctx;
  (void)level;
  (void)component;
  if (rank->rank != 0 || atomic_load(&rank->words[STOPPED]) > 0 || !strstr(text, "-> pulling")) return;
  const pid_t server = first_server(rank);
  atomic_store(&rank->words[STOPPED], (unsigned)server);
  process_stop(server);
}

void silence_end(const struct rank *rank) {
  const pid_t server = (pid_t)atomic_load(&rank->words[STOPPED]);
  CHECK(server > 0 && kill(server, SIGCONT) == 0);
}
