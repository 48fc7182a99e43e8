/*
 * The policy of places, and that of the ranks of elastic jobs, each as one table. Each character of a text is a fact.
 *
 * A place.
 *   I: in.  D: in, and its server drains.  C: in, and cut off.  L: lost.  V: leaving.  F: free.
 *   W: dismissed, and its server owes answers.  J: joining, and owes answers.  j: joining, and has answered.
 *   r: its server refused.  s: the job has changed.  x: its server drains.
 * A spare server.
 *   n: it has settled.  w: it settles in 5 s.  c: it was cut off, and its pause is over.  p: its pause ends in 9 s.
 * The job.
 *   F: it fails with its servers.  K: only its servers have its sums.  M: a view change is under way.
 *   A: somebody is away.  N: it takes no servers in.  U: an administrator wants it now.  S: it settles in 3 s.
 *
 * An elastic job of 2 to 4 ranks. Each rank of its last generation, and each newcomer, is a character.
 *   o: in the job, or on its way.  a: it has asked.  x: gone.
 *   n: a newcomer has asked.
 * The job.
 *   R: it runs.  O: the next generation is opened.  C: its ranks are to begin the next one.  U: an administrator wants
 *   that.  s: a spare server is there, and the job has settled.  w: it settles in 3 s.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "server/membership/placement.h"

#define NOW_NS (100 * ZPS_NS_PER_S)

static const struct policy_case {
  const char *name, *places, *job, *spares;
  const char *wants;   /* FAILS: the job fails. */
  const char *outcome; /* M: a view change begins. U: the wish is answered. */
  const char *asked;   /* The spare servers of the places that are to be JOINING, by number. */
  unsigned again_s;    /* 0: time changes nothing. */
} cases[] = {
    {"nothing to do", "III", "", "", "III", "", "", 0},
    {"nothing to do, and servers are there", "III", "", "nn", "III", "", "", 0},

    {"a server is lost", "ILI", "", "", "IFI", "M", "", 0},
    {"two are lost", "LIL", "", "", "FIF", "M", "", 0},
    {"one is lost while the view changes", "ILI", "M", "", "IFI", "M", "", 0},
    {"one is lost while somebody is away", "ILI", "A", "", "IFI", "M", "", 0},
    {"one is lost whose sums only it had", "ILI", "K", "", "IFI", "M", "", 0},
    {"one is lost while another leaves", "IVL", "M", "", "IVF", "M", "", 0},
    {"one is lost while two join", "ILJj", "", "", "IFWW", "M", "", 0},
    {"one is lost, and another is there for it", "ILI", "", "n", "IFI", "M", "", 0},
    {"the last one is lost", "L", "", "", "FAILS", "", "", 0},
    {"the last one is lost, and another is there", "LF", "", "n", "FAILS", "", "", 0},
    {"the last one is lost while another leaves", "LV", "M", "", "FAILS", "", "", 0},
    {"the last one is lost while another joins", "Lj", "", "", "FAILS", "", "", 0},
    {"one is lost, and jobs fail with their servers", "ILI", "F", "", "FAILS", "", "", 0},

    {"a server is cut off", "ICI", "", "", "IVI", "M", "", 0},
    {"a group of ranks cannot reach two servers", "ICC", "", "", "IVV", "M", "", 0},
    {"one is cut off while the view changes", "ICI", "M", "", "IVI", "M", "", 0},
    {"one is cut off whose sums only it had", "ICI", "K", "", "IVI", "M", "", 0},
    {"one is cut off while somebody is away", "ICI", "A", "", "IVI", "M", "", 0},
    {"one is cut off and another lost", "CLI", "", "", "VFI", "M", "", 0},
    {"all are cut off", "CC", "", "", "FAILS", "", "", 0},
    {"one is cut off, and jobs fail with their servers", "IC", "F", "", "FAILS", "", "", 0},

    {"a server drains", "IDI", "", "", "IVI", "M", "", 0},
    {"two drain", "DID", "", "", "VIV", "M", "", 0},
    {"all drain: the job stays", "DD", "", "", "DD", "", "", 0},
    {"one drains while the view changes", "IDI", "M", "", "IDI", "", "", 0},
    {"one drains while somebody is away", "IDI", "A", "", "IDI", "", "", 0},
    {"one drains whose sums only it has", "IDI", "K", "", "IDI", "", "", 0},
    {"one drains, and jobs fail with their servers", "IDI", "F", "", "IDI", "", "", 0},
    {"one drains after another has left", "FDI", "", "", "FVI", "M", "", 0},
    {"one drains, and a server is there for the free place", "FDI", "", "n", "FVI", "M", "", 0},
    {"one drains and another is lost: the loss first", "DLI", "", "", "DFI", "M", "", 0},
    {"one drains and another is cut off: the cut first", "DCI", "", "", "DVI", "M", "", 0},
    {"the others of one that drains are lost", "DL", "", "", "DF", "M", "", 0},
    {"one drains while others join", "DIj", "", "", "VIW", "M", "", 0},
    {"one drains while the job ends", "DI", "N", "", "VI", "M", "", 0},

    {"a free place, and nobody for it", "IF", "", "", "IF", "", "", 0},
    {"a server comes", "IF", "", "w", "IF", "", "", 5},
    {"it has settled", "IF", "", "n", "IJ", "", "0", 0},
    {"the job has not settled", "IF", "S", "n", "IF", "", "", 3},
    {"the server settles after the job", "IF", "S", "w", "IF", "", "", 5},
    {"others are asked with the first", "IFF", "", "nw", "IJJ", "", "01", 0},
    {"the first that settles counts", "IFF", "", "wn", "IJJ", "", "01", 0},
    {"more servers than places", "IFI", "", "nnn", "IJI", "", "0", 0},
    {"more places than servers", "FIF", "", "n", "JIF", "", "0", 0},
    {"a place whose server owes answers is not free", "IWF", "", "nn", "IWJ", "", "0", 0},
    {"no place is free while its server owes answers", "IW", "", "n", "IW", "", "", 0},
    {"a free place while the view changes", "IF", "M", "n", "IF", "", "", 0},
    {"a free place while somebody is away", "IF", "A", "n", "IF", "", "", 0},
    {"a free place in a job that takes none in", "IF", "N", "n", "IF", "", "", 0},
    {"a free place, and sums that only its servers have", "IF", "K", "n", "IF", "", "", 0},
    {"a free place, and jobs fail with their servers", "IF", "F", "n", "IF", "", "", 0},
    {"a free place while another joins", "IJF", "", "n", "IJF", "", "", 0},

    {"the pause of one that was cut off is over", "IF", "", "c", "IJ", "", "0", 0},
    {"its pause is not over", "IF", "", "p", "IF", "", "", 9},
    {"others come before it", "IF", "", "cn", "IJ", "", "1", 0},
    {"it comes after the others", "IFF", "", "cn", "IJJ", "", "10", 0},
    {"a pause holds up its own server alone", "IFF", "", "pn", "IJF", "", "1", 0},
    {"another one settles sooner", "IF", "", "pw", "IF", "", "", 5},
    {"it is asked when the job has settled", "IF", "S", "c", "IF", "", "", 3},

    {"joining servers owe answers", "IJJ", "", "", "IJJ", "", "", 0},
    {"one owes answers", "IjJ", "", "", "IjJ", "", "", 0},
    {"all have answered", "Ijj", "", "", "III", "M", "", 0},
    {"one refuses, and the other is in", "Irj", "", "", "IWI", "M", "", 0},
    {"one refuses, and the other owes", "IrJ", "", "", "IWJ", "", "", 0},
    {"one drains, and the other is in", "Ixj", "", "", "IWI", "M", "", 0},
    {"it refuses", "Ir", "", "", "IW", "", "", 0},
    {"the job has changed since", "Iss", "", "", "IWW", "", "", 0},
    {"a joining server is ready while somebody is away", "Ij", "A", "", "II", "M", "", 0},
    {"sums that only present servers have", "Ij", "K", "", "IW", "", "", 0},
    {"jobs fail with their servers since", "Ij", "F", "", "IW", "", "", 0},
    {"one is dismissed, and asked no more before the job has settled", "IrF", "S", "n", "IWF", "", "", 3},

    {"an administrator does not wait for servers to settle", "IF", "U", "w", "IJ", "U", "0", 0},
    {"nor for the job", "IF", "US", "n", "IJ", "U", "0", 0},
    {"nobody is there", "IF", "U", "", "IF", "U", "", 0},
    {"one in a pause is not asked", "IF", "U", "p", "IF", "U", "", 9},
    {"the wish waits for the view change", "IF", "UM", "n", "IF", "", "", 0},
    {"the wish waits for who is away", "IF", "UA", "n", "IF", "", "", 0},
    {"the wish waits for those that join", "IJF", "U", "n", "IJF", "", "", 0},
    {"the wish waits for a loss", "ILF", "U", "n", "IFF", "M", "", 0},
};

