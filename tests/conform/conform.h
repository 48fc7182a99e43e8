/*
 * The conformance suite of the fabric: the promises of net.h, checked on every backend and provider. Each program is a
 * `struct conform_target` and this suite.
 */
#ifndef ZPS_TESTS_CONFORM_H
#define ZPS_TESTS_CONFORM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/net.h"
#include "tests/support/patience.h"

struct conform_target {
  const char *provider;
  const char *interface;
  const char *fault;
  unsigned rails;          /* endpoints that are one; 0: one */
  unsigned connections;    /* of a peer; 0: one */
  bool wakes_each_ms;      /* a wait ends each millisecond, so an idle endpoint is busier */
  bool in_process;         /* reaches no other process */
  bool shares_regions;     /* using an endpoint of this process that is closed crashes in the provider */
  bool dies_with_peer;     /* an endpoint crashes when a peer of its process is closed with operations outstanding */
  bool silent_death;       /* a read from a process that dies may stay without a completion */
  bool trusts_keys;        /* a read with a wrong key may succeed */
  bool loses_wrong_keys;   /* a read with a wrong key never completes */
  bool answers_reads;      /* memory that is read is sent by the progress of its owner, piece by piece */
  bool leaks_when_stuck;   /* leaves an endpoint with reads pending at a hung peer open, with a warning */
  bool reorders;           /* messages may come before others that were sent earlier */
  bool reads_need_no_peer; /* a card serves reads of a process that is stopped */
  bool must_be_there;      /* it is part of the tests, so that its absence is a failure */
  bool dials;              /* a pair's second end, and the child, connect to the others, and nobody to them */
  void (*opened)(struct zps_net *net); /* sets an endpoint up; NULL: nothing to do */
  bool offers;                         /* bytes that are offered come ahead */
  struct zps_tls *tls;                 /* the certificate of all ends; NULL: the fabric needs none */
  unsigned slowness;                   /* divides the number of iterations; 0 is 1 */
};

enum { CONFORM_MAX_MSG = 4096 };
/* What waits for nobody is over before this, on any machine; what waits in vain takes longer. */
#define CONFORM_SOON_NS (60 * ZPS_NS_PER_S)
#define CONFORM_NEVER_NS (PATIENCE_NEVER_MS * ZPS_NS_PER_MS)

/* An endpoint and the events that happened to it. */
struct conform_node {
  struct zps_net *net;
  unsigned n_messages;
  void (*on_message)(struct conform_node *node, const void *data, size_t len); /* may be NULL */
  void *ctx;
  unsigned n_errors;
  struct zps_net_peer *failed;
  zps_err_t error;
};

struct conform_pair {
  struct conform_node a, b;
  struct zps_net_peer *a_to_b, *b_to_a;
};

struct conform_read {
  struct zps_net_read read;
  unsigned n_done, n_released;
  zps_err_t code;
};

extern const struct conform_target *conform_target;

/* main() of a conformance program. */
int conform_main(int argc, char **argv, const struct conform_target *target);
int conform_child_main(int control_fd);
/* Lets the next `n` warnings pass; any other fails the test. */
void conform_allow_warnings(unsigned n);
unsigned conform_scale(unsigned iterations);

struct zps_net_config conform_config(void);
/* Of a pair's second end, and of the child, where the first one has `config`. */
struct zps_net_config conform_config_of_second(const struct zps_net_config *config);
void conform_node_open(struct conform_node *node, const struct zps_net_config *config);
void conform_node_close(struct conform_node *node);
struct zps_net_peer *conform_peer_add(struct conform_node *node, const struct conform_node *to);
/* Two endpoints that know each other. */
void conform_pair_open(struct conform_pair *pair, const struct zps_net_config *config);
void conform_pair_close(struct conform_pair *pair);

/* Progress on all nodes, and a short nap when there was none. */
void conform_step(struct conform_node *const *nodes, size_t n);
/* Does as zps_net_send(), but steps the nodes while there is back-pressure. */
void conform_send(struct zps_net_peer *peer, const void *data, size_t len, struct conform_node *const *nodes, size_t n);
/* Sending fails, since the peer is known to be lost: at once, except with faults that come by chance. */
void conform_expect_lost(struct zps_net_peer *peer);
void conform_read_start(struct conform_read *read, struct zps_net_peer *peer, void *local,
                        const struct zps_net_mem *mem, size_t len, uint64_t addr, uint64_t key);
/* Fails when waiting for nothing takes more of the processor than a provider of this kind must. */
void conform_assert_idle(struct conform_node *node);
struct zps_net_mem conform_register(struct conform_node *node, void *base, size_t len);
/* Byte `i` of everything that the suite sends or lets others read. */
static inline uint8_t conform_byte(uint64_t seed, size_t i) {
  return (uint8_t)((seed * 37 + i * 7 + (i >> 8)) & 0xff);
}
void conform_fill(void *to, uint64_t seed, size_t len);
bool conform_check(const void *data, uint64_t seed, size_t offset, size_t len);

#define CONFORM_NODES(...)                     \
  (struct conform_node *const[]){__VA_ARGS__}, \
      sizeof((struct conform_node *[]){__VA_ARGS__}) / sizeof(struct conform_node *)

#define conform_until(condition, ...)                                              \
  do {                                                                             \
    struct patience patience_ = {0};                                               \
    while (!(condition)) {                                                         \
      if (patience_is_over(&patience_)) fail_msg("never reached: %s", #condition); \
      conform_step(CONFORM_NODES(__VA_ARGS__));                                    \
    }                                                                              \
  } while (0)

/* name, and the target's traits that it needs */
#define CONFORM_TESTS(X)               \
  X(open_info, NOTHING)                \
  X(open_refusals, NOTHING)            \
  X(list, NOTHING)                     \
  X(keys_are_random, NOTHING)          \
  X(bad_arguments, NOTHING)            \
  X(peer_bad_address, NOTHING)         \
  X(message_sizes, NOTHING)            \
  X(message_large, NOTHING)            \
  X(message_stream, NOTHING)           \
  X(message_both_ways, NOTHING)        \
  X(message_reserve, NOTHING)          \
  X(message_to_self, NOTHING)          \
  X(read_sizes, NOTHING)               \
  X(read_many, NOTHING)                \
  X(read_wrong_key, NOTHING)           \
  X(read_and_messages, NOTHING)        \
  X(evict_reads, NOTHING)              \
  X(evict_sends, NOTHING)              \
  X(evict_and_return, NOTHING)         \
  X(dead_address, SEPARATION)          \
  X(shut_while_read, SEPARATION)       \
  X(shut_outstanding, SEPARATION)      \
  X(close_outstanding, OUTLIVING)      \
  X(close_idle, NOTHING)               \
  X(wake_thread, NOTHING)              \
  X(wake_early, NOTHING)               \
  X(wait_timeout, NOTHING)             \
  X(wait_spins, NOTHING)               \
  X(idle_cpu, NOTHING)                 \
  X(process_echo, PROCESSES)           \
  X(process_killed_reading, PROCESSES) \
  X(process_killed_sending, PROCESSES) \
  X(process_hung_close, PROCESSES)     \
  X(process_dead_idle_cpu, PROCESSES)  \
  X(process_rejoin, PROCESSES)

#define X(name, needs) void conform_##name(void **state);
CONFORM_TESTS(X)
#undef X

#endif
