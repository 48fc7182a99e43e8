/* Claims of another's port: a connection says that it comes from the fabric address of a member, which may be connected
 * already. libfabric then replaces the member's connection by the stranger's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/stranger.h"

enum { KEPT = 64, PACE_US = 12000, ANSWER_S = 2, REQUEST_BYTES = 40, TYPE_AT = 1, TYPE_ACCEPTED = 1 };

/* A request as libfabric's net provider sends it: a header, and the port by which the sender is known. */
static bool send_request(int fd, uint16_t port, uint32_t number) {
  uint8_t request[REQUEST_BYTES] = {3, 0, 0, 8, [24] = 1};
  request[34] = (uint8_t)(port >> 8);
  request[35] = (uint8_t)port;
  for (unsigned i = 0; i < 4; i++) request[36 + i] = (uint8_t)(number >> (24 - 8 * i));
  return send(fd, request, sizeof request, MSG_NOSIGNAL) == (ssize_t)sizeof request;
}

/* Whether the member answers: that it accepts, or that it does not. */
static bool is_answered(struct stranger *stranger, int fd) {
  uint8_t answer[REQUEST_BYTES];
  if (recv(fd, answer, sizeof answer, 0) <= TYPE_AT) return false;
  if (answer[TYPE_AT] == TYPE_ACCEPTED) stranger->n_done++;
  return true;
}

static int claim(struct stranger *stranger, uint16_t port, unsigned long *answered_p) {
  const struct timeval patience = {.tv_sec = ANSWER_S};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  stranger->n_tried++;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0 &&
      connect(fd, (const struct sockaddr *)&stranger->to, sizeof stranger->to) == 0 &&
      send_request(fd, port, (uint32_t)stranger->n_tried)) {
    *answered_p += is_answered(stranger, fd);
    return fd;
  }
  if (fd >= 0) close(fd);
  stranger->n_lost++;
  return -1;
}

/* What a member has sent to the stranger instead. */
static size_t overhear(int fd) {
  uint8_t bytes[4096];
  size_t heard = 0;
  for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;) heard += (size_t)n;
  return heard;
}

int stranger_claims(struct stranger *stranger, unsigned long n, char **ports, int n_ports) {
  int kept[KEPT];
  size_t heard = 0;
  unsigned long answered = 0;
  memset(kept, -1, sizeof kept);
  if (n_ports == 0) return stranger_give_up("claim", "the ports of members are missing");
  while (answered < n && stranger->n_tried < 4 * n) {
    int *const slot = &kept[stranger->n_tried % KEPT];
    if (*slot >= 0) {
      heard += overhear(*slot);
      close(*slot);
    }
    const char *const port = ports[stranger->n_tried % (unsigned)n_ports];
    *slot = claim(stranger, (uint16_t)strtoul(port, NULL, 10), &answered);
    usleep(PACE_US);
  }
  for (unsigned i = 0; i < KEPT; i++)
    if (kept[i] >= 0) heard += overhear(kept[i]);
  printf("answered=%lu, heard=%zu bytes\n", answered, heard);
  return answered < n ? 2 : 0;
}