static struct zps_place_fact place_of(char c) {
  struct zps_place_fact place = {.state = ZPS_PLACE_JOINING};
  if (strchr("IDC", c)) place.state = ZPS_PLACE_IN;
  if (c == 'L') place.state = ZPS_PLACE_LOST;
  if (c == 'V') place.state = ZPS_PLACE_LEAVING;
  if (c == 'F') place.state = ZPS_PLACE_FREE;
  if (c == 'W') place.state = ZPS_PLACE_DISMISSED;
  place.drains = c == 'D' || c == 'x';
  place.is_cut_off = c == 'C';
  place.is_refused = c == 'r';
  place.is_stale = c == 's';
  place.owes = c == 'J' || c == 'W' || c == 'r' || c == 's';
  return place;
}

static struct zps_spare_fact spare_of(char c) {
  const uint64_t after_s = c == 'w' ? 5 : c == 'p' ? 9 : 0;
  return (struct zps_spare_fact){.was_cut_off = c == 'c' || c == 'p', .ready_ns = NOW_NS + after_s * ZPS_NS_PER_S};
}

static void fill(const struct policy_case *one, struct zps_placement_facts *facts) {
  facts->now_ns = NOW_NS;
  facts->settled_ns = strchr(one->job, 'S') ? NOW_NS + 3 * ZPS_NS_PER_S : 0;
  facts->outlives = !strchr(one->job, 'F');
  facts->is_movable = !strchr(one->job, 'K');
  facts->is_changing = strchr(one->job, 'M') != NULL;
  facts->is_away = strchr(one->job, 'A') != NULL;
  facts->is_full = strchr(one->job, 'N') != NULL;
  facts->is_urgent = strchr(one->job, 'U') != NULL;
  facts->n_places = (uint32_t)strlen(one->places);
  facts->n_spares = (uint32_t)strlen(one->spares);
  for (uint32_t i = 0; i < facts->n_places; i++) facts->places[i] = place_of(one->places[i]);
  for (uint32_t i = 0; i < facts->n_spares; i++) facts->spares[i] = spare_of(one->spares[i]);
}

