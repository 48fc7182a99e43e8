#include "common/net/window.h"

#include "common/base/clock.h"

enum {
  FIRST_BYTES = 16 << 10,
  LEAST_BYTES = 8 << 10,
  QUEUE_BYTES = 128 << 10,    /* over all flows of an endpoint */
  QUEUE_BYTES_MAX = 64 << 10, /* of one */
  ALIGN = 4 << 10,
};

#define QUEUE_NS (5 * ZPS_NS_PER_MS)
#define NEAR_NS QUEUE_NS
#define LATELY_NS (10 * ZPS_NS_PER_S)
#define MEASURE_NS (2 * ZPS_NS_PER_MS)

void zps_window_init(struct zps_window *window) {
  *window = (struct zps_window){.bytes = FIRST_BYTES, .least_trip_ns = UINT64_MAX};
}

void zps_window_idle(struct zps_window *window) {
  window->was_idle = true;
}

static void note_path(struct zps_window_paths *paths, const struct zps_window *window) {
  const uint64_t trip_ns = window->least_trip_ns;
  if (paths->nearest_ns == 0 || trip_ns < paths->nearest_ns) {
    if (window != paths->nearest) paths->second_ns = paths->nearest_ns;
    paths->nearest = window;
    paths->nearest_ns = trip_ns;
  } else if (window != paths->nearest && (paths->second_ns == 0 || trip_ns < paths->second_ns)) {
    paths->second_ns = trip_ns;
  }
}

void zps_window_trip(struct zps_window *window, struct zps_window_paths *paths, uint64_t trip_ns) {
  if (trip_ns >= window->least_trip_ns) return;
  window->least_trip_ns = trip_ns;
  if (!window->is_further) note_path(paths, window);
}

static unsigned flows_lately(struct zps_window_paths *paths, unsigned n_flows, uint64_t now_ns) {
  if (n_flows >= paths->most_flows || now_ns - paths->most_flows_ns > LATELY_NS) {
    paths->most_flows = n_flows;
    paths->most_flows_ns = now_ns;
  }
  return paths->most_flows;
}

/* While the window is in use, window / trip is the rate. A coarse clock may say that pieces took no time. */
static uint64_t target(const struct zps_window *window, const struct zps_window_paths *paths, unsigned n_flows) {
  uint64_t path_ns =
      paths->second_ns > 0 && paths->second_ns < window->least_trip_ns ? paths->second_ns : window->least_trip_ns;
  path_ns = path_ns > NEAR_NS ? (path_ns - NEAR_NS) * 3 / 2 : 0;
  const double trip_ns = (double)(window->trips_ns > 0 ? window->trips_ns : 1) / window->n_pieces;
  uint64_t queue = QUEUE_BYTES / n_flows;
  if (queue > QUEUE_BYTES_MAX) queue = QUEUE_BYTES_MAX;
  return (uint64_t)((double)window->bytes * (double)(path_ns + QUEUE_NS) / trip_ns) + queue;
}

void zps_window_landed(struct zps_window *window, struct zps_window_paths *paths, uint64_t len_bytes, uint64_t trip_ns,
                       uint64_t now_ns, unsigned n_flows, uint64_t most_bytes) {
  zps_window_trip(window, paths, trip_ns);
  n_flows = flows_lately(paths, n_flows, now_ns);
  if (window->since_ns != 0) {
    window->landed += len_bytes;
    window->trips_ns += trip_ns;
    window->n_pieces++;
    if (window->landed < window->bytes || now_ns - window->since_ns < MEASURE_NS) return;
    uint64_t bytes = target(window, paths, n_flows);
    if (window->was_idle && bytes > window->bytes) bytes = window->bytes;
    if (bytes > 2 * window->bytes) bytes = 2 * window->bytes;
    bytes = (bytes + window->bytes) / 2;
    if (bytes < LEAST_BYTES) bytes = LEAST_BYTES;
    window->bytes = bytes < most_bytes ? bytes : most_bytes;
  }
  window->since_ns = now_ns;
  window->landed = window->trips_ns = 0;
  window->n_pieces = 0;
  window->was_idle = false;
}

uint64_t zps_window_piece(const struct zps_window *window, uint64_t most_bytes, unsigned n_connections) {
  uint64_t piece = window->bytes / (n_connections > 2 ? 2 * n_connections : 4);
  if (piece < ZPS_WINDOW_PIECE_BYTES)
    piece = window->bytes < ZPS_WINDOW_PIECE_BYTES ? window->bytes : ZPS_WINDOW_PIECE_BYTES;
  piece &= ~(uint64_t)(ALIGN - 1);
  return piece < most_bytes ? piece : most_bytes;
}
