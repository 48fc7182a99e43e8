#include "common/control/own_socket.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ZPS_LOG_COMPONENT "rpc"
#include "common/base/clock.h"
#include "common/base/log.h"

#define RANDOM "XXXXXX"
#define BELOW_MAX_BYTES sizeof "/zenps-4294967295." RANDOM "/255.255.255.255:65535.4294967295"
#define FOLDER_MAX (sizeof((struct sockaddr_un *)0)->sun_path)

enum { PARENTS_MAX = 3, LOOK_MS = 20 };

/* ------------------------------------------------------------ folders */

struct parents {
  char paths[PARENTS_MAX][FOLDER_MAX];
  unsigned n, temporary; /* Every user may write to the one at `temporary`. */
};

static bool is_private(const char *folder, struct stat *st) {
  return lstat(folder, st) == 0 && S_ISDIR(st->st_mode) && st->st_uid == geteuid() &&
         !(st->st_mode & (S_IRWXG | S_IRWXO));
}

/* A comma would end the path in a list of addresses. */
static bool is_usable(const char *parent) {
  return parent && parent[0] == '/' && strlen(parent) + BELOW_MAX_BYTES <= FOLDER_MAX && !strpbrk(parent, ",\n");
}

static void parents_add(struct parents *parents, const char *path) {
  snprintf(parents->paths[parents->n++], FOLDER_MAX, "%s", path);
}

/* su and sudo may keep the XDG_RUNTIME_DIR of another user. Without the variable /run/user/UID comes last: it goes when
 * the user's last login ends, and this process may belong to none. */
static struct parents find_parents(void) {
  struct parents parents = {.n = 0};
  struct stat st;
  char session[40];
  const char *const runtime = getenv("XDG_RUNTIME_DIR"), *const tmp = getenv("TMPDIR");
  if (is_usable(runtime) && is_private(runtime, &st)) parents_add(&parents, runtime);
  parents.temporary = parents.n;
  parents_add(&parents, is_usable(tmp) ? tmp : "/tmp");
  snprintf(session, sizeof session, "/run/user/%lu", (unsigned long)geteuid());
  if (is_private(session, &st)) parents_add(&parents, session);
  return parents;
}

static void folder_path(const char *parent, char folder[FOLDER_MAX]) {
  snprintf(folder, FOLDER_MAX, "%.*s/zenps-%lu", (int)(FOLDER_MAX - BELOW_MAX_BYTES), parent, (unsigned long)geteuid());
}

/* Returns whether it has had enough. */
typedef bool (*visit_fn)(void *ctx, const char *folder);

static bool visit_spares(const char *parent, visit_fn visit, void *ctx) {
  struct stat st;
  char prefix[40], folder[FOLDER_MAX];
  bool is_enough = false;
  DIR *const dir = opendir(parent);
  if (!dir) return false;
  snprintf(prefix, sizeof prefix, "zenps-%lu.", (unsigned long)geteuid());
  for (const struct dirent *entry; !is_enough && (entry = readdir(dir)) != NULL;) {
    if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
    if (strlen(entry->d_name) != strlen(prefix) + strlen(RANDOM)) continue;
    snprintf(folder, sizeof folder, "%.*s/%.*s", (int)(FOLDER_MAX - BELOW_MAX_BYTES), parent,
             (int)sizeof "zenps-4294967295." RANDOM, entry->d_name);
    is_enough = is_private(folder, &st) && visit(ctx, folder);
  }
  closedir(dir);
  return is_enough;
}

/* Visits the existing folders that this user alone may enter. */
static bool visit_folders(const struct parents *parents, visit_fn visit, void *ctx) {
  struct stat st;
  char folder[FOLDER_MAX];
  for (unsigned i = 0; i < parents->n; i++) {
    folder_path(parents->paths[i], folder);
    if (is_private(folder, &st) && visit(ctx, folder)) return true;
  }
  return visit_spares(parents->paths[parents->temporary], visit, ctx);
}