static void check(const struct policy_case *one, const struct zps_placement_facts *facts,
                  const struct zps_placement *placement) {
  const bool fails = strcmp(one->wants, "FAILS") == 0;
  uint32_t n_asked = 0;
  if (placement->fails != fails) fail_msg("%s: the job %s", one->name, fails ? "goes on" : "fails");
  if (fails) return;
  for (uint32_t i = 0; i < facts->n_places; i++) {
    const enum zps_place_state want = place_of(one->wants[i]).state;
    if (placement->wants[i] != want)
      fail_msg("%s: place %u is to be %d, not %d", one->name, i, placement->wants[i], want);
    if (want != ZPS_PLACE_JOINING || facts->places[i].state == want) continue;
    if (placement->spares[i] != (uint32_t)(one->asked[n_asked++] - '0'))
      fail_msg("%s: place %u is for spare server %u", one->name, i, placement->spares[i]);
  }
  if (n_asked != strlen(one->asked)) fail_msg("%s: %u servers are asked", one->name, n_asked);
  if (placement->moves != (strchr(one->outcome, 'M') != NULL)) fail_msg("%s: moves is %d", one->name, placement->moves);
  if (facts->is_urgent && placement->is_answer != (strchr(one->outcome, 'U') != NULL))
    fail_msg("%s: the wish: %d", one->name, placement->is_answer);
  const uint64_t again_ns = one->again_s ? NOW_NS + one->again_s * ZPS_NS_PER_S : ZPS_NEVER;
  if (placement->again_ns != again_ns)
    fail_msg("%s: again after %.1f s", one->name, ((double)placement->again_ns - (double)NOW_NS) / 1e9);
}

