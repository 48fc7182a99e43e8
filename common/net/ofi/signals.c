#include "common/net/ofi/signals.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>

/* Whether a handler lies in libfabric or in one of the libraries that it needs and that catch signals. */
static bool is_fabrics(void (*handler)(int)) {
  static const char *const names[] = {"libfabric", "libinfinipath", "libpsm", "libucs"};
  Dl_info info;
  void *address;
  memcpy(&address, &handler, sizeof address);
  if (handler == SIG_DFL || handler == SIG_IGN || dladdr(address, &info) == 0 || !info.dli_fname) return false;
  const char *const slash = strrchr(info.dli_fname, '/'), *const name = slash ? slash + 1 : info.dli_fname;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strncmp(name, names[i], strlen(names[i])) == 0) return true;
  }
  return false;
}

void zps_ofi_signals_save(struct zps_ofi_signals *signals) {
  memset(signals, 0, sizeof *signals);
  for (int i = 1; i < _NSIG; i++) (void)sigaction(i, NULL, &signals->actions[i]); /* libc keeps two for itself */
}

void zps_ofi_signals_restore(const struct zps_ofi_signals *signals) {
  for (int i = 1; i < _NSIG; i++) {
    struct sigaction now;
    if (sigaction(i, NULL, &now) != 0 || now.sa_handler == signals->actions[i].sa_handler) continue;
    if (is_fabrics(now.sa_handler)) (void)sigaction(i, &signals->actions[i], NULL);
  }
}

/* ------------------------------------------------------------ when this object is loaded
 *
 * A constructor is too late to see the handlers from before, since those of the libraries that an object needs run
 * before its own. What runs earlier still is the resolver of an indirect function: the dynamic linker calls it when it
 * relocates the object, and it relocates everything that it is about to load before it runs any constructor. In a
 * program that is true of its start, in libzenps of its start or of dlopen(). The constructor below then runs after
 * those of libfabric and all that it needs, and puts back the handlers that they have changed.
 *
 * In a resolver the object is not relocated yet and the sanitizers have not started: no function may be called, not
 * even libc's, nothing may be instrumented. Hence the system call by hand, in the kernel's own layout. A processor
 * that is not listed saves nothing: there such signals get their default action. */

struct kernel_sigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)(void);
  uint64_t mask;
};

static struct kernel_sigaction at_load[_NSIG];

#define BARE __attribute__((no_sanitize("address", "thread", "undefined"), no_instrument_function))

BARE static inline void read_action(long number, struct kernel_sigaction *action) {
#if defined(__x86_64__)
  register long mask_bytes __asm__("r10") = (long)sizeof action->mask;
  long result = SYS_rt_sigaction;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(number), "S"(0L), "d"(action), "r"(mask_bytes)
                   : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long call __asm__("x8") = SYS_rt_sigaction;
  register long first __asm__("x0") = number;
  register long set __asm__("x1") = 0;
  register struct kernel_sigaction *got __asm__("x2") = action;
  register long mask_bytes __asm__("x3") = (long)sizeof action->mask;
  __asm__ volatile("svc 0" : "+r"(first) : "r"(call), "r"(set), "r"(got), "r"(mask_bytes) : "memory");
#else
  (void)number;
  (void)action;
#endif
}

static void nothing(void) {}

BARE __attribute__((used)) static void (*save_at_load(void))(void) {
  for (long i = 1; i < _NSIG; i++) read_action(i, &at_load[i]);
  return nothing;
}

static void relocated(void) __attribute__((ifunc("save_at_load")));

__attribute__((constructor)) static void loaded(void) {
  struct zps_ofi_signals signals;
  relocated(); /* without a call there is nothing to resolve */
  memset(&signals, 0, sizeof signals);
  for (int i = 1; i < _NSIG; i++) {
    struct sigaction *const action = &signals.actions[i];
    action->sa_handler = at_load[i].handler;
    action->sa_flags = (int)at_load[i].flags;
    memcpy(&action->sa_mask, &at_load[i].mask, sizeof at_load[i].mask);
  }
  zps_ofi_signals_restore(&signals);
}
