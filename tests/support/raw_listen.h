/* A listening TCP socket of this host, on a port that the system chooses. Include after cmocka. */
#ifndef ZPS_TESTS_RAW_LISTEN_H
#define ZPS_TESTS_RAW_LISTEN_H

#include <arpa/inet.h>
#include <stdio.h>

/* A port at which nobody listens, and that no other process gets until the socket is closed. Writes "127.0.0.1:PORT".
 */
static inline int raw_bind(char *address, size_t size) {
  struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof addr;
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
  snprintf(address, size, "127.0.0.1:%u", ntohs(addr.sin_port));
  return fd;
}

static inline int raw_listen(char *address, size_t size) {
  const int fd = raw_bind(address, size);
  assert_int_equal(listen(fd, 8), 0);
  return fd;
}

#endif