static void test_every_case(void **state) {
  (void)state;
  static struct zps_placement_facts facts;
  static struct zps_placement placement;
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fill(&cases[i], &facts);
    zps_placement_decide(&facts, &placement);
    check(&cases[i], &facts, &placement);
  }
}

/* A decision that is made so leaves nothing to decide, or a settle would never end. Servers that owe answers keep them.
 */
static void test_decisions_settle(void **state) {
  (void)state;
  static struct zps_placement_facts facts;
  static struct zps_placement placement;
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fill(&cases[i], &facts);
    zps_placement_decide(&facts, &placement);
    for (uint32_t p = 0; p < facts.n_places; p++) {
      if (placement.wants[p] == facts.places[p].state) continue;
      facts.places[p] = (struct zps_place_fact){.state = placement.wants[p], .owes = true};
    }
    facts.is_changing = facts.is_changing || placement.moves;
    facts.is_urgent = facts.is_urgent && !placement.is_answer;
    facts.settled_ns = NOW_NS + 5 * ZPS_NS_PER_S;
    if (placement.fails) continue;
    zps_placement_decide(&facts, &placement);
    if (placement.moves || placement.fails) fail_msg("%s: it is not settled", cases[i].name);
    for (uint32_t p = 0; p < facts.n_places; p++)
      if (placement.wants[p] != facts.places[p].state) fail_msg("%s: place %u is not settled", cases[i].name, p);
  }
}

/* ------------------------------------------------------------ ranks of elastic jobs */

enum { NOW = 0, WAITED = 4, LAST_CALL = 15, NEVER = -1 }; /* seconds from now */

static const struct seating_case {
  const char *name, *last, *newcomers, *job;
  int begins, changes;
} seatings[] = {
    {"nobody asks", "", "", "", NEVER, NEVER},
    {"the first asks", "", "n", "", NEVER, NEVER},
    {"enough ask, and wait for more", "", "nn", "", WAITED, NEVER},
    {"as many ask as there may be", "", "nnnn", "", NOW, NEVER},
    {"more ask than there may be", "", "nnnnn", "", NOW, NEVER},
    {"a generation runs", "oo", "", "R", NEVER, NEVER},
    {"it runs and has room for one who asks", "oo", "n", "R", NEVER, NOW},
    {"it is full", "oooo", "n", "R", NEVER, NEVER},
    {"it has lost a rank, and nobody has moved yet", "ox", "", "", NEVER, NEVER},
    {"it has lost a rank, and newcomers wait for the others", "ox", "nnnn", "", NEVER, NEVER},
    {"one of two has moved", "oa", "", "", NEVER, NEVER},
    {"two of three have moved: the third has a while", "oaa", "", "", LAST_CALL, NEVER},
    {"the third has a while, though newcomers are there", "oaa", "nn", "", LAST_CALL, NEVER},
    {"all have moved", "aaa", "", "", NOW, NEVER},
    {"all that live have moved, and wait for another", "aax", "", "", WAITED, NEVER},
    {"another comes for the one that is gone", "aax", "n", "", NOW, NEVER},
    {"too few are left", "axx", "", "", NEVER, NEVER},
    {"too few are left, and one comes", "axx", "n", "", WAITED, NEVER},
    {"all are gone", "xx", "nn", "", WAITED, NEVER},
    {"all are gone, and one comes", "xx", "n", "", NEVER, NEVER},
    {"the next one is opened", "aa", "n", "O", NEVER, NEVER},
    {"the next one is opened, and many ask", "aa", "nnnn", "O", NEVER, NEVER},
    {"its ranks know", "oo", "n", "RC", NEVER, NEVER},
    {"an administrator wants it", "oo", "", "RU", NEVER, NOW},
    {"its ranks know what an administrator wants", "oo", "", "RCU", NEVER, NEVER},
    {"an administrator wants it of a job that is over", "oo", "", "U", NEVER, NEVER},
    {"a server is there", "oo", "", "Rs", NEVER, NOW},
    {"a server is there, and the job has not settled", "oo", "", "Rw", NEVER, 3},
    {"a newcomer does not wait for that", "oo", "n", "Rw", NEVER, NOW},
    {"a server is there for a full job", "oooo", "", "Rs", NEVER, NOW},
};

