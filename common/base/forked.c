#include "common/base/forked.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A rank of a large job has thousands of connections, and each is looked up in the child. */
enum { BUCKETS = 1024, FDS_MAX = 65536 };

/* What getdents64() fills in; libc has no name for it. */
struct entry {
  uint64_t ino;
  int64_t off;
  unsigned short len;
  unsigned char type;
  char name[];
};

struct address {
  in_port_t port;
  struct in6_addr ip;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct zps_forked *buckets[BUCKETS];
static unsigned n_listed;

static unsigned bucket_of(enum zps_forked_what what, uint64_t key) {
  return (unsigned)((key * 0x9e3779b97f4a7c15u) >> 40) * 3 + (unsigned)what;
}

static struct zps_forked **bucket(enum zps_forked_what what, uint64_t key) {
  return &buckets[bucket_of(what, key) % BUCKETS];
}

static uint64_t key_of(const struct zps_forked *forked) {
  return forked->what == ZPS_FORKED_SOCKET ? forked->ino : forked->port;
}

/* ---- In the child: nothing but system calls, since other threads may have held any lock of the library's ---- */

static bool ip_is_any(const struct in6_addr *ip) {
  static const struct in6_addr any, any4 = {.s6_addr = {[10] = 0xff, [11] = 0xff}};
  return memcmp(ip, &any, sizeof any) == 0 || memcmp(ip, &any4, sizeof any4) == 0;
}

/* IPv4 as IPv6 maps it, which is how a socket of both sees it. */
static bool address_read(const void *addr, size_t len, struct address *address_p) {
  sa_family_t family;
  if (len < sizeof family + sizeof(in_port_t)) return false;
  memcpy(&family, addr, sizeof family);
  if (family == AF_INET && len >= sizeof(struct sockaddr_in)) {
    struct sockaddr_in in;
    memcpy(&in, addr, sizeof in);
    *address_p = (struct address){.port = in.sin_port, .ip.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&address_p->ip.s6_addr[12], &in.sin_addr, sizeof in.sin_addr);
    return true;
  }
  if (family != AF_INET6 || len < sizeof(struct sockaddr_in6)) return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, addr, sizeof in6);
  *address_p = (struct address){.port = in6.sin6_port, .ip = in6.sin6_addr};
  return true;
}

/* A socket's own address, or its peer's. */
static bool address_of(int fd, enum zps_forked_what what, struct address *address_p) {
  struct sockaddr_storage addr;
  socklen_t len = sizeof addr;
  const int status = what == ZPS_FORKED_LOCAL ? getsockname(fd, (struct sockaddr *)&addr, &len)
                                              : getpeername(fd, (struct sockaddr *)&addr, &len);
  return status == 0 && address_read(&addr, len, address_p);
}

static bool has_address(int fd, enum zps_forked_what what) {
  struct address address;
  if (!address_of(fd, what, &address)) return false;
  for (const struct zps_forked *forked = *bucket(what, address.port); forked; forked = forked->next) {
    if (forked->what != what || forked->port != address.port) continue;
    if (memcmp(&forked->ip, &address.ip, sizeof address.ip) == 0) return true;
    if (what == ZPS_FORKED_LOCAL && ip_is_any(&forked->ip)) return true;
  }
  return false;
}

static bool is_listed(int fd) {
  struct stat stat;
  if (fstat(fd, &stat) != 0 || !S_ISSOCK(stat.st_mode)) return false;
  for (const struct zps_forked *forked = *bucket(ZPS_FORKED_SOCKET, stat.st_ino); forked; forked = forked->next) {
    if (forked->what == ZPS_FORKED_SOCKET && forked->ino == stat.st_ino && forked->dev == stat.st_dev) return true;
  }
  return has_address(fd, ZPS_FORKED_LOCAL) || has_address(fd, ZPS_FORKED_PEER);
}

static void close_listed(int fd, const void *unused) {
  (void)unused;
  if (is_listed(fd)) close(fd);
}

