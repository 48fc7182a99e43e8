#include "tests/sim/sched.h"

#include <link.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum {
  STACK_BYTES = 256 << 10,
  START_NS = 1000 * 1000000, /* no time is 0 */
  SWITCH_NS = 2000,          /* at most, from one fiber to the next */
  HESITATION_NS = 300000,    /* at most, of a fiber that was woken and does not get a processor */
};

/* Where a stack goes on. A context brings the first call of a stack alone: each change of contexts asks the kernel for
 * the mask of signals, which is the same for all. */
struct sim_fiber {
  ucontext_t context;
  jmp_buf here;
  bool begun;
  struct sim_process *process;
  char name[16];
  void *(*run)(void *arg);
  void *arg, *result;
  void *stack, *locals; /* locals: its thread-local variables, while it does not run */
  bool ended, woken;
  const void *on; /* it waits on this address; NULL: it does not, or only for the time */
  bool waits;
  uint64_t until_ns;
  struct sim_fiber *next;
};

static struct {
  jmp_buf here;
  struct zps_rng rng;
  uint64_t now_ns, n_switches;
  struct sim_process *processes;
  uint32_t n_processes;
  struct sim_fiber *fibers, **fibers_tail, *running;
  void *locals, *fresh; /* the program's thread-local variables, and as a new thread finds them */
  size_t locals_bytes;
} sched;

/* ------------------------------------------------------------ thread-local variables */

static int find_locals(struct dl_phdr_info *info, size_t size, void *ctx) {
  (void)size, (void)ctx;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
    sched.locals = info->dlpi_tls_data;
    sched.locals_bytes = info->dlpi_phdr[i].p_memsz;
  }
  return 1; /* the program itself comes first */
}

/* ------------------------------------------------------------ the clock and the dice */

void sim_sched_init(uint64_t seed) {
  memset(&sched, 0, sizeof sched);
  sched.rng.state = seed * 0x9e3779b97f4a7c15ull;
  sched.now_ns = START_NS;
  sched.fibers_tail = &sched.fibers;
  dl_iterate_phdr(find_locals, NULL);
  sched.fresh = malloc(sched.locals_bytes + 1);
  memcpy(sched.fresh, sched.locals, sched.locals_bytes);
}

struct zps_rng *sim_rng(void) {
  return &sched.rng;
}
uint64_t sim_random(uint64_t below) {
  return zps_rng_below(&sched.rng, below);
}
bool sim_chance(uint64_t n) {
  return zps_rng_below(&sched.rng, n) == 0;
}
uint64_t sim_now_ns(void) {
  return sched.now_ns;
}
uint64_t sim_switches(void) {
  return sched.n_switches;
}
void sim_spend(uint64_t ns) {
  sched.now_ns += ns;
}

/* ------------------------------------------------------------ fibers */

static void fiber_main(void) {
  struct sim_fiber *const fiber = sched.running;
  fiber->result = fiber->run(fiber->arg);
  fiber->ended = true;
  fiber->process->n_fibers--;
  sim_wake_all(fiber);
  _longjmp(sched.here, 1);
}

static struct sim_fiber *fiber_start(struct sim_process *process, void *(*run)(void *arg), void *arg) {
  struct sim_fiber *fiber = calloc(1, sizeof *fiber);
  fiber->process = process;
  fiber->run = run;
  fiber->arg = arg;
  fiber->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  fiber->locals = malloc(sched.locals_bytes + 1);
  if (fiber->stack == MAP_FAILED || !fiber->locals) abort();
  memcpy(fiber->locals, sched.fresh, sched.locals_bytes);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack;
  fiber->context.uc_stack.ss_size = STACK_BYTES;
  makecontext(&fiber->context, fiber_main, 0);
  *sched.fibers_tail = fiber;
  sched.fibers_tail = &fiber->next;
  process->n_fibers++;
  return fiber;
}

struct sim_fiber *sim_fiber_start(void *(*run)(void *arg), void *arg) {
  return fiber_start(sched.running->process, run, arg);
}
struct sim_fiber *sim_fiber_here(void) {
  return sched.running;
}
void sim_fiber_name(struct sim_fiber *fiber, const char *name) {
  snprintf(fiber->name, sizeof fiber->name, "%s", name);
}
bool sim_fiber_has_ended(const struct sim_fiber *fiber) {
  return fiber->ended;
}
void *sim_fiber_join(struct sim_fiber *fiber) {
  while (!fiber->ended) sim_wait(fiber, ZPS_NEVER);
  return fiber->result;
}

/* ------------------------------------------------------------ processes */

struct main_call {
  void (*main)(void *ctx);
  void *ctx;
};

static void *process_main(void *arg) {
  struct main_call call = *(struct main_call *)arg;
  free(arg);
  call.main(call.ctx);
  return NULL;
}

struct sim_process *sim_process_start(const char *name, void (*main)(void *ctx), void *ctx) {
  struct sim_process *process = calloc(1, sizeof *process);
  struct main_call *call = malloc(sizeof *call);
  if (!process || !call) abort();
  *call = (struct main_call){main, ctx};
  snprintf(process->name, sizeof process->name, "%s", name);
  process->pid = 1000 + sched.n_processes++;
  process->next = sched.processes;
  sched.processes = process;
  sim_fiber_name(fiber_start(process, process_main, call), "main");
  return process;
}

