#include "server/membership/placement.h"

#include "common/base/clock.h"

static uint32_t count_wanted(const struct zps_placement_facts *facts, const struct zps_placement *placement,
                             enum zps_place_state state) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < facts->n_places; i++) n += placement->wants[i] == state;
  return n;
}

/* Servers that are gone, or that ranks cannot reach: whatever else the job does, it cannot go on with them. */
static void take_losses(const struct zps_placement_facts *facts, struct zps_placement *placement) {
  for (uint32_t i = 0; i < facts->n_places; i++) {
    const struct zps_place_fact *const place = &facts->places[i];
    const bool is_cut = place->state == ZPS_PLACE_IN && place->is_cut_off;
    if (place->state == ZPS_PLACE_LOST) placement->wants[i] = ZPS_PLACE_FREE;
    if (is_cut) placement->wants[i] = ZPS_PLACE_LEAVING;
    placement->moves = placement->moves || is_cut || place->state == ZPS_PLACE_LOST;
  }
  placement->fails = placement->moves && (!facts->outlives || count_wanted(facts, placement, ZPS_PLACE_IN) == 0);
}

/* Draining servers leave all at once, when no other change and nobody's absence makes the stop longer. */
static void take_drains(const struct zps_placement_facts *facts, struct zps_placement *placement) {
  uint32_t n_drain = 0, n_others = 0;
  if (placement->moves || facts->is_changing || facts->is_away || !facts->outlives || !facts->is_movable) return;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    if (facts->places[i].state != ZPS_PLACE_IN) continue;
    n_drain += facts->places[i].drains;
    n_others += !facts->places[i].drains;
  }
  if (n_drain == 0 || n_others == 0) return;
  for (uint32_t i = 0; i < facts->n_places; i++)
    if (facts->places[i].state == ZPS_PLACE_IN && facts->places[i].drains) placement->wants[i] = ZPS_PLACE_LEAVING;
  placement->moves = true;
}

/* Servers that were asked: each that cannot is dismissed. The others come in together, when none owes an answer. */
static void take_joining(const struct zps_placement_facts *facts, struct zps_placement *placement) {
  bool owes = false;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    const struct zps_place_fact *const place = &facts->places[i];
    if (place->state != ZPS_PLACE_JOINING) continue;
    if (placement->moves || place->is_stale || place->is_refused || place->drains)
      placement->wants[i] = ZPS_PLACE_DISMISSED;
    else
      owes = owes || place->owes;
  }
  if (owes || count_wanted(facts, placement, ZPS_PLACE_JOINING) == 0) return;
  placement->moves = facts->outlives && facts->is_movable;
  for (uint32_t i = 0; i < facts->n_places; i++)
    if (placement->wants[i] == ZPS_PLACE_JOINING)
      placement->wants[i] = placement->moves ? ZPS_PLACE_IN : ZPS_PLACE_DISMISSED;
}

/* The order in which spare servers are asked: first those within reach of all ranks, then those at the end of their
 * pause. `at` goes twice through all. UINT32_MAX: there are no more. */
static uint32_t next_spare(const struct zps_placement_facts *facts, uint32_t *at, uint64_t *pause_ns) {
  while (*at < 2 * facts->n_spares) {
    const bool among_last = *at >= facts->n_spares;
    const uint32_t i = (*at)++ % facts->n_spares;
    const struct zps_spare_fact *const spare = &facts->spares[i];
    if (spare->was_cut_off != among_last) continue;
    if (!spare->was_cut_off || spare->ready_ns <= facts->now_ns) return i;
    if (spare->ready_ns < *pause_ns) *pause_ns = spare->ready_ns;
  }
  return UINT32_MAX;
}

/* Free places: the job stops once for all servers that have come when the first has settled. */
static void take_spares(const struct zps_placement_facts *facts, struct zps_placement *placement) {
  uint32_t at = 0;
  uint64_t ready_ns = ZPS_NEVER, pause_ns = ZPS_NEVER;
  if (placement->moves || facts->is_changing || facts->is_away || facts->is_full || !facts->outlives ||
      !facts->is_movable || count_wanted(facts, placement, ZPS_PLACE_JOINING) > 0 ||
      count_wanted(facts, placement, ZPS_PLACE_FREE) == 0)
    return;
  for (uint32_t i; (i = next_spare(facts, &at, &pause_ns)) != UINT32_MAX;)
    if (facts->spares[i].ready_ns < ready_ns) ready_ns = facts->spares[i].ready_ns;
  const bool is_any = ready_ns != ZPS_NEVER;
  if (ready_ns < facts->settled_ns) ready_ns = facts->settled_ns;
  placement->is_answer = !is_any || facts->now_ns >= ready_ns || facts->is_urgent;
  if (!is_any || !placement->is_answer) {
    placement->again_ns = is_any ? ready_ns : pause_ns;
    return;
  }
  at = 0;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    if (facts->places[i].state != ZPS_PLACE_FREE) continue;
    placement->spares[i] = next_spare(facts, &at, &pause_ns);
    if (placement->spares[i] == UINT32_MAX) return;
    placement->wants[i] = ZPS_PLACE_JOINING;
  }
}

void zps_placement_decide(const struct zps_placement_facts *facts, struct zps_placement *placement) {
  placement->fails = placement->moves = placement->is_answer = false;
  placement->again_ns = ZPS_NEVER;
  for (uint32_t i = 0; i < facts->n_places; i++) placement->wants[i] = facts->places[i].state;
  take_losses(facts, placement);
  if (placement->fails) return;
  take_drains(facts, placement);
  take_joining(facts, placement);
  take_spares(facts, placement);
}

/* ------------------------------------------------------------ ranks of elastic jobs */

uint64_t zps_seating_begins_ns(const struct zps_seating_facts *facts) {
  const uint32_t n = facts->n_survivors + facts->n_newcomers;
  if (facts->is_opening || n == 0 || n < facts->min_world) return ZPS_NEVER;
  if (facts->n_awaited > 0) return facts->n_survivors == 0 ? ZPS_NEVER : facts->last_call_ns;
  if (n >= facts->max_world || (facts->n_survivors > 0 && n >= facts->last_world)) return 0;
  return facts->waited_ns < facts->last_call_ns ? facts->waited_ns : facts->last_call_ns;
}

uint64_t zps_seating_changes_ns(const struct zps_seating_facts *facts) {
  const bool has_room = facts->n_newcomers > 0 && facts->last_world < facts->max_world;
  if (!facts->is_running || facts->is_changed) return ZPS_NEVER;
  return has_room || facts->is_wanted ? 0 : facts->spare_ns;
}
