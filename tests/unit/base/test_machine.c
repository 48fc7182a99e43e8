/* The share of the machine that control groups leave a process, read from trees as kernels and container engines make
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/base/machine.h"

#define GIB (1ull << 30)
#define NONE ZPS_NO_LIMIT

static char root[200];

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *at) {
  (void)stat;
  (void)type;
  (void)at;
  return remove(path);
}

static int new_root(void **state) {
  (void)state;
  const char *const tmp = getenv("TMPDIR");
  snprintf(root, sizeof root, "%.150s/zenps-machine.XXXXXX", tmp && *tmp ? tmp : "/tmp");
  return mkdtemp(root) ? 0 : -1;
}
static int remove_root(void **state) {
  (void)state;
  return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text) {
  char path[600];
  const size_t root_len = strlen(root);
  snprintf(path, sizeof path, "%s%s", root, name);
  for (char *slash = path + root_len + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
    *slash = '\0';
    if (mkdir(path, 0700) != 0 && errno != EEXIST) fail_msg("cannot create %s", path);
    *slash = '/';
  }
  FILE *const file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void expect(uint64_t cores, uint64_t memory_bytes) {
  struct zps_machine_limits limits;
  zps_machine_limits(root, &limits);
  assert_int_equal(limits.cores, cores);
  assert_int_equal(limits.memory_bytes, memory_bytes);
}

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNTS                                                                     \
  "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n"                                             \
  "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"       \
  "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"        \
  "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup none rw,memory\n" \
  "40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"

static void no_control_groups_no_limit(void **state) {
  (void)state;
  expect(NONE, NONE);
  put("/proc/self/cgroup", "0::/\n");
  expect(NONE, NONE);
  put("/proc/self/mountinfo", "23 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
  expect(NONE, NONE);
}

static void every_ancestor_counts(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/system.slice/zenpsd.service\n");
  put("/proc/self/mountinfo", V2_MOUNT);
  put("/sys/fs/cgroup/system.slice/zenpsd.service/memory.max", "4294967296\n");
  put("/sys/fs/cgroup/system.slice/zenpsd.service/cpu.max", "max 100000\n");
  expect(NONE, 4 * GIB);
  put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  put("/sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n");
  expect(2, 4 * GIB);
  put("/sys/fs/cgroup/memory.max", "1073741824\n");
  expect(2, GIB);
  put("/sys/fs/cgroup/system.slice/zenpsd.service/cpu.max", "50000 100000\n");
  put("/sys/fs/cgroup/system.slice/zenpsd.service/memory.high", "536870912\n");
  expect(1, GIB / 2);
  put("/sys/fs/cgroup/system.slice/other.service/memory.max", "4096\n"); /* not on the path */
  expect(1, GIB / 2);
}

static void quotas_are_rounded_up(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t cores;
  } quotas[] = {{"150000 100000\n", 2}, {"100000 100000\n", 1},
                {"1000 100000\n", 1},   {"800000 100000\n", 8},
                {"800001 100000\n", 9}, {"30000 10000\n", 3},
                {"0 100000\n", NONE},   {"100000 0\n", NONE},
                {"100000\n", NONE},     {"", NONE},
                {"max\n", NONE},        {"-1 100000\n", NONE},
                {"some text\n", NONE}};
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo", V2_MOUNT);
  for (size_t i = 0; i < sizeof quotas / sizeof quotas[0]; i++) {
    put("/sys/fs/cgroup/cpu.max", quotas[i].text);
    expect(quotas[i].cores, NONE);
  }
}

static void sets_of_processors_are_counted(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint64_t cores;
  } sets[] = {{"0-3\n", 4}, {"0-1,8,10-11\n", 5}, {"7\n", 1},  {"3,", 1},
              {"\n", NONE}, {"", NONE},           {"x", NONE}, {"5-2\n", NONE}};
  put("/proc/self/cgroup", "0::/pod/trainer\n");
  put("/proc/self/mountinfo", V2_MOUNT);
  for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
    put("/sys/fs/cgroup/pod/cpuset.cpus.effective", sets[i].text);
    expect(sets[i].cores, NONE);
  }
  put("/sys/fs/cgroup/pod/cpuset.cpus.effective", "0-3\n");
  put("/sys/fs/cgroup/pod/trainer/cpu.max", "150000 100000\n");
  expect(2, NONE);
}

