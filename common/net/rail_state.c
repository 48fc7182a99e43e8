#include "common/net/rail_state.h"

#define RETRY_NS ZPS_NS_PER_S
#define TELL_AFTER_NS (5 * ZPS_NS_PER_S)
#define CUT_NS (10 * ZPS_NS_PER_S) /* a connection that this process cuts has ended by then */
#define PAUSE_NS (60 * ZPS_NS_PER_S)
#define PAUSE_MAX_NS (16 * PAUSE_NS)
#define STEADY_NS (10 * 60 * ZPS_NS_PER_S)
enum { UNSTEADY_LOSSES = 3 };

void zps_rail_state_init(struct zps_rail_state *way) {
  *way = (struct zps_rail_state){.tell_at_ns = ZPS_NEVER, .try_at_ns = ZPS_NEVER};
}

void zps_rail_state_cut(struct zps_rail_state *way, uint64_t now_ns) {
  way->cut_ns = now_ns;
}

static bool is_cut(const struct zps_rail_state *way, uint64_t now_ns) {
  return way->cut_ns != 0 && now_ns - way->cut_ns < CUT_NS;
}

static bool is_unsteady(const struct zps_rail_state *way) {
  return way->n_losses >= UNSTEADY_LOSSES;
}

static void settle(struct zps_rail_state *way) {
  way->was_lost = false;
  if (is_unsteady(way)) return;
  way->is_told = false;
  way->pause_ns = 0;
}

/* It is steady from here on, if it was in use for long. */
static void look_at_used(struct zps_rail_state *way, uint64_t now_ns) {
  if (way->is_out || now_ns - way->back_ns < STEADY_NS) return;
  way->n_losses = 0;
  if (!way->was_lost) settle(way);
}

void zps_rail_state_renew(struct zps_rail_state *way, uint64_t now_ns) {
  if (way->is_out) way->back_ns = now_ns;
  way->is_out = false;
  way->tell_at_ns = way->try_at_ns = ZPS_NEVER;
  settle(way);
}

void zps_rail_state_lost(struct zps_rail_state *way, uint64_t n_landed, uint64_t now_ns) {
  look_at_used(way, now_ns);
  const bool is_in_a_row = way->is_told || way->was_lost;
  way->is_out = true;
  way->n_landed = n_landed;
  way->tell_at_ns = ZPS_NEVER;
  way->try_at_ns = now_ns + RETRY_NS;
  if (is_cut(way, now_ns)) return;
  if (!way->was_lost) way->n_losses++;
  way->was_lost = true;
  if (!is_in_a_row && !is_unsteady(way)) return;
  way->pause_ns = way->pause_ns == 0 ? PAUSE_NS : way->pause_ns < PAUSE_MAX_NS ? 2 * way->pause_ns : PAUSE_MAX_NS;
  way->try_at_ns = now_ns + way->pause_ns;
  way->tell_at_ns = now_ns + TELL_AFTER_NS;
}

void zps_rail_state_landed(struct zps_rail_state *way) {
  if (way->is_out) return; /* it left before the loss */
  settle(way);
}

uint64_t zps_rail_state_look_ns(const struct zps_rail_state *way) {
  if (!way->is_out) return is_unsteady(way) ? way->back_ns + STEADY_NS : ZPS_NEVER;
  return way->tell_at_ns < way->try_at_ns ? way->tell_at_ns : way->try_at_ns;
}

struct zps_rail_state_due zps_rail_state_look(struct zps_rail_state *way, uint64_t n_landed, uint64_t now_ns) {
  struct zps_rail_state_due due = {.tells = false};
  look_at_used(way, now_ns);
  if (!way->is_out) return due;
  if (now_ns >= way->tell_at_ns) {
    due.tells = n_landed != way->n_landed;
    way->tell_at_ns = due.tells ? ZPS_NEVER : now_ns + TELL_AFTER_NS;
  }
  if (due.tells) way->is_told = true;
  if (now_ns < way->try_at_ns) return due;
  due.tries = true;
  way->is_out = false;
  way->back_ns = now_ns;
  return due;
}
