/* A library that takes over a signal when it is loaded, as some of those that libfabric needs do. The Makefile chooses
 * its name and the signal that it takes. */
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static void ends(int number) {
  (void)number;
  _exit(1);
}

__attribute__((constructor)) static void take(void) {
  struct sigaction action = {.sa_handler = ends};
  sigaction(TAKEN_SIGNAL, &action, NULL);
}
