/* Ranks of a host meet: those that come share memory, even when others fail. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "tests/support/logs.h"
#include "worker/plane/shared/neighbours.h"
#include "tests/support/patience.h"

enum { MIB = 1 << 20, WORLD = 4, LONG_MS = PATIENCE_NEVER_MS, SHORT_MS = 4000 };

struct rank {
  struct zps_neighbours_config config;
  int fd;
  struct zps_segment *segment;
  uint64_t proof, offset, timeout_ms;
  struct zps_neighbour neighbours[WORLD];
  pthread_t thread;
};

static uint64_t job_id(void) {
  static uint64_t last;
  return (uint64_t)getpid() << 16 | ++last; /* no two tests of any run meet */
}

/* Near, all but those of the mask. */
static void be(struct rank *rank, uint32_t number, uint64_t job, bool *near, bool has_segment) {
  struct zps_error error = {0};
  *rank = (struct rank){.config = {.job_id = job, .seed = 5, .rank = number, .world = WORLD, .near = near},
                        .proof = 1000 + number};
  rank->timeout_ms = LONG_MS;
  if (has_segment) {
    assert_int_equal(zps_segment_create(MIB, rank->proof, WORLD, &rank->segment, &error), ZPS_OK);
    char *const data = zps_segment_get(rank->segment, 100);
    snprintf(data, 100, "written by %u", number);
    assert_true(zps_segment_offset(rank->segment, data, 100, &rank->offset));
  }
  if (zps_neighbours_listen(&rank->config, &rank->fd, &error) != ZPS_OK) fail_msg("%s", error.text);
}

static void *meet(void *ctx) {
  struct rank *rank = ctx;
  zps_neighbours_meet(&rank->config, rank->fd, rank->segment, rank->proof, rank->timeout_ms, rank->neighbours);
  return NULL;
}

static void start(struct rank *rank) {
  assert_int_equal(pthread_create(&rank->thread, NULL, meet, rank), 0);
}

