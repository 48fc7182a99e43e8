/* Shared by the files of the fault injector: fault.c (the endpoint, its peers and messages), fault_links.c (messages
 * out of order, connections cut) and fault_read.c (memory and reads). */
#ifndef ZPS_NET_FAULT_IMPL_H
#define ZPS_NET_FAULT_IMPL_H

#include <pthread.h>

#include "common/base/rng.h"
#include "common/net/backend.h"
#include "common/net/fault.h"

/* A message that is held back. */
struct delayed {
  struct delayed *next;
  uint64_t due_ns;
  unsigned n_ahead; /* later messages that may still overtake it; of held ones */
  size_t len;
  uint8_t data[];
};

struct fault_peer {
  struct zps_net_peer peer;
  struct zps_net_peer *inner;
  struct fault_peer *next;
  struct delayed *queue, **queue_tail;
  uint64_t last_due_ns;
  unsigned n_queue;
  struct delayed *held; /* to be overtaken */
  unsigned n_held;
  uint64_t claimed_to_ns; /* a stranger has the connection until then; 0: none has */
  bool stalls;            /* reads from it do not end */
};

struct fault_mem {
  struct fault_mem *next;
  struct zps_net_mem inner;
  void *base; /* the owner's address */
  void *view; /* of device memory: the wrapped backend's address, mapped from its dmabuf; else NULL */
  size_t view_bytes;
  unsigned reads;
};

struct fault;

enum op_state {
  OP_FLYING,
  OP_LANDED,      /* done() comes at due_ns */
  OP_LOST,        /* its peer was evicted; done() comes with the next progress */
  OP_QUARANTINED, /* done() was called; release() comes at due_ns, when the wrapped backend has let go as well */
};

struct fault_op {
  struct fault *fault;
  struct fault_op *next;
  struct zps_net_read inner;
  struct zps_net_read *outer;
  struct zps_net_read copy; /* of *outer as it must stay */
  struct fault_mem *mem;
  struct fault_peer *peer; /* NULL once evicted */
  enum op_state state;
  bool inner_busy; /* the wrapped backend holds `inner` */
  uint64_t due_ns;
  zps_err_t code;
};

struct fault {
  struct zps_net net;
  struct zps_net *inner;
  struct zps_fault_rules rules;
  struct zps_rng rng;
  struct fault_peer *peers;
  struct fault_mem *mems;
  struct fault_op *ops, **ops_tail; /* oldest first */
  uint64_t n_posted, n_added, own_again;
  uint64_t next_cut_ns; /* 0: not decided yet */
  bool silent, pushed_back, in_progress, shut, closing, owned;
  pthread_t owner;
};

static inline struct fault *to_fault(struct zps_net *net) {
  return (struct fault *)net;
}
static inline struct fault_peer *to_peer(struct zps_net_peer *peer) {
  return (struct fault_peer *)peer;
}

/* fault.c */

void zps_fault_violation(const char *what) __attribute__((noreturn));
void zps_fault_check_thread(const struct fault *fault);
void zps_fault_check_callback(const struct fault *fault);
/* The time to hold back the next message or completion; mostly 0. */
uint64_t zps_fault_delay_ns(struct fault *fault);
/* Counts a send or read; true from the one on that the endpoint does not survive. */
bool zps_fault_count_posted(struct fault *fault);
void zps_fault_copy_counters(struct fault *fault);
bool zps_fault_chance(struct fault *fault, double probability);
/* A copy of a message, to be freed; NULL without memory. */
struct delayed *zps_fault_delayed_create(const void *data, size_t len, uint64_t due_ns);
/* Sends a message, or lets it wait in the queue of the delayed ones. */
zps_err_t zps_fault_forward(struct fault *fault, struct fault_peer *peer, const void *data, size_t len);
/* Forgets the messages that wait. */
void zps_fault_peer_clear(struct fault_peer *peer);

/* fault_links.c */

/* Sends a message, or holds it back for later ones to overtake. */
zps_err_t zps_fault_order(struct fault *fault, struct fault_peer *peer, const void *data, size_t len);
/* Sends the held messages that are due. Returns their number. */
unsigned zps_fault_held_send(struct fault *fault, uint64_t now_ns);
/* After an operation with the peer: cuts its connection by dice. */
void zps_fault_cut_by_chance(struct fault *fault, struct fault_peer *peer);
/* Cuts a connection when it is time. */
void zps_fault_cut_by_time(struct fault *fault, uint64_t now_ns);
/* Strangers leave whose time is over, and what they had is lost. */
void zps_fault_claims_end(struct fault *fault, uint64_t now_ns);
uint64_t zps_fault_links_next_due_ns(const struct fault *fault);

/* fault_read.c */

zps_err_t zps_fault_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                 struct zps_net_mem *mem_p, struct zps_error *error);
void zps_fault_mem_release(struct zps_net *net, struct zps_net_mem *mem);
zps_err_t zps_fault_read(struct zps_net_peer *net_peer, struct zps_net_read *read);
/* Calls back the operations that are due. */
unsigned zps_fault_reads_complete(struct fault *fault, uint64_t now_ns);
uint64_t zps_fault_reads_next_due_ns(const struct fault *fault);
void zps_fault_reads_evict(struct fault *fault, const struct fault_peer *peer);
/* The peer's connection is cut: reads that the wrapped backend has not got are lost. */
void zps_fault_reads_cut(struct fault *fault, const struct fault_peer *peer);
/* The wrapped backend is shut: what only the wrapper held back is lost, and nothing is held any more. */
void zps_fault_reads_shut(struct fault *fault);
/* Before the wrapped backend is closed: ends the operations that only the wrapper held back, while callbacks can still
 * use the backend. */
void zps_fault_reads_close(struct fault *fault);
/* Afterwards: ends the operations that the backend would not let go, and frees everything. */
void zps_fault_reads_fini(struct fault *fault);

#endif
