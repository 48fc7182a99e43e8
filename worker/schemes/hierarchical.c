/*
 * Sparse allreduce by host: the ranks of a host merge what they have at its master (its lowest rank), so that rows
 * which several of them hold leave the host once; masters then run another scheme among themselves, over servers
 * (balanced and those like it, with one push for each host) or between ranks; and each hands the result to its host.
 * Worth it where ranks of a host hold the same rows, or share a link (tests/bench/results/hosts.md).
 * It is two_level.c's pattern for sparse gradients, not BlueConnect's decomposition: while masters speak, their hosts'
 * other ranks idle. With one host there is no inner scheme.
 *
 * Over servers only the master of a host pushes for it, in a tensor of its own (@hosts/NAME, of which servers expect as
 * many contributions as there are hosts). Between workers the inner scheme's program is built for the masters as it is
 * for ranks, with the host's sum in place of a gradient (zps_program_hold()).
 *
 * Gradients in the memory of devices that reach each other are merged there: ranks first offer theirs to the master,
 * which says whether it reached all of them. If so, only its sum goes on; else all bring their gradients to host
 * memory, and go on as if nobody had offered any. So the ranks of a host need not agree on anything before a round.
 *
 * Order of sums: ranks of a host ascending, then as the inner scheme has it, masters in place of ranks: over servers in
 * the order of masters.
 */
#include <stdlib.h>

#include "worker/schemes/common.h"

enum {
  TAG_UP,
  TAG_DOWN = 64,
  TAG_OFFER = 128,
  TAG_ANSWER
}; /* between a master and its host's other ranks alone; UP and DOWN: and the piece */

/* Where nothing needs the whole gradient at once it goes in pieces, so that one is added while the next is copied. */
enum { PIECES = 4, PIECE_ROWS_MIN = 1 << 14 };

enum phase { PHASE_ANSWERED, PHASE_REACHED };

struct hosts {
  uint32_t *masters, n; /* positions, ascending */
  uint32_t *ranks;      /* theirs */
  uint32_t *racks;      /* theirs, where the plan has some */
  uint32_t *streams;    /* scratch */
  uint32_t master;      /* of this rank's host */
  uint32_t n_pieces;    /* on the way up */
};

/* The plan of a scheme among masters, seen from position `master`. */
static struct zps_peer_plan among(const struct zps_peer_plan *plan, const struct hosts *hosts, uint32_t master) {
  struct zps_peer_plan inner = *plan;
  inner.n = hosts->n;
  inner.ranks = hosts->ranks;
  inner.hosts = plan->racks ? hosts->racks : NULL; /* hosts that are near each other */
  inner.racks = NULL;
  inner.inner = NULL;
  const uint32_t within = hosts->n < plan->n ? 1 : 0; /* levels of a host's own */
  inner.n_levels = plan->n_levels > within ? plan->n_levels - within : 0;
  for (uint32_t i = 0; i < inner.n_levels; i++) {
    inner.levels[i] = plan->levels[i + within];
    inner.algorithms[i] = plan->algorithms[i + within];
  }
  for (uint32_t i = 0; i < hosts->n; i++) {
    if (hosts->masters[i] == master) inner.me = i;
  }
  return inner;
}

static struct zps_range piece(const struct zps_peer_plan *plan, const struct hosts *hosts, uint32_t i) {
  return zps_range_part((struct zps_range){0, plan->rows}, hosts->n_pieces, i);
}

/* The masters' use of `held`, pieces of the tensor or all of it: RESULTs among the program's last instructions. */
static void build_inner(const struct zps_peer_plan *plan, const struct hosts *hosts, uint32_t master,
                        const uint32_t *held, struct zps_program *program) {
  if (hosts->n == 1) {
    for (uint32_t i = 0; i < hosts->n_pieces; i++) zps_program_result(program, held[i]);
  } else if (!plan->inner) {
    zps_program_result(program, zps_program_serve(program, held, hosts->n_pieces, 0, plan->rows));
  } else {
    const struct zps_peer_plan inner = among(plan, hosts, master);
    zps_program_hold(program, held[0]);
    plan->inner->build(&inner, program);
  }
}

