/* A server is lost when a rank is through with steps that its program has not looked at, and another rank is not. */
#include <poll.h>
#include <signal.h>

#include "tests/integration/api_test.h"

enum { WORD_PID, WORD_BEGUN, WORD_TURN }; /* shared words */
enum { AHEAD, BEHIND, N_RANKS, N_TURNS = 20 };

/* The rank behind pushes nothing, which is told at once; the sums it has to read. */
static const struct spec spec = {
    .rows = 60000, .width = 4, .dtype = ZENPS_F32, .rows_in = true, .rows_out = true, .density = 0.1, .empty = 2};

static void finish(struct flight *flight, const struct rank *rank, uint64_t step) {
  CHECK_OK(zenps_wait(flight->request, SOON_MS));
  out_check(&spec, rank->world, step, &flight->out);
  flight_end(flight, &spec);
}

/* Whether an operation is over, of whose end the program learns nothing but that. */
static bool has_news(const struct rank *rank, int ms) {
  struct pollfd fd = {.fd = zenps_get_fd(rank->zenps), .events = POLLIN};
  uint64_t n;
  const bool is_ready = poll(&fd, 1, ms) == 1;
  if (is_ready) CHECK(read(fd.fd, &n, sizeof n) == sizeof n);
  return is_ready;
}

/* Pushes two steps, and is stopped before there are sums of them. */
static void is_behind(struct rank *rank, zenps_tensor_t *tensor) {
  atomic_store(&rank->words[WORD_PID], (unsigned)getpid());
  for (unsigned turn = 1; turn <= atomic_load(&rank->words[WORD_TURN]); turn++) {
    struct flight flights[2] = {{.tensor = tensor}, {.tensor = tensor}};
    for (unsigned i = 0; i < 2; i++) flight_start(&flights[i], &spec, rank, 2 * turn + i);
    atomic_store(&rank->words[WORD_BEGUN], turn);
    for (unsigned i = 0; i < 2; i++) finish(&flights[i], rank, 2 * turn + i);
    CHECK_OK(zenps_barrier(rank->zenps));
  }
}

/* Begins the second step when the first one is over, without having asked how it went. In turns, since nothing tells
 * when the other rank's pushes have gone out: a turn in which they have not shows nothing. */
static void is_ahead(struct rank *rank, zenps_tensor_t *tensor) {
  for (unsigned turn = 1; turn <= atomic_load(&rank->words[WORD_TURN]); turn++) {
    struct flight flights[2] = {{.tensor = tensor}, {.tensor = tensor}};
    rank_await(rank, WORD_BEGUN, turn);
    const pid_t other = (pid_t)atomic_load(&rank->words[WORD_PID]);
    has_news(rank, 100); /* there are none: it gives the pushes time to go out */
    process_stop(other);
    flight_start(&flights[0], &spec, rank, 2 * turn);
    bool are_over = has_news(rank, 500);
    flight_start(&flights[1], &spec, rank, 2 * turn + 1);
    are_over = are_over && has_news(rank, 500);
    if (are_over)
      CHECK(kill(rank->cluster->servers[0], SIGKILL) == 0);
    else if (turn < N_TURNS)
      atomic_store(&rank->words[WORD_TURN], turn + 1);
    CHECK(kill(other, SIGCONT) == 0);
    for (unsigned i = 0; i < 2; i++) finish(&flights[i], rank, 2 * turn + i);
    CHECK_OK(zenps_barrier(rank->zenps));
    if (are_over) return;
  }
  CHECK(!"in a turn the pushes of a stopped rank have gone out");
}

static void trains(struct rank *rank) {
  rank_open(rank);
  zenps_tensor_t *const tensor = tensor_open_served(rank, "t", &spec);
  if (rank->rank == AHEAD) atomic_store(&rank->words[WORD_TURN], 1);
  rank_await(rank, WORD_TURN, 1);
  if (rank->rank == AHEAD)
    is_ahead(rank, tensor);
  else
    is_behind(rank, tensor);
  rank_close(rank);
}

static void test_lost_unseen(void **state) {
  (void)state;
  struct cluster cluster;
  cluster_start(&cluster, 2);
  ranks_run(&cluster, N_RANKS, trains, NULL, 0);
  cluster_stop(&cluster);
}

const struct CMUnitTest api_unseen_tests[] = {cmocka_unit_test(test_lost_unseen)};
const size_t n_api_unseen_tests = sizeof api_unseen_tests / sizeof api_unseen_tests[0];