static void join(struct rank *rank) {
  assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

static void leave(struct rank *rank) {
  for (uint32_t r = 0; r < WORLD; r++) zps_segment_unmap(&rank->neighbours[r].view);
  zps_segment_destroy(rank->segment);
}

static void check_shares(const struct rank *a, const struct rank *b, bool reads, bool is_read) {
  const struct zps_neighbour *neighbour = &a->neighbours[b->config.rank];
  char expected[100];
  snprintf(expected, sizeof expected, "written by %u", b->config.rank);
  assert_int_equal(neighbour->view.base != NULL, reads);
  assert_int_equal(neighbour->maps_ours, is_read);
  if (reads) assert_string_equal(zps_segment_at(&neighbour->view, b->offset, 100), expected);
}

static void test_all_meet(void **state) {
  (void)state;
  struct rank ranks[WORLD];
  bool near[WORLD] = {true, true, true, true};
  const uint64_t job = job_id(), start_ns = zps_clock_ns();
  for (uint32_t r = 0; r < WORLD; r++) be(&ranks[r], r, job, near, true);
  for (uint32_t r = 0; r < WORLD; r++) start(&ranks[r]);
  for (uint32_t r = 0; r < WORLD; r++) join(&ranks[r]);
  assert_true(zps_clock_ns() - start_ns < (uint64_t)LONG_MS * ZPS_NS_PER_MS); /* no rank waited in vain */
  for (uint32_t a = 0; a < WORLD; a++)
    for (uint32_t b = 0; b < WORLD; b++)
      if (a != b) check_shares(&ranks[a], &ranks[b], true, true);
  for (uint32_t r = 0; r < WORLD; r++) leave(&ranks[r]);
}

static void test_two_hosts(void **state) {
  (void)state;
  struct rank ranks[WORLD];
  bool even[WORLD] = {true, false, true, false}, odd[WORLD] = {false, true, false, true};
  const uint64_t job = job_id();
  for (uint32_t r = 0; r < WORLD; r++) be(&ranks[r], r, job, r % 2 ? odd : even, true);
  for (uint32_t r = 0; r < WORLD; r++) start(&ranks[r]);
  for (uint32_t r = 0; r < WORLD; r++) join(&ranks[r]);
  for (uint32_t a = 0; a < WORLD; a++)
    for (uint32_t b = 0; b < WORLD; b++)
      if (a != b) check_shares(&ranks[a], &ranks[b], a % 2 == b % 2, a % 2 == b % 2);
  for (uint32_t r = 0; r < WORLD; r++) leave(&ranks[r]);
}

static void test_one_has_no_segment(void **state) {
  (void)state;
  struct rank ranks[3];
  bool near[WORLD] = {true, true, true, false};
  const uint64_t job = job_id();
  logs_start();
  logs_expect(ZPS_LOG_WARN, "rank 1");
  logs_allow(ZPS_LOG_WARN, "shares no memory with us (it could not map ours)");
  for (uint32_t r = 0; r < 3; r++) be(&ranks[r], r, job, near, r != 1);
  for (uint32_t r = 0; r < 3; r++) start(&ranks[r]);
  for (uint32_t r = 0; r < 3; r++) join(&ranks[r]);
  for (uint32_t a = 0; a < 3; a++)
    for (uint32_t b = 0; b < 3; b++)
      if (a != b) check_shares(&ranks[a], &ranks[b], b != 1, a != 1);
  logs_finish();
  for (uint32_t r = 0; r < 3; r++) leave(&ranks[r]);
}

/* Ranks 0 and 2 never listen, as behind another container's wall: 1 cannot find 0, and 2 does not come. */
static void test_some_do_not_come(void **state) {
  (void)state;
  struct rank one, three;
  bool near[WORLD] = {true, true, true, true};
  const uint64_t job = job_id();
  be(&one, 1, job, near, true);
  be(&three, 3, job, near, true);
  one.timeout_ms = three.timeout_ms = SHORT_MS;
  logs_start();
  logs_expect(ZPS_LOG_WARN, "rank 0 is on this host, but shares no memory with us (it cannot be met here)");
  logs_allow(ZPS_LOG_WARN, "rank 2 is on");
  logs_allow(ZPS_LOG_WARN, "1 other ranks of this host did not connect to share memory");
  start(&one);
  start(&three);
  join(&one);
  join(&three);
  check_shares(&one, &three, true, true);
  logs_finish();
  check_shares(&three, &one, true, true);
  assert_null(one.neighbours[0].view.base);
  assert_null(three.neighbours[2].view.base);
  leave(&one);
  leave(&three);
}

/* A process that comes and dies at once, at any time of the meeting. */
static void test_one_dies(void **state) {
  (void)state;
  for (unsigned when = 0; when < 2; when++) {
    struct rank zero, one;
    bool near[WORLD] = {true, true, true, false};
    const uint64_t job = job_id();
    be(&zero, 0, job, near, true);
    be(&one, 1, job, near, true);
    zero.timeout_ms = one.timeout_ms = SHORT_MS;
    logs_start();
    logs_allow(ZPS_LOG_WARN, "rank 2");
    logs_allow(ZPS_LOG_WARN, "1 other ranks of this host did not connect to share memory");
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      struct rank two;
      be(&two, 2, job, near, true);
      if (when == 1) meet(&two);
      _exit(0);
    }
    start(&zero);
    start(&one);
    join(&zero);
    join(&one);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    logs_finish();
    check_shares(&zero, &one, true, true);
    check_shares(&one, &zero, true, true);
    if (zero.neighbours[2].view.base) /* the bytes that it wrote are still there */
      assert_memory_equal(zps_segment_at(&zero.neighbours[2].view, MIB, 12), "written by 2", 12);
    leave(&zero);
    leave(&one);
  }
}

