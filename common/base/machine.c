#include "common/base/machine.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum hierarchy { UNIFIED, V1_CPU, V1_CPUSET, V1_MEMORY, N_HIERARCHIES }; /* UNIFIED: version 2 */

/* Where the process is in a hierarchy, and where that can be seen. */
struct place {
  char group[PATH_MAX]; /* of the process, below the hierarchy's root */
  char point[PATH_MAX]; /* mount point */
  char below[PATH_MAX]; /* of the process, below the mount point */
  bool has_group, is_mounted, is_own;
};

struct reader {
  const char *root;
  struct place places[N_HIERARCHIES];
};

static FILE *open_below(const char *root, const char *folder, const char *name) {
  char path[PATH_MAX];
  const int len = snprintf(path, sizeof path, "%s%s/%s", root, folder, name);
  return len > 0 && (size_t)len < sizeof path ? fopen(path, "re") : NULL;
}

static bool copy_path(char *to, const char *from) {
  const size_t len = strlen(from);
  if (len >= PATH_MAX) return false;
  memcpy(to, from, len + 1);
  return true;
}

/* ------------------------------------------------------------ which groups, and where they are mounted */

/* Whether `list` (a,b,c) has `word`. */
static bool has_word(const char *list, const char *word) {
  const size_t len = strlen(word);
  for (const char *at = list; *at; at += strcspn(at, ","), at += *at == ',') {
    if (strncmp(at, word, len) == 0 && (at[len] == ',' || at[len] == '\0')) return true;
  }
  return false;
}

/* A line of /proc/self/cgroup: number:controllers:path */
static void take_group(struct reader *reader, char *line) {
  line[strcspn(line, "\n")] = '\0';
  char *const controllers = strchr(line, ':');
  char *const path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path || path[1] != '/') return;
  *path = '\0';
  const bool of[N_HIERARCHIES] = {[UNIFIED] = strcmp(line, "0:") == 0,
                                  [V1_CPU] = has_word(controllers + 1, "cpu"),
                                  [V1_CPUSET] = has_word(controllers + 1, "cpuset"),
                                  [V1_MEMORY] = has_word(controllers + 1, "memory")};
  for (int i = 0; i < N_HIERARCHIES; i++) {
    if (of[i]) reader->places[i].has_group = copy_path(reader->places[i].group, path + 1);
  }
}

