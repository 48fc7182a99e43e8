/* The log when nobody reads it: no call waits, lines are dropped and counted, and the count is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/nowait.h"

#define ZPS_LOG_COMPONENT "test"
#include "common/base/log.h"

enum { LINES = 2000, HELD_MAX = 1 << 20 };

/* stderr is `theirs` for a while; `ours` is where its reader would read. */
struct rig {
  int ours, theirs, saved;
};

static struct rig rig_of(int ours, int theirs) {
  struct rig rig = {.ours = ours, .theirs = theirs, .saved = dup(STDERR_FILENO)};
  assert_true(dup2(theirs, STDERR_FILENO) >= 0);
  alarm(600); /* a call that waits for the reader fails the test so */
  return rig;
}

static void rig_end(struct rig *rig) {
  alarm(0);
  dup2(rig->saved, STDERR_FILENO);
  close(rig->saved);
  if (rig->theirs >= 0) close(rig->theirs);
  if (rig->ours >= 0) close(rig->ours);
}

static struct rig small_pipe(void) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) > 0);
  return rig_of(ends[0], ends[1]);
}

/* All that waits to be read, as one text. */
static char *read_held(int fd) {
  static char text[HELD_MAX];
  size_t len = 0;
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  for (ssize_t n; len < sizeof text - 1 && (n = read(fd, text + len, sizeof text - 1 - len)) > 0;) len += (size_t)n;
  fcntl(fd, F_SETFL, flags);
  text[len] = '\0';
  return text;
}

static void log_lines(void) {
  for (int i = 0; i < LINES; i++) zps_log_warn("line %d of many, of a length that is usual for a line of the log", i);
}

static unsigned count(const char *text, const char *part) {
  unsigned n = 0;
  for (; (text = strstr(text, part)); text++) n++;
  return n;
}

/* Lines that came are the first ones, whole; the next one that gets through tells how many did not. */
static void expect_dropped(struct rig *rig) {
  log_lines();
  char *const first = strdup(read_held(rig->ours)), wanted[160];
  const unsigned n = count(first, " of many");
  assert_in_range(n, 1, LINES - 1);
  for (unsigned i = 0; i < n; i++) {
    snprintf(wanted, sizeof wanted, " warn  test: line %u of many", i);
    assert_non_null(strstr(first, wanted));
  }
  zps_log_warn("read again");
  char *const next = read_held(rig->ours);
  snprintf(wanted, sizeof wanted,
           " warn  log: %u lines of the log were dropped: the reader of stderr did not keep up\n", LINES - n);
  const char *const told = strstr(next, wanted);
  if (!told) fail_msg("want '%s', got: %s", wanted, next);
  assert_non_null(strstr(told, " warn  test: read again\n"));
  zps_log_warn("and again");
  assert_null(strstr(read_held(rig->ours), "dropped"));
  free(first);
}

static void test_a_pipe(void **state) {
  (void)state;
  struct rig rig = small_pipe();
  expect_dropped(&rig);
  assert_int_equal(fcntl(rig.theirs, F_GETFL) & O_NONBLOCK, 0); /* it is others', too */
  rig_end(&rig);
}

static void test_a_socket(void **state) {
  (void)state;
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  struct rig rig = rig_of(ends[0], ends[1]);
  expect_dropped(&rig);
  rig_end(&rig);
}

static void test_a_terminal_that_was_stopped(void **state) {
  (void)state;
  const int master = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  const int terminal = open(ptsname(master), O_RDWR | O_NOCTTY);
  struct rig rig = rig_of(master, terminal);
  assert_int_equal(tcflow(terminal, TCOOFF), 0); /* Ctrl-S does this */
  log_lines();
  assert_string_equal(read_held(master), "");
  assert_int_equal(tcflow(terminal, TCOON), 0);
  zps_log_warn("go on");
  const char *const text = read_held(master);
  assert_non_null(strstr(text, " log: 2000 lines of the log were dropped: the reader of stderr did not keep up"));
  assert_non_null(strstr(text, " test: go on"));
  rig_end(&rig);
}

static void test_a_disk_that_is_full(void **state) {
  (void)state;
  struct rig rig = rig_of(-1, open("/dev/full", O_WRONLY));
  zps_log_warn("one");
  zps_log_warn("two");
  char name[] = "/tmp/zenps-test-log.XXXXXX";
  const int file = mkstemp(name);
  dup2(file, STDERR_FILENO);
  zps_log_warn("three");
  assert_int_equal(lseek(file, 0, SEEK_SET), 0);
  const char *const text = read_held(file);
  assert_non_null(strstr(text, " log: 2 lines of the log were dropped: No space left on device\n"));
  assert_non_null(strstr(text, " test: three\n"));
  unlink(name);
  close(file);
  rig_end(&rig);
}

static void test_a_pipe_that_was_closed(void **state) {
  (void)state;
  struct rig rig = small_pipe(), again;
  assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  close(rig.ours);
  zps_log_warn("one"); /* this process lives on */
  sigset_t pending;
  sigpending(&pending);
  assert_false(sigismember(&pending, SIGPIPE));
  again = small_pipe();
  zps_log_warn("two");
  assert_non_null(strstr(read_held(again.ours), " log: 1 line of the log was dropped: Broken pipe\n"));
  rig.ours = -1;
  rig_end(&again);
  rig_end(&rig);
}