/* Not readdir(), which takes memory. */
static bool look_at_open(int dir, void (*look_at)(int fd, const void *arg), const void *arg) {
  _Alignas(struct entry) char buffer[4096];
  for (;;) {
    const long n = syscall(SYS_getdents64, dir, buffer, sizeof buffer);
    if (n <= 0) return n == 0;
    for (long at = 0; at < n;) {
      const struct entry *entry = (const struct entry *)(const void *)&buffer[at];
      int fd = 0;
      const char *digit = entry->name;
      while (*digit >= '0' && *digit <= '9') fd = fd * 10 + (*digit++ - '0');
      if (digit != entry->name && fd != dir) look_at(fd, arg);
      at += entry->len;
    }
  }
}

static void look_at_all(void (*look_at)(int fd, const void *arg), const void *arg) {
  const int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool looked = dir >= 0 && look_at_open(dir, look_at, arg);
  if (dir >= 0) close(dir);
  if (looked) return;
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > FDS_MAX) limit.rlim_cur = FDS_MAX;
  for (int fd = 0; fd < (int)limit.rlim_cur; fd++) look_at(fd, arg);
}

static void before(void) {
  pthread_mutex_lock(&lock);
}

static void in_parent(void) {
  pthread_mutex_unlock(&lock);
}

static void in_child(void) {
  if (n_listed > 0) look_at_all(close_listed, NULL);
  for (unsigned i = 0; i < BUCKETS; i++) {
    for (struct zps_forked *forked = buckets[i]; forked; forked = forked->next) forked->is_listed = false;
    buckets[i] = NULL;
  }
  n_listed = 0;
  pthread_mutex_unlock(&lock);
}

/* ---- The list ---- */

/* Fails for want of memory alone: children then keep the sockets, and a death is found by silence. */
static void watch_forks(void) {
  (void)pthread_atfork(before, in_parent, in_child);
}

static void add(struct zps_forked *forked, enum zps_forked_what what) {
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&lock);
  forked->what = what;
  struct zps_forked **head = bucket(what, key_of(forked));
  forked->prev = NULL;
  forked->next = *head;
  if (forked->next) forked->next->prev = forked;
  *head = forked;
  forked->is_listed = true;
  n_listed++;
  pthread_mutex_unlock(&lock);
}

void zps_forked_close_socket(struct zps_forked *forked, int fd) {
  struct stat stat;
  zps_forked_forget(forked);
  if (fstat(fd, &stat) != 0 || !S_ISSOCK(stat.st_mode)) return;
  forked->dev = stat.st_dev;
  forked->ino = stat.st_ino;
  add(forked, ZPS_FORKED_SOCKET);
}

static void close_by_address(struct zps_forked *forked, enum zps_forked_what what, const void *addr, size_t len) {
  struct address address;
  zps_forked_forget(forked);
  if (!address_read(addr, len, &address)) return;
  forked->port = address.port;
  forked->ip = address.ip;
  add(forked, what);
}

void zps_forked_close_local(struct zps_forked *forked, const void *addr, size_t len) {
  close_by_address(forked, ZPS_FORKED_LOCAL, addr, len);
}

void zps_forked_close_peer(struct zps_forked *forked, const void *addr, size_t len) {
  close_by_address(forked, ZPS_FORKED_PEER, addr, len);
}

void zps_forked_forget(struct zps_forked *forked) {
  pthread_mutex_lock(&lock);
  if (forked->is_listed) {
    if (forked->next) forked->next->prev = forked->prev;
    *(forked->prev ? &forked->prev->next : bucket(forked->what, key_of(forked))) = forked->next;
    forked->is_listed = false;
    n_listed--;
  }
  pthread_mutex_unlock(&lock);
}

/* ---- In the parent ---- */

struct times {
  int idle_s, silent_s;
};

static bool is_tcp_connection(int fd) {
  int protocol = 0, is_listening = 1;
  socklen_t len = sizeof protocol;
  if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) != 0 || protocol != IPPROTO_TCP) return false;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &len) == 0 && !is_listening;
}

static void keep_alive(int fd, const void *arg) {
  const struct times *const times = arg;
  int is_kept = 1;
  socklen_t len = sizeof is_kept;
  if (getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &is_kept, &len) != 0 || is_kept) return;
  if (!is_tcp_connection(fd) || !is_listed(fd)) return;
  const unsigned silent_ms = (unsigned)times->silent_s * 1000;
  const int second = 1;
  if (setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &times->idle_s, sizeof times->idle_s) != 0) return;
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof second);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times->silent_s, sizeof times->silent_s);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &(const int){1}, sizeof(int));
}