void sim_process_kill(struct sim_process *process) {
  process->dead = true;
}
struct sim_process *sim_process_list(void) {
  return sched.processes;
}
struct sim_process *sim_process_here(void) {
  return sched.running ? sched.running->process : NULL;
}

/* ------------------------------------------------------------ waiting */

static void leave(struct sim_fiber *fiber) {
  if (_setjmp(fiber->here) == 0) _longjmp(sched.here, 1);
}

bool sim_wait(const void *on, uint64_t until_ns) {
  struct sim_fiber *const fiber = sched.running;
  fiber->on = on;
  fiber->waits = true;
  fiber->woken = false;
  fiber->until_ns = until_ns;
  leave(fiber);
  return fiber->woken;
}

static void wake(struct sim_fiber *fiber) {
  fiber->on = NULL;
  fiber->woken = true;
  fiber->until_ns = sched.now_ns + (sim_chance(8) ? sim_random(HESITATION_NS) : 0);
}

void sim_wake_one(const void *on) {
  struct sim_fiber *chosen = NULL;
  unsigned n = 0;
  for (struct sim_fiber *fiber = sched.fibers; fiber; fiber = fiber->next)
    if (fiber->on == on && !fiber->process->dead && sim_chance(++n)) chosen = fiber;
  if (chosen) wake(chosen);
}

void sim_wake_all(const void *on) {
  for (struct sim_fiber *fiber = sched.fibers; fiber; fiber = fiber->next)
    if (fiber->on == on) wake(fiber);
}

void sim_sleep(uint64_t ns) {
  sim_wait(NULL, sched.now_ns + ns);
}

void sim_yield(void) {
  if (sched.running) sim_wait(NULL, sched.now_ns);
}

/* ------------------------------------------------------------ the scheduler */

/* When it may run; ZPS_NEVER: it does not. */
static uint64_t due_ns(const struct sim_fiber *fiber) {
  if (fiber->ended || fiber->process->dead) return ZPS_NEVER;
  const uint64_t at_ns = fiber->waits ? fiber->until_ns : 0;
  return at_ns > fiber->process->stopped_to_ns ? at_ns : fiber->process->stopped_to_ns;
}

/* One of those that may run now; NULL: none, and *next_ns is when one will be. */
static struct sim_fiber *choose(uint64_t *next_ns) {
  struct sim_fiber *chosen = NULL;
  unsigned n = 0;
  *next_ns = ZPS_NEVER;
  for (struct sim_fiber *fiber = sched.fibers; fiber; fiber = fiber->next) {
    const uint64_t at_ns = due_ns(fiber);
    if (at_ns <= sched.now_ns) {
      if (sim_chance(++n)) chosen = fiber;
    } else if (at_ns < *next_ns) {
      *next_ns = at_ns;
    }
  }
  return chosen;
}

/* Until it waits, or ends. */
static void enter(struct sim_fiber *fiber) {
  if (_setjmp(sched.here) != 0) return;
  if (fiber->begun) _longjmp(fiber->here, 1);
  fiber->begun = true;
  setcontext(&fiber->context);
}

static void run(struct sim_fiber *fiber) {
  fiber->waits = false;
  fiber->on = NULL;
  sched.running = fiber;
  sched.n_switches++;
  memcpy(sched.locals, fiber->locals, sched.locals_bytes);
  enter(fiber);
  memcpy(fiber->locals, sched.locals, sched.locals_bytes);
  sched.running = NULL;
  sched.now_ns += 1 + sim_random(SWITCH_NS);
  const uint64_t slow_ns = fiber->process->slow_ns;
  if (slow_ns > 0 && fiber->waits) {
    const uint64_t earliest_ns = sched.now_ns + sim_random(slow_ns);
    if (fiber->until_ns < earliest_ns) fiber->until_ns = earliest_ns;
  }
}

/* Those that have ended have no use for their stacks. */
static void bury(struct sim_fiber *fiber) {
  struct sim_fiber **at = &sched.fibers;
  while (*at != fiber) at = &(*at)->next;
  *at = fiber->next;
  if (!*at) sched.fibers_tail = at;
  munmap(fiber->stack, STACK_BYTES);
  free(fiber->locals); /* the fiber itself is there for who joins it */
}

static bool any_lives(void) {
  for (const struct sim_fiber *fiber = sched.fibers; fiber; fiber = fiber->next)
    if (!fiber->process->dead) return true;
  return false;
}

enum sim_end sim_run(uint64_t until_ns) {
  while (sched.now_ns < until_ns) {
    uint64_t next_ns;
    struct sim_fiber *const fiber = choose(&next_ns);
    if (fiber) {
      run(fiber);
      if (fiber->ended) bury(fiber);
    } else if (next_ns != ZPS_NEVER) {
      sched.now_ns = next_ns;
    } else {
      return any_lives() ? SIM_STUCK : SIM_ALL_ENDED;
    }
  }
  return SIM_TOO_LONG;
}

void sim_print_fibers(void) {
  for (const struct sim_fiber *fiber = sched.fibers; fiber; fiber = fiber->next) {
    const uint64_t at_ns = due_ns(fiber);
    if (fiber->process->dead) continue;
    printf("  %s/%s waits on %p, until %s%.6f s\n", fiber->process->name, fiber->name, fiber->on,
           at_ns == ZPS_NEVER ? "ever, now " : "", (double)(at_ns == ZPS_NEVER ? sched.now_ns : at_ns) / 1e9);
  }
}