static void version_1_has_a_folder_per_controller(void **state) {
  (void)state;
  put("/proc/self/cgroup", "5:cpu,cpuacct:/jobs/7\n4:memory:/jobs/7/step\n3:cpuset:/\n1:name=systemd:/x\n0::/\n");
  put("/proc/self/mountinfo", V1_MOUNTS);
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_period_us", "100000\n");
  put("/sys/fs/cgroup/memory/jobs/7/step/memory.limit_in_bytes", "9223372036854771712\n");
  expect(NONE, 9223372036854771712ull); /* more than any machine has */
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/7/cpu.cfs_quota_us", "250000\n");
  put("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "8589934592\n");
  expect(3, 8 * GIB);
  put("/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "100000\n"); /* its period cannot be read */
  expect(3, 8 * GIB);
  put("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "4-5\n");
  expect(2, 8 * GIB);
}

static void versions_together_are_read_where_their_controllers_are(void **state) {
  (void)state;
  put("/proc/self/cgroup", "2:cpu:/a\n1:memory:/a\n0::/user.slice\n");
  put("/proc/self/mountinfo", V1_MOUNTS "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  put("/sys/fs/cgroup/unified/user.slice/cgroup.procs", "1\n");
  put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "2147483648\n");
  expect(NONE, 2 * GIB);
  put("/proc/self/cgroup", "2:cpu:/a\n0::/user.slice\n"); /* memory is version 2's */
  put("/sys/fs/cgroup/unified/user.slice/memory.max", "1073741824\n");
  expect(NONE, GIB);
}

/* A namespace of its own: the container's group is "/", and all that it sees. */
static void a_container_with_a_namespace(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/\n");
  put("/proc/self/mountinfo", "600 590 0:26 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n");
  put("/sys/fs/cgroup/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  expect(2, GIB);
  put("/proc/self/cgroup", "0::/../../other\n"); /* moved out of it */
  expect(2, GIB);
  put("/proc/self/mountinfo", "600 590 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  expect(2, GIB);
}

/* Without one the path is the host's, of which the container sees its own group alone. */
static void a_container_without_a_namespace(void **state) {
  (void)state;
  put("/proc/self/cgroup", "4:memory:/docker/0af3\n2:cpu,cpuacct:/docker/0af3/inner\n");
  put("/proc/self/mountinfo",
      "70 60 0:29 /docker/0af3 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
      "71 60 0:32 /docker/0af3 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n");
  put("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "400000\n");
  put("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  expect(4, 3 * GIB);
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  expect(1, 3 * GIB);
  put("/proc/self/cgroup", "4:memory:/docker/0af34\n2:cpu,cpuacct:/elsewhere\n"); /* begins alike */
  expect(1, 3 * GIB);
}

static void the_mount_that_shows_the_process_is_the_one(void **state) {
  (void)state;
  put("/proc/self/cgroup", "0::/a/b\n");
  put("/proc/self/mountinfo",
      "50 1 0:26 /other /mnt/one\\040two rw - cgroup2 cgroup2 rw\n"
      "51 1 0:26 /a /mnt/three\\040four rw - cgroup2 cgroup2 rw\n");
  put("/mnt/one two/memory.max", "4096\n");
  put("/mnt/three four/b/memory.max", "1073741824\n");
  expect(NONE, GIB);
}

static void nonsense_is_passed_over(void **state) {
  (void)state;
  put("/proc/self/cgroup", "\n:\n::\n0:\n0:memory\n0::nowhere\nx:y:z:w\n0::/a\n0::/a:b");
  put("/proc/self/mountinfo",
      "\n1\n1 2 3 4\n1 2 3 4 5\n1 2 3 / /x rw\n1 2 3 / /x rw - \n1 2 3 / /x rw - cgroup\n"
      "1 2 3 / /x rw - cgroup2\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
  put("/sys/fs/cgroup/a:b/memory.max", "99999999999999999999999999\n");
  put("/sys/fs/cgroup/memory.max", "\x80\xff");
  put("/x/memory.max", "4096\n");
  put("/x/a:b/memory.max", "8192\n");
  expect(NONE, 4096); /* the first that is a mount of version 2 */
}

static void cores_are_those_that_the_process_may_use(void **state) {
  (void)state;
  cpu_set_t set, one;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  assert_in_range(zps_machine_cores_each(1), 1, CPU_COUNT(&set));
  assert_in_range(zps_machine_cores(), zps_machine_cores_each(1), sysconf(_SC_NPROCESSORS_ONLN));
  assert_int_equal(zps_machine_cores_each(1 << 20), 1);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++) {
    if (CPU_ISSET(i, &set)) CPU_SET(i, &one);
  }
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(zps_machine_cores_each(1), 1);
  assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

static void memory_is_at_most_the_machines(void **state) {
  (void)state;
  const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
  assert_in_range(zps_machine_memory_bytes(), 1 << 20, all);
}

#define TREE_TEST(test) cmocka_unit_test_setup_teardown(test, new_root, remove_root)
int main(void) {
  const struct CMUnitTest tests[] = {
      TREE_TEST(no_control_groups_no_limit),
      TREE_TEST(every_ancestor_counts),
      TREE_TEST(quotas_are_rounded_up),
      TREE_TEST(sets_of_processors_are_counted),
      TREE_TEST(version_1_has_a_folder_per_controller),
      TREE_TEST(versions_together_are_read_where_their_controllers_are),
      TREE_TEST(a_container_with_a_namespace),
      TREE_TEST(a_container_without_a_namespace),
      TREE_TEST(the_mount_that_shows_the_process_is_the_one),
      TREE_TEST(nonsense_is_passed_over),
      cmocka_unit_test(cores_are_those_that_the_process_may_use),
      cmocka_unit_test(memory_is_at_most_the_machines),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