static void *read_soon(void *ctx) {
  const struct rig *const rig = ctx;
  static char text[HELD_MAX];
  size_t len = 0;
  text[0] = '\0';
  /* Until the last word: the writer waits for room, and this waits for the writer. */
  while (!strstr(text, "the cause of the end"))
    for (ssize_t n = read(rig->ours, text + len, sizeof text - 1 - len); n > 0; n = 0) text[len += (size_t)n] = '\0';
  return text;
}

static void test_the_cause_of_an_end_gets_out(void **state) {
  (void)state;
  struct rig rig = small_pipe();
  pthread_t reader;
  void *text;
  log_lines();
  zps_log_error("the cause of the end");
  assert_int_equal(pthread_create(&reader, NULL, read_soon, &rig), 0);
  zps_log_flush(60000);
  pthread_join(reader, &text);
  assert_non_null(strstr(text, "lines of the log were dropped: the reader"));
  assert_non_null(strstr(text, " error test: the cause of the end\n"));
  log_lines();
  zps_log_flush(1); /* nobody reads: it ends all the same */
  read_held(rig.ours);
  zps_log_flush(0);
  rig_end(&rig);
}

/* The job's name is gone when the line gets out. */
static void log_of_a_job(void) {
  char job[] = "train7";
  zps_log_about(.job = job, ZPS_LOG_RANK(3));
  zps_log_error("the cause of the end");
  memset(job, 'x', sizeof job - 1);
}

static void test_the_cause_of_an_end_has_its_fields(void **state) {
  (void)state;
  struct rig rig = small_pipe();
  pthread_t reader;
  void *text;
  zps_log_set_format(ZPS_LOG_JSON);
  log_lines();
  log_of_a_job();
  assert_int_equal(pthread_create(&reader, NULL, read_soon, &rig), 0);
  zps_log_flush(60000);
  pthread_join(reader, &text);
  zps_log_set_format(ZPS_LOG_TEXT);
  assert_non_null(strstr(text, "\"component\":\"log\",\"text\":"));
  assert_non_null(strstr(text, "\"job\":\"train7\",\"rank\":3,\"text\":\"the cause of the end\"}\n"));
  rig_end(&rig);
}

/* Long lines of JSON are no whole that a pipe takes at once: the rest of one comes ahead of what is next. */
static void test_a_line_is_never_torn(void **state) {
  (void)state;
  struct rig rig = small_pipe();
  char odd[1000];
  memset(odd, 1, sizeof odd - 1);
  odd[sizeof odd - 1] = '\0';
  zps_log_set_format(ZPS_LOG_JSON);
  for (int i = 0; i < 50; i++) {
    zps_log_warn("%s", odd);
    char *text = read_held(rig.ours), *rest = strdup(text);
    zps_log_warn("next");
    text = read_held(rig.ours);
    char *const all = malloc(strlen(rest) + strlen(text) + 1);
    strcat(strcpy(all, rest), text);
    assert_int_equal(count(all, "{\"time\""), count(all, "\"}\n"));
    assert_null(strstr(all, "dropped"));
    free(all);
    free(rest);
  }
  zps_log_set_format(ZPS_LOG_TEXT);
  rig_end(&rig);
}

static void test_several_writers_share_a_pipe(void **state) {
  (void)state;
  struct rig rig = small_pipe();
  char page[4096];
  memset(page, 'x', sizeof page);
  assert_int_equal(zps_write_nowait(rig.theirs, page, 1000), 1000);
  assert_int_equal(zps_write_nowait(rig.theirs, page, sizeof page), -1); /* in one piece or not at all */
  assert_int_equal(errno, EAGAIN);
  assert_int_equal(strlen(read_held(rig.ours)), 1000);
  rig_end(&rig);
}

/* A library whose program has closed stderr: the next socket has its number. */
static void test_a_socket_that_has_the_number_of_stderr(void **state) {
  (void)state;
  const int saved = dup(STDERR_FILENO);
  int ends[2];
  close(STDERR_FILENO);
  zps_log_look_at_stderr();
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  assert_int_equal(ends[0], STDERR_FILENO);
  zps_log_look_at_stderr(); /* another connection of the same program */
  zps_log_error("for stderr");
  const ssize_t n = recv(ends[1], &(char){0}, 1, MSG_DONTWAIT);
  assert_int_equal(n, -1);
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_pipe),
      cmocka_unit_test(test_a_socket),
      cmocka_unit_test(test_a_terminal_that_was_stopped),
      cmocka_unit_test(test_a_disk_that_is_full),
      cmocka_unit_test(test_a_pipe_that_was_closed),
      cmocka_unit_test(test_the_cause_of_an_end_gets_out),
      cmocka_unit_test(test_the_cause_of_an_end_has_its_fields),
      cmocka_unit_test(test_a_line_is_never_torn),
      cmocka_unit_test(test_several_writers_share_a_pipe),
      cmocka_unit_test(test_a_socket_that_has_the_number_of_stderr),
  };
  unsetenv("JOURNAL_STREAM");
  return cmocka_run_group_tests(tests, NULL, NULL);
}