/* The master's own program says in which ranges its results come. */
static void build_member(const struct zps_peer_plan *plan, const struct hosts *hosts, bool sends,
                         struct zps_program *program) {
  const uint32_t rank = zps_peer_rank(plan, hosts->master);
  struct zps_program masters = {0};
  for (uint32_t i = 0; i < hosts->n_pieces; i++) {
    const struct zps_range rows = piece(plan, hosts, i);
    if (sends) zps_program_send(program, zps_program_own(program, rows.lo, rows.hi, ZPS_FORM_SPARSE), rank, TAG_UP + i);
    hosts->streams[i] = zps_program_own(&masters, rows.lo, rows.hi, ZPS_FORM_SPARSE);
  }
  build_inner(plan, hosts, hosts->master, hosts->streams, &masters);
  if (program->code == ZPS_OK) program->code = masters.code;
  for (uint32_t i = 0, n = 0; masters.code == ZPS_OK && i < masters.n_instrs; i++) {
    if (masters.instrs[i].type != ZPS_INSTR_RESULT) continue;
    const struct zps_stream *stream = &masters.streams[*zps_instr_ins(&masters, &masters.instrs[i])];
    zps_program_result(program, zps_program_recv(program, rank, TAG_DOWN + n++, stream->lo, stream->hi));
  }
  zps_program_fini(&masters);
}

/* The sum of the host's ranks in one piece. */
static uint32_t merge(const struct zps_peer_plan *plan, const struct hosts *hosts, uint32_t i, uint32_t *ins,
                      struct zps_program *program) {
  const struct zps_range rows = piece(plan, hosts, i);
  uint32_t n = 0;
  ins[n++] = zps_program_own(program, rows.lo, rows.hi, ZPS_FORM_SPARSE);
  for (uint32_t j = plan->me + 1; j < plan->n; j++) {
    if (zps_peer_master(plan, j) != plan->me) continue;
    ins[n++] = zps_program_recv(program, zps_peer_rank(plan, j), TAG_UP + i, rows.lo, rows.hi);
  }
  /* Of one, too, where no rank adds later: +0.0 for -0.0, as everywhere. */
  return n > 1 || hosts->n == 1 ? zps_program_sum(program, ins, n, ZPS_FORM_SPARSE) : ins[0];
}

/* From the host's sum in pieces. */
static void build_master(const struct zps_peer_plan *plan, const struct hosts *hosts, const uint32_t *held,
                         struct zps_program *program) {
  const uint32_t first = program->n_instrs;
  build_inner(plan, hosts, plan->me, held, program);
  const uint32_t end = program->n_instrs;
  for (uint32_t j = plan->me + 1; j < plan->n; j++) {
    if (zps_peer_master(plan, j) != plan->me) continue;
    for (uint32_t i = first, n = 0; program->code == ZPS_OK && i < end; i++) {
      if (program->instrs[i].type != ZPS_INSTR_RESULT) continue;
      const uint32_t stream = *zps_instr_ins(program, &program->instrs[i]);
      zps_program_send(program, stream, zps_peer_rank(plan, j), TAG_DOWN + n++);
    }
  }
}

static void build_in_host_memory(const struct zps_peer_plan *plan, const struct hosts *hosts,
                                 struct zps_program *program) {
  uint32_t held[PIECES];
  if (hosts->master != plan->me) {
    build_member(plan, hosts, true, program);
    return;
  }
  for (uint32_t i = 0; i < hosts->n_pieces; i++) held[i] = merge(plan, hosts, i, hosts->streams, program);
  build_master(plan, hosts, held, program);
}

/* ------------------------------------------------------------ on devices */

/* The master of a host, and another rank of it: they know of each other that they may offer. */
static bool is_near(const struct zps_peer_plan *plan, uint32_t j) {
  return j != plan->me && plan->near && plan->near[zps_peer_rank(plan, j)];
}

/* Members that offer to this master. */
static uint32_t n_near(const struct zps_peer_plan *plan, uint32_t *n_members_p) {
  uint32_t n = 0;
  *n_members_p = 0;
  for (uint32_t j = plan->me + 1; j < plan->n; j++) {
    if (zps_peer_master(plan, j) != plan->me) continue;
    ++*n_members_p;
    n += is_near(plan, j);
  }
  return n;
}

static bool offers(const struct zps_peer_plan *plan, const struct hosts *hosts) {
  uint32_t n_members;
  if (hosts->master != plan->me) return is_near(plan, hosts->master);
  return plan->near && (n_near(plan, &n_members) > 0 || n_members == 0); /* alone: what it has may stay on the device */
}