static zps_err_t make_named(const char *parent, char folder[FOLDER_MAX], struct zps_error *error) {
  struct stat st = {0};
  folder_path(parent, folder);
  if (mkdir(folder, 0700) < 0 && errno != EEXIST)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot make the folder %s", folder);
  if (is_private(folder, &st)) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_REFUSED,
                  "%s is of user %lu and mode %04o: it must be a folder of user %lu that nobody else may enter (0700)",
                  folder, (unsigned long)st.st_uid, (unsigned)st.st_mode & 07777u, (unsigned long)geteuid());
}

/* Finds or makes a folder of the name that follows from the user. Any user may have taken it before. */
static zps_err_t find_named(const struct parents *parents, char folder[FOLDER_MAX], struct zps_error *error) {
  struct zps_error other;
  const zps_err_t err = make_named(parents->paths[0], folder, error); /* The one that the user would expect. */
  if (err == ZPS_OK) return ZPS_OK;
  for (unsigned i = 1; i < parents->n; i++)
    if (make_named(parents->paths[i], folder, &other) == ZPS_OK) return ZPS_OK;
  return err;
}

static bool take_first(void *ctx, const char *folder) {
  snprintf(ctx, FOLDER_MAX, "%s", folder);
  return true;
}

/* Finds or makes a folder whose name nobody can foresee. */
static bool find_spare(const struct parents *parents, char folder[FOLDER_MAX]) {
  if (visit_folders(parents, take_first, folder)) return true;
  snprintf(folder, FOLDER_MAX, "%.*s/zenps-%lu." RANDOM, (int)(FOLDER_MAX - BELOW_MAX_BYTES),
           parents->paths[parents->temporary], (unsigned long)geteuid());
  return mkdtemp(folder);
}

/* ------------------------------------------------------------ sockets */

static unsigned long network(void) {
  struct stat st;
  return stat("/proc/self/ns/net", &st) == 0 ? (unsigned long)st.st_ino : 0;
}

/* The forms of one address are one name. A name of the loopback interface stands for its IPv4 address, or with
 * `is_v6` for the other one. */
static void name_of(const struct zps_address *address, bool is_v6, char *name, size_t size) {
  struct in_addr v4;
  struct in6_addr v6;
  char host[INET6_ADDRSTRLEN] = "127.0.0.1";
  if (inet_pton(AF_INET, address->host, &v4) == 1) {
    inet_ntop(AF_INET, &v4, host, sizeof host);
    is_v6 = false;
  } else if (inet_pton(AF_INET6, address->host, &v6) == 1) {
    is_v6 = !IN6_IS_ADDR_V4MAPPED(&v6);
    inet_ntop(is_v6 ? AF_INET6 : AF_INET, is_v6 ? (const void *)&v6 : &v6.s6_addr[12], host, sizeof host);
  } else if (is_v6) {
    strcpy(host, "::1");
  }
  snprintf(name, size, is_v6 ? "[%s]:%d.%lu" : "%s:%d.%lu", host, atoi(address->port), network());
}

static bool is_socket(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Whether a process of this network namespace has the socket, by the path that it bound it to. */
static bool is_bound(const char *path) {
  char *line = NULL;
  size_t size = 0;
  bool found = false;
  FILE *const table = fopen("/proc/net/unix", "re");
  if (!table) return false;
  for (ssize_t len; !found && (len = getline(&line, &size, table)) > 0;) {
    const size_t n = (size_t)len - 1;
    line[n] = '\0';
    found = n > strlen(path) && line[n - strlen(path) - 1] == ' ' && strcmp(line + n - strlen(path), path) == 0;
  }
  free(line);
  fclose(table);
  return found;
}

/* A socket that is bound may not listen yet: both answers count. */
static bool is_stale(const char *path) {
  return !is_bound(path) && zps_address_probe(path, NULL) == ZPS_ERR_CLOSED;
}

/* Removes the sockets of processes of this network namespace that were killed. */
static bool remove_stale(void *ctx, const char *folder) {
  (void)ctx;
  char end[32], path[FOLDER_MAX];
  DIR *const dir = opendir(folder);
  if (!dir) return false;
  snprintf(end, sizeof end, ".%lu", network());
  for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
    const size_t len = strlen(entry->d_name);
    if (len <= strlen(end) || strlen(folder) + 1 + len >= sizeof path) continue;
    if (strcmp(entry->d_name + len - strlen(end), end) != 0) continue;
    snprintf(path, sizeof path, "%.*s/%.*s", (int)strlen(folder), folder, (int)len, entry->d_name);
    if (is_socket(path) && is_stale(path)) unlink(path);
  }
  closedir(dir);
  return false;
}

