/* How a round over servers ends: which server was waited for, and whether one may still read. */
#include <inttypes.h>

#include "common/base/clock.h"
#include "common/base/text.h"
#include "worker/served/served.h"

static void say_silent(const struct zps_round *base, char *text, size_t size) {
  const struct zps_plane *plane = base->plane;
  bool any_announced = false, first = true;
  for (uint32_t s = 0; s < plane->n_servers; s++) any_announced |= zps_served_of(base)->servers[s].announced;
  zps_text_add(text, size, "the deadline of %" PRIu64 " ms passed ",
               (uint64_t)((base->deadline_ns - base->start_ns) / ZPS_NS_PER_MS));
  if (!any_announced) {
    zps_text_add(text, size, "before the gradient was encoded");
    return;
  }
  zps_text_add(text, size, "without the sums of");
  for (uint32_t s = 0; s < plane->n_servers; s++) {
    if (!zps_round_machine_needs(base->machine, s)) continue;
    zps_text_add(text, size, "%s server %" PRIu32 " (%s)", first ? "" : ",", s, plane->servers[s].name);
    first = false;
  }
  if (first) zps_text_add(text, size, " no server: they are here, but not decoded");
}

void zps_served_explain(struct zps_round *base) {
  char *text = base->reason.text;
  const uint32_t blame = base->machine->blame;
  if (text[0] != '\0' || base->machine->code == ZPS_OK) return;
  if (base->machine->code == ZPS_ERR_TIMEOUT) {
    say_silent(base, text, sizeof base->reason.text);
    return;
  }
  if (blame != ZPS_MACHINE_ALL) {
    zps_text_add(text, sizeof base->reason.text, "server %" PRIu32 " (%s): ", blame, base->plane->servers[blame].name);
  }
  zps_text_add(text, sizeof base->reason.text, "%s", zps_err_str(base->machine->code));
}

/* A sum is only announced when the contributions were read; a failed round's may still be. */
bool zps_served_quiet(const struct zps_round *base) {
  const struct zps_served_round *round = zps_served_of(base);
  const struct zps_plane *plane = base->plane;
  if (base->machine->state == ZPS_MACHINE_DONE) return true;
  for (uint32_t p = 0; p < base->tensor->part.n_parts; p++) {
    const struct zps_served_part *part = &round->parts[p];
    const uint32_t server = base->owners[p];
    const struct zps_served_server *state = &round->servers[server];
    if (part->push_buf.mem && !part->told && state->announced && !state->over && !plane->servers[server].lost)
      return false;
  }
  return true;
}