/* Blanks in paths of mountinfo are written \040. */
static void unescape(char *path) {
  char *to = path;
  for (const char *from = path; *from; to++) {
    const bool is_code = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
    *to = is_code ? (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0')) : *from;
    from += is_code ? 4 : 1;
  }
  *to = '\0';
}

/* Where the process's group is below a mount that shows `mounted` of the hierarchy; NULL: not there. */
static const char *below(const char *group, const char *mounted) {
  if (strncmp(group, "/..", 3) == 0) return NULL; /* outside of the namespace */
  if (strcmp(mounted, "/") == 0) return strcmp(group, "/") == 0 ? "" : group;
  const size_t len = strlen(mounted);
  if (strncmp(group, mounted, len) != 0) return NULL;
  return group[len] == '/' || group[len] == '\0' ? group + len : NULL;
}

/* The root of a mount may be the process's own group, as in a container that sees nothing else: then its path says
 * nothing of use, and the mount point is the best there is, unless another mount does better. */
static void take_mount(struct place *place, const char *mounted, const char *point) {
  if (!place->has_group || place->is_own) return;
  const char *const path = below(place->group, mounted);
  if (!path && place->is_mounted) return;
  place->is_mounted = copy_path(place->point, point) && copy_path(place->below, path ? path : "");
  place->is_own = place->is_mounted && path;
}

/* A line of /proc/self/mountinfo: id parent device root point options... - type source options */
static void take_mountinfo(struct reader *reader, char *line) {
  char *fields[5], *rest = line;
  for (int i = 0; i < 5; i++) {
    fields[i] = strsep(&rest, " ");
    if (!rest) return;
  }
  char *const dash = strstr(rest, "- ");
  if (!dash) return;
  rest = dash + 2;
  rest[strcspn(rest, "\n")] = '\0';
  const char *const type = strsep(&rest, " ");
  const char *const source = strsep(&rest, " "), *const options = rest;
  const bool is_v1 = strcmp(type, "cgroup") == 0 && source && options;
  const bool of[N_HIERARCHIES] = {[UNIFIED] = strcmp(type, "cgroup2") == 0,
                                  [V1_CPU] = is_v1 && has_word(options, "cpu"),
                                  [V1_CPUSET] = is_v1 && has_word(options, "cpuset"),
                                  [V1_MEMORY] = is_v1 && has_word(options, "memory")};
  if (!of[UNIFIED] && !is_v1) return;
  unescape(fields[3]);
  unescape(fields[4]);
  for (int i = 0; i < N_HIERARCHIES; i++) {
    if (of[i]) take_mount(&reader->places[i], fields[3], fields[4]);
  }
}

static void for_lines(struct reader *reader, const char *name, void (*take)(struct reader *reader, char *line)) {
  FILE *const file = open_below(reader->root, "/proc/self", name);
  char *line = NULL;
  size_t size = 0;
  if (!file) return;
  while (getline(&line, &size, file) > 0) take(reader, line);
  free(line);
  fclose(file);
}

/* ------------------------------------------------------------ limits */

static void at_most(uint64_t *limit, uint64_t value) {
  if (value < *limit) *limit = value;
}

/* The numbers that a file begins with; how many there are of the two. */
static int read_numbers(const char *root, const char *folder, const char *name, long long numbers[2]) {
  FILE *const file = open_below(root, folder, name);
  if (!file) return 0;
  const int n = fscanf(file, "%lld %lld", &numbers[0], &numbers[1]);
  fclose(file);
  return n > 0 ? n : 0; /* "max" is no number */
}

static void read_memory(const char *root, const char *folder, const char *name, struct zps_machine_limits *limits) {
  long long numbers[2];
  if (read_numbers(root, folder, name, numbers) > 0 && numbers[0] > 0)
    at_most(&limits->memory_bytes, (uint64_t)numbers[0]);
}

static void take_quota(long long quota, long long period, struct zps_machine_limits *limits) {
  if (quota > 0 && period > 0) at_most(&limits->cores, (uint64_t)(quota / period + (quota % period != 0)));
}

/* A list such as 0-3,8. */
static void read_set(const char *root, const char *folder, const char *name, struct zps_machine_limits *limits) {
  FILE *const file = open_below(root, folder, name);
  uint64_t n = 0;
  unsigned first, last;
  if (!file) return;
  while (fscanf(file, "%u", &first) == 1) {
    last = first;
    if (fscanf(file, "-%u", &last) != 1) last = first;
    if (last >= first) n += last - first + 1ull;
    if (fgetc(file) != ',') break;
  }
  fclose(file);
  if (n > 0) at_most(&limits->cores, n);
}

static void read_group(const char *root, enum hierarchy hierarchy, const char *folder,
                       struct zps_machine_limits *limits) {
  long long quota[2], period[2];
  if (hierarchy == UNIFIED) {
    read_memory(root, folder, "memory.max", limits);
    read_memory(root, folder, "memory.high", limits);
    read_set(root, folder, "cpuset.cpus.effective", limits);
    if (read_numbers(root, folder, "cpu.max", quota) == 2) take_quota(quota[0], quota[1], limits);
  } else if (hierarchy == V1_MEMORY) {
    read_memory(root, folder, "memory.limit_in_bytes", limits);
  } else if (hierarchy == V1_CPUSET) {
    read_set(root, folder, "cpuset.effective_cpus", limits);
  } else if (read_numbers(root, folder, "cpu.cfs_quota_us", quota) > 0 &&
             read_numbers(root, folder, "cpu.cfs_period_us", period) > 0) {
    take_quota(quota[0], period[0], limits);
  }
}

/* From the process's group up to the mount point. */
static void read_groups(const char *root, enum hierarchy hierarchy, const struct place *place,
                        struct zps_machine_limits *limits) {
  char folder[2 * PATH_MAX];
  const size_t point_len = strlen(place->point);
  snprintf(folder, sizeof folder, "%s%s", place->point, place->below);
  for (;;) {
    read_group(root, hierarchy, folder, limits);
    char *const slash = strrchr(folder, '/');
    if (!slash || (size_t)(slash - folder) < point_len) return;
    *slash = '\0';
  }
}

void zps_machine_limits(const char *root, struct zps_machine_limits *limits) {
  struct reader reader = {.root = root};
  *limits = (struct zps_machine_limits){.cores = ZPS_NO_LIMIT, .memory_bytes = ZPS_NO_LIMIT};
  for_lines(&reader, "cgroup", take_group);
  for_lines(&reader, "mountinfo", take_mountinfo);
  for (int i = 0; i < N_HIERARCHIES; i++) {
    if (reader.places[i].is_mounted) read_groups(root, (enum hierarchy)i, &reader.places[i], limits);
  }
}

/* ------------------------------------------------------------ with what the machine has */

/* As many as the affinity has; 0: not known. The kernel says no to a set that is smaller than its own. */
static unsigned affinity(void) {
  enum { CPUS_MAX = 1 << 16 };
  for (unsigned cpus = CPU_SETSIZE; cpus <= CPUS_MAX; cpus *= 2) {
    cpu_set_t *const set = CPU_ALLOC(cpus);
    if (!set) return 0;
    const size_t size = CPU_ALLOC_SIZE(cpus);
    const unsigned n = sched_getaffinity(0, size, set) == 0 ? (unsigned)CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (n > 0) return n;
  }
  return 0;
}

unsigned zps_machine_cores(void) {
  struct zps_machine_limits limits;
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  uint64_t cores = online > 0 ? (uint64_t)online : 1;
  zps_machine_limits("", &limits);
  at_most(&cores, limits.cores);
  return (unsigned)cores;
}

unsigned zps_machine_cores_each(uint64_t n_sharing) {
  uint64_t cores = zps_machine_cores() / (n_sharing > 0 ? n_sharing : 1);
  const unsigned own = affinity();
  if (own > 0) at_most(&cores, own);
  return cores > 0 ? (unsigned)cores : 1;
}

uint64_t zps_machine_memory_bytes(void) {
  struct zps_machine_limits limits;
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  zps_machine_limits("", &limits);
  uint64_t bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
  if (bytes == 0) return limits.memory_bytes == ZPS_NO_LIMIT ? 0 : limits.memory_bytes;
  at_most(&bytes, limits.memory_bytes);
  return bytes;
}