/* Connects as a rank would, but sends bytes that no rank sends. */
static int visitor(uint64_t job, uint32_t rank, const void *message, size_t len) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  const int path_len = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "zenps/%016llx/%016llx/%u",
                                (unsigned long long)job, 5ull, rank);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)&at,
                           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)path_len)),
                   0);
  if (len > 0) assert_int_equal(send(fd, message, len, MSG_NOSIGNAL), (ssize_t)len);
  return fd;
}

static void test_strangers(void **state) {
  (void)state;
  struct rank zero, one;
  bool near[WORLD] = {true, true, false, false};
  const uint64_t job = job_id();
  struct {
    uint32_t magic, rank;
    uint64_t len_bytes, proof, has_device;
  } message = {0x7a70736fu, 1, UINT64_MAX, 1, 0};
  unsigned char noise[200];
  memset(noise, 0xa5, sizeof noise);
  be(&zero, 0, job, near, true);
  be(&one, 1, job, near, true);
  int fds[6];
  unsigned n = 0;
  fds[n++] = visitor(job, 0, NULL, 0);
  fds[n++] = visitor(job, 0, noise, sizeof noise);
  fds[n++] = visitor(job, 0, noise, 3);
  message.rank = 3; /* rank 3 is not near */
  fds[n++] = visitor(job, 0, &message, sizeof message);
  message.rank = 70000;
  fds[n++] = visitor(job, 0, &message, sizeof message);
  message.rank = 0;
  fds[n++] = visitor(job, 0, &message, sizeof message);
  start(&zero);
  start(&one);
  join(&zero);
  join(&one);
  check_shares(&zero, &one, true, true);
  check_shares(&one, &zero, true, true);
  for (unsigned i = 0; i < n; i++) close(fds[i]);
  leave(&zero);
  leave(&one);
}

/* A process that claims to be rank 1 and shows no segment, or a wrong proof, is not read and reads nothing. */
static void test_impostor(void **state) {
  (void)state;
  struct rank zero;
  bool near[WORLD] = {true, true, false, false};
  const uint64_t job = job_id();
  struct {
    uint32_t magic, rank;
    uint64_t len_bytes, proof, has_device;
  } message = {0x7a70736fu, 1, 2 * MIB, 0, 0}, answer;
  be(&zero, 0, job, near, true);
  logs_start();
  logs_expect(ZPS_LOG_WARN, "rank 1's memory cannot be read here: it has none to share");
  logs_expect(ZPS_LOG_WARN, "rank 1 is on this host, but shares no memory with us (it could not map ours)");
  const int fd = visitor(job, 0, &message, sizeof message);
  start(&zero);
  assert_int_equal(recv(fd, &answer, sizeof answer, 0), (ssize_t)sizeof answer);
  assert_int_equal(answer.proof, 0); /* nothing came that could be mapped */
  message.proof = zero.proof + 1;
  assert_int_equal(send(fd, &message, sizeof message, MSG_NOSIGNAL), (ssize_t)sizeof message);
  join(&zero);
  logs_finish();
  assert_null(zero.neighbours[1].view.base);
  assert_false(zero.neighbours[1].maps_ours);
  close(fd);
  leave(&zero);
}

static void test_the_name_is_taken(void **state) {
  (void)state;
  struct rank zero;
  bool near[WORLD] = {true, true, false, false};
  struct zps_error error = {0};
  int fd = -1;
  be(&zero, 0, job_id(), near, false);
  assert_int_equal(zps_neighbours_listen(&zero.config, &fd, &error), ZPS_ERR_UNSUPPORTED);
  assert_non_null(strstr(error.text, "@zenps/"));
  assert_int_equal(fd, -1);
  close(zero.fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_meet),           cmocka_unit_test(test_two_hosts),
      cmocka_unit_test(test_one_has_no_segment), cmocka_unit_test(test_some_do_not_come),
      cmocka_unit_test(test_one_dies),           cmocka_unit_test(test_strangers),
      cmocka_unit_test(test_impostor),           cmocka_unit_test(test_the_name_is_taken),
  };
  return cmocka_run_group_tests_name("neighbours", tests, NULL, NULL);
}