static unsigned count(const char *text, char c) {
  unsigned n = 0;
  for (; *text; text++) n += *text == c;
  return n;
}

static struct zps_seating_facts seating_of(const struct seating_case *one) {
  return (struct zps_seating_facts){.n_survivors = count(one->last, 'a'),
                                    .n_newcomers = count(one->newcomers, 'n'),
                                    .n_awaited = count(one->last, 'o'),
                                    .last_world = (uint32_t)strlen(one->last),
                                    .min_world = 2,
                                    .max_world = 4,
                                    .waited_ns = NOW_NS + WAITED * ZPS_NS_PER_S,
                                    .last_call_ns = NOW_NS + LAST_CALL * ZPS_NS_PER_S,
                                    .is_opening = strchr(one->job, 'O') != NULL,
                                    .is_running = strchr(one->job, 'R') != NULL,
                                    .is_changed = strchr(one->job, 'C') != NULL,
                                    .is_wanted = strchr(one->job, 'U') != NULL,
                                    .spare_ns = strchr(one->job, 's')   ? NOW_NS - 1
                                                : strchr(one->job, 'w') ? NOW_NS + 3 * ZPS_NS_PER_S
                                                                        : ZPS_NEVER};
}

static int seconds_to(uint64_t at_ns) {
  if (at_ns == ZPS_NEVER) return NEVER;
  return at_ns <= NOW_NS ? NOW : (int)((at_ns - NOW_NS) / ZPS_NS_PER_S);
}

static void test_every_seating(void **state) {
  (void)state;
  for (unsigned i = 0; i < sizeof seatings / sizeof seatings[0]; i++) {
    struct zps_seating_facts facts = seating_of(&seatings[i]);
    const int begins = seconds_to(zps_seating_begins_ns(&facts)), changes = seconds_to(zps_seating_changes_ns(&facts));
    if (begins != seatings[i].begins) fail_msg("%s: a generation begins in %d s", seatings[i].name, begins);
    if (changes != seatings[i].changes) fail_msg("%s: it changes in %d s", seatings[i].name, changes);
    /* The first has waited long enough: a generation waits for no more ranks, but still for those awaited. */
    facts.waited_ns = NOW_NS;
    const int waited = seconds_to(zps_seating_begins_ns(&facts));
    if (waited != (begins == WAITED ? NOW : begins)) fail_msg("%s: then it begins in %d s", seatings[i].name, waited);
    facts.last_call_ns = NOW_NS;
    const int called = seconds_to(zps_seating_begins_ns(&facts));
    if (called != (begins == NEVER ? NEVER : NOW)) fail_msg("%s: at last it begins in %d s", seatings[i].name, called);
    /* A generation that has begun leaves nothing to begin, or a settle would never end. */
    facts.is_opening = facts.is_changed = true;
    if (zps_seating_begins_ns(&facts) != ZPS_NEVER || zps_seating_changes_ns(&facts) != ZPS_NEVER)
      fail_msg("%s: it is not settled", seatings[i].name);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_case), cmocka_unit_test(test_decisions_settle),
                                     cmocka_unit_test(test_every_seating)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
