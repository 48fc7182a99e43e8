/*
 * A trainer that looks after its signals: each of the 64 has the action that it had before, when libzenps is loaded,
 * after zenps_open() and after zenps_close(). Run by signals.sh, with a coordinator. Says "ok WHAT" or "changed ...".
 *
 * Built twice: linked with libzenps, and as a program that loads it (the argument) after it has set handlers of its
 * own.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <zenps/zenps.h>

static struct sigaction before[_NSIG];
static int status;

static void take_picture(struct sigaction *actions) {
  enum { RESTORER = 0x04000000 }; /* libc sets this one */
  for (int i = 1; i < _NSIG; i++) {
    if (sigaction(i, NULL, &actions[i]) == 0) actions[i].sa_flags &= ~RESTORER;
  }
}

static void compare(const char *what) {
  struct sigaction now[_NSIG];
  int n = 0;
  memset(now, 0, sizeof now);
  take_picture(now);
  for (int i = 1; i < _NSIG; i++) {
    if (now[i].sa_handler == before[i].sa_handler && now[i].sa_flags == before[i].sa_flags &&
        memcmp(&now[i].sa_mask, &before[i].sa_mask, _NSIG / 8) == 0)
      continue;
    printf("changed %s: signal %d (%s)\n", what, i, strsignal(i));
    n++;
  }
  if (n == 0) printf("ok %s\n", what);
  if (n != 0) status = 1;
}

#ifdef LINKED
/* Before the constructors of this program's libraries. */
static void picture(void) {
  take_picture(before);
}
__attribute__((section(".preinit_array"), used)) static void (*const picture_p)(void) = picture;
#define CALL(name) name
#else
static void *library;

static void own(int number) {
  (void)number;
}
static void own_later(int number) {
  (void)number;
}

static void set_handlers(void (*handler)(int)) {
  static const int numbers[] = {SIGINT, SIGILL, SIGABRT, SIGBUS, SIGSEGV, SIGTERM, SIGUSR1};
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigaddset(&action.sa_mask, SIGUSR2);
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) sigaction(numbers[i], &action, NULL);
}

static void *find(const char *name) {
  void *const found = dlsym(library, name);
  if (!found) printf("not found: %s\n", name);
  return found;
}
#define CALL(name) ((__typeof__(&(name)))find(#name))
#endif

int main(int argc, char **argv) {
#ifdef LINKED
  (void)argc;
  (void)argv;
#else
  set_handlers(own);
  signal(SIGHUP, SIG_IGN);
  take_picture(before);
  library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    printf("cannot load: %s\n", argc == 2 ? dlerror() : "which library?");
    return 2;
  }
#endif
  compare("loaded");
  zenps_job_t *job = NULL;
  if (CALL(zenps_open)(NULL, &job) != ZENPS_OK) {
    printf("zenps_open: %s\n", CALL(zenps_last_error)()->text);
    return 2;
  }
  compare("open");
  CALL(zenps_close)(job);
  compare("closed");
#ifndef LINKED
  set_handlers(own_later);
  take_picture(before);
  dlclose(library);
  compare("unloaded");
#endif
  return status;
}
