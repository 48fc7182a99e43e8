/* A second process with an endpoint, to be stopped and killed. It is this program again, started with --child. */
#ifndef ZPS_TESTS_CONFORM_CHILD_H
#define ZPS_TESTS_CONFORM_CHILD_H

#include "tests/conform/conform.h"

enum { CHILD_MEM_LEN = 64 << 20, CHILD_SEED = 3 };

/* The messages of the two processes over a socket pair. */
struct child_hello {
  uint8_t addr[ZPS_NET_ADDR_MAX];
  size_t addr_len;
  uint64_t mem_addr, mem_key;
};

struct child {
  pid_t pid;
  int control_fd;
  struct child_hello hello;
  struct zps_net_peer *peer; /* of the node that it was started for */
};

/* Starts a child that knows `node` and echoes what it gets. */
void conform_child_start(struct child *child, struct conform_node *node);
/* Sends `signal` and waits until it has taken effect: stopped, or dead. */
void conform_child_signal(struct child *child, int signal);
/* Lets the child end by itself and checks that it did. */
void conform_child_end(struct child *child);

#endif
