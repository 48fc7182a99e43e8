#include "common/base/route.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOOKUP_S = 2 };

bool zps_route_is_loopback(const struct sockaddr *address) {
  if (address->sa_family == AF_INET) {
    const struct sockaddr_in *const v4 = (const struct sockaddr_in *)(const void *)address;
    return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  const struct in6_addr *const v6 = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* Connecting a datagram socket asks the kernel for a route, and no more. */
static bool source_to(const struct sockaddr *address, socklen_t len, struct sockaddr_storage *source_p) {
  const int fd = socket(address->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  socklen_t source_len = sizeof *source_p;
  const bool found = connect(fd, address, len) == 0 && getsockname(fd, (struct sockaddr *)source_p, &source_len) == 0;
  close(fd);
  return found && !zps_route_is_loopback((const struct sockaddr *)source_p);
}

static bool source_to_any(const struct addrinfo *list, struct sockaddr_storage *source_p) {
  static const int families[] = {AF_INET, AF_INET6};
  for (int i = 0; i < 2; i++)
    for (const struct addrinfo *info = list; info; info = info->ai_next)
      if (info->ai_family == families[i] && source_to(info->ai_addr, info->ai_addrlen, source_p)) return true;
  return false;
}

static bool source_to_text(const char *text, int flags, struct sockaddr_storage *source_p) {
  const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = flags | AI_NUMERICSERV};
  struct addrinfo *list;
  if (getaddrinfo(text, "9", &hints, &list) != 0) return false;
  const bool found = source_to_any(list, source_p);
  freeaddrinfo(list);
  return found;
}

/* ---- A name, whose name server may hang ---- */

struct lookup {
  pthread_mutex_t lock;
  pthread_cond_t done;
  unsigned refs;
  bool is_done, found;
  struct sockaddr_storage source;
  char name[256];
};

static void lookup_unref(struct lookup *lookup) { /* under its lock */
  const bool is_last = --lookup->refs == 0;
  pthread_mutex_unlock(&lookup->lock);
  if (!is_last) return;
  pthread_cond_destroy(&lookup->done);
  pthread_mutex_destroy(&lookup->lock);
  free(lookup);
}

static void *lookup_run(void *ctx) {
  struct lookup *const lookup = ctx;
  struct sockaddr_storage source;
  const bool found = source_to_text(lookup->name, 0, &source);
  pthread_mutex_lock(&lookup->lock);
  lookup->is_done = true;
  lookup->found = found;
  if (found) lookup->source = source;
  pthread_cond_signal(&lookup->done);
  lookup_unref(lookup);
  return NULL;
}

/* getaddrinfo() cannot be cancelled: after LOOKUP_S its thread is left behind. */
static bool source_to_name(const char *name, struct sockaddr_storage *source_p) {
  struct lookup *const lookup = calloc(1, sizeof *lookup);
  pthread_t thread;
  struct timespec end;
  if (!lookup || strlen(name) >= sizeof lookup->name) {
    free(lookup);
    return false;
  }
  strcpy(lookup->name, name);
  lookup->refs = 2;
  pthread_mutex_init(&lookup->lock, NULL);
  pthread_cond_init(&lookup->done, NULL);
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += LOOKUP_S;
  if (pthread_create(&thread, NULL, lookup_run, lookup) == 0)
    pthread_detach(thread);
  else
    lookup->is_done = lookup->refs-- > 0;
  pthread_mutex_lock(&lookup->lock);
  while (!lookup->is_done && pthread_cond_timedwait(&lookup->done, &lookup->lock, &end) == 0) {
  }
  const bool found = lookup->found;
  if (found) *source_p = lookup->source;
  lookup_unref(lookup);
  return found;
}

bool zps_route_source(const char *host, struct sockaddr_storage *source_p) {
  if (host && *host && (source_to_text(host, AI_NUMERICHOST, source_p) || source_to_name(host, source_p))) return true;
  /* Addresses of documentation, which only the default route leads to. */
  return source_to_text("192.0.2.1", AI_NUMERICHOST, source_p) ||
         source_to_text("2001:db8::1", AI_NUMERICHOST, source_p);
}