/* The first stream of a program is its offer; behind it are those that a master receives. */
static void build_offer(const struct zps_peer_plan *plan, const struct hosts *hosts, struct zps_program *program) {
  uint32_t n = 0;
  hosts->streams[n++] = zps_program_offer(program, plan->offer_len);
  if (hosts->master != plan->me) {
    const uint32_t rank = zps_peer_rank(plan, hosts->master);
    zps_program_send(program, hosts->streams[0], rank, TAG_OFFER);
    zps_program_call(program, &(uint32_t){zps_program_recv_vector(program, rank, TAG_ANSWER, 1)}, 1, PHASE_ANSWERED);
    return;
  }
  for (uint32_t j = plan->me + 1; j < plan->n; j++)
    if (zps_peer_master(plan, j) == plan->me && is_near(plan, j))
      hosts->streams[n++] = zps_program_recv_vector(program, zps_peer_rank(plan, j), TAG_OFFER, plan->offer_len);
  zps_program_call(program, &(uint32_t){zps_program_reach(program, hosts->streams, n)}, 1, PHASE_REACHED);
}

static void build_reached(const struct zps_peer_plan *plan, struct hosts *hosts, bool reached,
                          struct zps_program *program) {
  uint32_t n_members;
  const uint32_t n = n_near(plan, &n_members);
  reached = reached && n == n_members;
  const uint32_t answer = zps_program_vector(program, &(double){reached}, 1);
  for (uint32_t j = plan->me + 1; j < plan->n; j++)
    if (zps_peer_master(plan, j) == plan->me && is_near(plan, j))
      zps_program_send(program, answer, zps_peer_rank(plan, j), TAG_ANSWER);
  if (!reached) {
    build_in_host_memory(plan, hosts, program);
    return;
  }
  for (uint32_t i = 0; i <= n; i++) hosts->streams[i] = i; /* build_offer() */
  hosts->n_pieces = 1;
  const uint32_t held = zps_program_merge(program, hosts->streams, n + 1, 0, plan->rows);
  build_master(plan, hosts, &held, program);
}

/* ------------------------------------------------------------ either */

static bool hosts_open(const struct zps_peer_plan *plan, struct hosts *hosts, struct zps_program *program) {
  uint32_t *const numbers = calloc(plan->n + PIECES, 4 * sizeof *numbers);
  if (!numbers) {
    program->code = ZPS_ERR_NOMEM;
    return false;
  }
  *hosts = (struct hosts){.masters = numbers,
                          .ranks = numbers + plan->n + PIECES,
                          .streams = numbers + 2 * (plan->n + PIECES),
                          .racks = numbers + 3 * (plan->n + PIECES),
                          .master = zps_peer_master(plan, plan->me)};
  hosts->n = zps_peer_masters(plan, hosts->masters);
  for (uint32_t i = 0; i < hosts->n; i++) hosts->ranks[i] = zps_peer_rank(plan, hosts->masters[i]);
  for (uint32_t i = 0; plan->racks && i < hosts->n; i++) hosts->racks[i] = plan->racks[hosts->masters[i]];
  const bool whole = hosts->n > 1 && plan->inner;
  hosts->n_pieces = whole || plan->rows < PIECES * PIECE_ROWS_MIN ? 1 : PIECES;
  return true;
}

static void build(const struct zps_peer_plan *plan, struct zps_program *program) {
  struct hosts hosts;
  if (!hosts_open(plan, &hosts, program)) return;
  if (offers(plan, &hosts)) {
    build_offer(plan, &hosts, program);
  } else {
    build_in_host_memory(plan, &hosts, program);
  }
  free(hosts.masters);
}

static void extend(const struct zps_peer_plan *plan, uint32_t phase, const double *const *vectors,
                   const uint32_t *lengths, struct zps_program *program) {
  const bool yes = lengths[0] > 0 && vectors[0][0] != 0;
  struct hosts hosts;
  if (!hosts_open(plan, &hosts, program)) return;
  if (phase == PHASE_REACHED) {
    build_reached(plan, &hosts, yes, program);
  } else if (yes) {
    hosts.n_pieces = 1;
    build_member(plan, &hosts, false, program);
  } else {
    build_in_host_memory(plan, &hosts, program);
  }
  free(hosts.masters);
}

const struct zps_peer_scheme zps_peer_hierarchical = {
    ZPS_PEER_SCHEME(HIERARCHICAL),
    .build = build,
    .extend = extend,
};
