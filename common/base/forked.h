/*
 * Sockets that a forked child closes. A child of fork() inherits them. While it has them open, no peer sees its
 * parent's connections end. A killed trainer would look alive as long as its data loader lives. close() in the child
 * leaves the parent's connection as it is.
 *
 * A socket is named by itself or, where another library owns it, by an address of its connection. A connection of such
 * a library that is still being set up while the process forks has no peer's address yet, and stays.
 *
 * The list also serves the parent: it looks after connections that another library made for us.
 *
 * From any thread. Works across fork() alone: a program that is executed gives up what is FD_CLOEXEC.
 */
#ifndef ZPS_BASE_FORKED_H
#define ZPS_BASE_FORKED_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum zps_forked_what { ZPS_FORKED_SOCKET, ZPS_FORKED_LOCAL, ZPS_FORKED_PEER };

/* Embedded in the object that knows the socket; zero at first. */
struct zps_forked {
  struct zps_forked *prev, *next; /* of those alike in hash */
  bool is_listed;
  enum zps_forked_what what;
  dev_t dev; /* SOCKET: no two open sockets have both alike */
  ino_t ino;
  in_port_t port; /* LOCAL, PEER */
  struct in6_addr ip;
};

/* A child closes this socket; nothing where `fd` is none. */
void zps_forked_close_socket(struct zps_forked *forked, int fd);
/* A child closes the sockets that are bound to this address (of any interface: those bound to its port), or connected
 * to it. `addr` is a sockaddr_in or sockaddr_in6 of `len` bytes; nothing for other addresses. */
void zps_forked_close_local(struct zps_forked *forked, const void *addr, size_t len);
void zps_forked_close_peer(struct zps_forked *forked, const void *addr, size_t len);
/* Has the kernel ask the peers of listed TCP connections for a sign of life, after each `idle_s` seconds without
 * traffic, so that no firewall forgets an idle one; and end those that get no answer for `silent_s`. Connections with
 * SO_KEEPALIVE stay as they are. */
void zps_forked_keep_alive(unsigned idle_s, unsigned silent_s);
/* Ends this process's TCP connections to the listed addresses `peers`, those that it is making, and those from their
 * hosts to `local`, an address that is listed. Whoever uses them sees them end. The kernel repeats a lost request for a
 * connection ever more rarely, up to a minute apart: one that is made anew goes out at once. Takes
 * milliseconds where the process has thousands of open files, however few the peers are. */
void zps_forked_end_peers(const struct zps_forked *local, const struct zps_forked *const *peers, unsigned n_peers);
/* Nothing where it is not listed, as in a child, whose list is empty. */
void zps_forked_forget(struct zps_forked *forked);

#endif