struct search {
  const struct zps_address *address;
  char *own, first[ZPS_OWN_SOCKET_MAX]; /* `first`: the first socket of that name, which nobody may have any more */
};

static bool search_folder(void *ctx, const char *folder) {
  struct search *const search = ctx;
  char name[80];
  for (int is_v6 = 0; is_v6 < 2; is_v6++) {
    name_of(search->address, is_v6, name, sizeof name);
    snprintf(search->own, ZPS_OWN_SOCKET_MAX, "%s/%s", folder, name);
    if (!is_socket(search->own)) continue;
    if (is_bound(search->own)) return true;
    if (!search->first[0]) strcpy(search->first, search->own);
  }
  return false;
}

static void print_own(const struct zps_address *address, const char *folder, char own[ZPS_OWN_SOCKET_MAX]) {
  char name[80];
  name_of(address, false, name, sizeof name);
  snprintf(own, ZPS_OWN_SOCKET_MAX, "unix:%s/%s", folder, name);
}

zps_err_t zps_own_socket_make(const char *address, char own[ZPS_OWN_SOCKET_MAX], struct zps_error *error) {
  struct zps_address parsed;
  struct zps_error why;
  char folder[FOLDER_MAX];
  const struct parents parents = find_parents();
  zps_err_t err = zps_address_parse(address, &parsed, error);
  if (err) return err;
  visit_folders(&parents, remove_stale, NULL);
  err = find_named(&parents, folder, &why);
  if (err && !find_spare(&parents, folder))
    return zps_fail(error, err,
                    "no folder for the Unix socket of this user: %.350s. Set TMPDIR to a folder of this "
                    "user, for all processes that use this coordinator",
                    why.text);
  if (err) zps_log_warn("%.350s. The Unix socket of this user is in %s instead", why.text, folder);
  print_own(&parsed, folder, own);
  return ZPS_OK;
}

zps_err_t zps_own_socket_await(const char *address, uint64_t timeout_ms, char own[ZPS_OWN_SOCKET_MAX],
                               struct zps_error *error) {
  const uint64_t deadline_ns = zps_clock_ns() + timeout_ms * ZPS_NS_PER_MS;
  struct zps_address parsed;
  struct zps_error why;
  char folder[FOLDER_MAX];
  const struct parents parents = find_parents();
  const zps_err_t err = zps_address_parse(address, &parsed, error);
  if (err) return err;
  if (find_named(&parents, folder, &why) == ZPS_OK) {
    print_own(&parsed, folder, own);
    return ZPS_OK;
  }
  char path[ZPS_OWN_SOCKET_MAX];
  struct search search = {.address = &parsed, .own = path};
  while (!visit_folders(&parents, search_folder, &search)) {
    if (zps_clock_ns() >= deadline_ns)
      return zps_fail(error, ZPS_ERR_TIMEOUT,
                      "no coordinator of this user has a Unix socket for %.100s after %llu ms, and %.250s", address,
                      (unsigned long long)timeout_ms, why.text);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * (long)ZPS_NS_PER_MS}, NULL);
  }
  snprintf(own, ZPS_OWN_SOCKET_MAX, "unix:%.*s", (int)(ZPS_OWN_SOCKET_MAX - sizeof "unix:"), path);
  return ZPS_OK;
}

bool zps_own_socket_find(const struct zps_address *address, char own[ZPS_OWN_SOCKET_MAX]) {
  if (address->is_unix || !zps_address_is_loopback(address)) return false;
  struct search search = {.address = address, .own = own};
  const struct parents parents = find_parents();
  if (visit_folders(&parents, search_folder, &search)) return true;
  strcpy(own, search.first);
  return search.first[0] != '\0';
}