void zps_forked_keep_alive(unsigned idle_s, unsigned silent_s) {
  const struct times times = {(int)idle_s, (int)silent_s};
  pthread_mutex_lock(&lock);
  if (n_listed > 0) look_at_all(keep_alive, &times);
  pthread_mutex_unlock(&lock);
}

enum { CONNECTING_MAX = 1024, SYN_SENT = 2, IP_CHARS = 33 };

struct ending {
  const struct zps_forked *const *peers; /* listed, all of them */
  unsigned n_peers;
  in_port_t local_port;
  ino_t
      connecting[CONNECTING_MAX]; /* sockets that wait for the peer's answer: only the kernel's table has its address */
  unsigned n_connecting;
};

/* As the table has it: words of eight digits, each in this machine's order. */
static bool ip_read(const char *text, struct in6_addr *ip_p) {
  const size_t n_words = strlen(text) / 8;
  *ip_p = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
  if (n_words != 1 && n_words != 4) return false;
  for (size_t i = 0; i < n_words; i++) {
    char digits[9] = "";
    memcpy(digits, text + 8 * i, 8);
    const uint32_t word = (uint32_t)strtoul(digits, NULL, 16);
    memcpy(&ip_p->s6_addr[n_words == 1 ? 12 : 4 * i], &word, sizeof word);
  }
  return true;
}

static bool is_ending(const struct ending *ending, in_port_t port, const struct in6_addr *ip) {
  for (unsigned i = 0; i < ending->n_peers; i++)
    if (ending->peers[i]->port == port && memcmp(&ending->peers[i]->ip, ip, sizeof *ip) == 0) return true;
  return false;
}

static bool is_ending_host(const struct ending *ending, const struct in6_addr *ip) {
  for (unsigned i = 0; i < ending->n_peers; i++)
    if (memcmp(&ending->peers[i]->ip, ip, sizeof *ip) == 0) return true;
  return false;
}

static void find_connecting(const char *table, struct ending *ending) {
  char line[512], ip_text[IP_CHARS];
  FILE *const file = fopen(table, "re");
  while (file && fgets(line, sizeof line, file) && ending->n_connecting < CONNECTING_MAX) {
    struct in6_addr ip;
    unsigned port, state;
    unsigned long ino;
    if (sscanf(line, " %*d: %*[0-9A-F]:%*x %32[0-9A-F]:%x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", ip_text, &port, &state,
               &ino) != 4)
      continue;
    if (state != SYN_SENT || !ip_read(ip_text, &ip)) continue;
    if (is_ending(ending, htons((uint16_t)port), &ip)) ending->connecting[ending->n_connecting++] = (ino_t)ino;
  }
  if (file) fclose(file);
}

static bool is_connecting(int fd, const struct ending *ending) {
  struct stat stat;
  if (ending->n_connecting == 0 || fstat(fd, &stat) != 0 || !S_ISSOCK(stat.st_mode)) return false;
  for (unsigned i = 0; i < ending->n_connecting; i++)
    if (ending->connecting[i] == stat.st_ino) return true;
  return false;
}

static bool is_of_peer(int fd, const struct ending *ending) {
  struct address peer, self;
  if (!address_of(fd, ZPS_FORKED_PEER, &peer)) return is_connecting(fd, ending);
  if (is_ending(ending, peer.port, &peer.ip)) return true;
  return is_ending_host(ending, &peer.ip) && address_of(fd, ZPS_FORKED_LOCAL, &self) && self.port == ending->local_port;
}

static void end(int fd, const void *arg) {
  if (is_of_peer(fd, arg) && is_tcp_connection(fd)) shutdown(fd, SHUT_RDWR);
}

void zps_forked_end_peers(const struct zps_forked *local, const struct zps_forked *const *peers, unsigned n_peers) {
  struct ending ending = {.peers = peers, .n_peers = n_peers, .local_port = local->port};
  pthread_mutex_lock(&lock);
  bool is_listed = local->is_listed;
  for (unsigned i = 0; i < n_peers; i++) is_listed = is_listed && peers[i]->is_listed;
  if (is_listed) {
    find_connecting("/proc/self/net/tcp", &ending);
    find_connecting("/proc/self/net/tcp6", &ending);
    look_at_all(end, &ending);
  }
  pthread_mutex_unlock(&lock);
}
