/* Shared by the files of the libfabric backend. Everything runs on the progress thread, but for `wake_fd`. */
#ifndef ZPS_NET_OFI_IMPL_H
#define ZPS_NET_OFI_IMPL_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/base/forked.h"
#include "common/net/backend.h"

#define OFI_TAG 1u
#define OFI_SENDS_PER_PEER ZPS_NET_SENDS_MAX /* send buffers that one peer may hold, queued or at the fabric */
#define OFI_CQ_BATCH 32
#define OFI_RETRY_WAIT_NS (2 * 1000000ull) /* a connection that comes up does not wake the completion queue */

/* The completion queue's descriptor of net 1.16 to tcp 1.18.0 stays readable after a completion, and fi_trywait() does
 * not quiet it. fi_wait() on a wait set does; later headers and providers need and have none of this. */
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION <= 18
#define OFI_WAIT_SETS 1
#endif

/* A fabric with device memory must make no CUDA calls of its own. Earlier headers have no option that forbids them. */
#define OFI_FORBIDS_CUDA (FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 18)

struct ofi_net;
struct ofi_peer;

enum ofi_op_kind { OFI_OP_RECV, OFI_OP_SEND, OFI_OP_READ };

/* An operation as the fabric knows it. Outlives peer and read for as long as the fabric holds it. */
struct ofi_op {
  struct fi_context2 context; /* the provider's scratch space; first, so that its address is the op's */
  STAILQ_ENTRY(ofi_op) link;  /* in the pool, or in the queue where it waits to be posted */
  struct ofi_peer *peer;
  struct zps_net_read *read;
  void *desc;
  uint8_t *buffer;
  size_t len;
  enum ofi_op_kind kind;
  unsigned life; /* of the peer, when the fabric took it */
};
STAILQ_HEAD(ofi_op_queue, ofi_op);

/* Operations of one kind with their buffers, in blocks that are freed together. */
struct ofi_pool {
  enum ofi_op_kind kind;
  size_t buffer_size; /* 0: operations without a buffer */
  size_t n_ops;
  struct ofi_op_queue free;
  SLIST_HEAD(, ofi_block) blocks;
};

/* An entry of the address vector. Peers that come back at the same address share it. */
struct ofi_addr {
  SLIST_ENTRY(ofi_addr) link;
  fi_addr_t fi_addr;
  unsigned refs;
  size_t len;
  uint8_t bytes[ZPS_NET_ADDR_MAX];
  char text[96];
  struct zps_forked forked; /* connections that we made */
  bool is_to_end;           /* its connections are to be ended */
};

enum ofi_read_state {
  OFI_READ_QUEUED = 1,     /* in the peer's `queued`: the fabric would not take it */
  OFI_READ_POSTED,         /* in the peer's `posted` */
  OFI_READ_LOST,           /* in `failed`: to be called back with ZPS_ERR_PEER_LOST, then released */
  OFI_READ_LOST_IN_FLIGHT, /* in `failed`: to be called back so, and the fabric still has it */
  OFI_READ_BROKEN,         /* in `failed`: to be called back with ZPS_ERR_FABRIC */
  OFI_READ_QUARANTINED,    /* in `quarantine`: called back, and the fabric still has it */
};

enum ofi_peer_state { OFI_PEER_LIVE, OFI_PEER_FAILED, OFI_PEER_EVICTED };

struct ofi_peer {
  struct zps_net_peer base;
  struct ofi_addr *addr;
  enum ofi_peer_state state;
  bool in_retry, in_errors;
  unsigned n_posted;         /* operations at the fabric: the peer is freed once evicted and at 0 */
  unsigned n_reads;          /* of them reads */
  unsigned n_sends;          /* send buffers held */
  unsigned life;             /* times that it was renewed */
  struct ofi_op_queue sends; /* waiting to be posted, in order */
  struct zps_net_read_list queued, posted;
  uint64_t blocked_since_ns;
  zps_err_t error;
  char error_text[200];
  LIST_ENTRY(ofi_peer) all_link;
  TAILQ_ENTRY(ofi_peer) retry_link;
  TAILQ_ENTRY(ofi_peer) error_link;
};

struct ofi_region {
  LIST_ENTRY(ofi_region) link;
  struct fid_mr *mr;
  size_t len;
};

struct ofi_net {
  struct zps_net base;
  uint64_t connect_timeout_ns, spin_ns;
  struct fi_info *info;
  struct fid_fabric *fabric;
  struct fid_domain *domain;
  struct fid_av *av;
  struct fid_wait *wait_set; /* of the queue, where its descriptor needs one; else NULL */
  struct fid_cq *cq;
  struct fid_ep *ep;
  int cq_fd; /* -1: the provider has none, so that waiting is polling */
  int wake_fd;
  struct zps_forked forked; /* connections that others made */
  _Atomic bool woken;
  bool shut; /* there is no endpoint any more, or (`leaks`) nobody drives it */
  bool leaks;
  bool closing;
  bool reads_only;                            /* messages go over another endpoint */
  bool keep_addrs;                            /* fi_av_remove() of a connected peer is not safe */
  bool is_cautious;                           /* the queue's descriptor may not wake the thread for everything */
  struct fi_cq_msg_entry stash[OFI_CQ_BATCH]; /* completions that waiting came across */
  size_t n_stash;
  bool cq_error; /* waiting came across an error entry */
  struct ofi_pool recvs, sends, reads;
  struct ofi_op_queue unposted; /* receives that the fabric did not take */
  size_t n_unposted;
  size_t recvs_posted, recvs_target;
  size_t n_live;        /* peers not evicted */
  size_t n_sends_stuck; /* send buffers held by evicted peers */
  size_t n_reads;       /* at the fabric, quarantined ones included */
  size_t n_sends;       /* at the fabric */
  bool is_read;         /* peers may be reading this process's memory */
  uint64_t retry_at_ns, last_event_ns;
  unsigned keepalive_s;        /* of connections; 0: none */
  uint64_t keepalive_at_ns;    /* when new connections are looked for; ZPS_NEVER: none can have come */
  uint64_t keepalive_pause_ns; /* before the next look, at least */
  uint64_t end_at_ns;          /* when connections are to be ended; ZPS_NEVER: none is */
  uint64_t may_end_at_ns;      /* when they may be, after the last time */
  LIST_HEAD(, ofi_region) regions;
  SLIST_HEAD(, ofi_addr) addrs;
  LIST_HEAD(, ofi_peer) peers;
  TAILQ_HEAD(, ofi_peer) retry, errors;
  struct zps_net_read_list failed;     /* called back by the next progress */
  struct zps_net_read_list quarantine; /* done, but not released */
};

static inline struct ofi_net *ofi_net_of(struct zps_net *net) {
  return (struct ofi_net *)net;
}
static inline struct ofi_peer *ofi_peer_of(struct zps_net_peer *peer) {
  return (struct ofi_peer *)peer;
}

/* discover.c */
/* What is asked for beside the least. A fabric may not offer it, or refuse it when it opens. */
struct ofi_asked {
  bool device_memory;
  bool long_queues;        /* of receives and sends, where the provider's own are short */
  size_t rx_size, tx_size; /* 0: the provider's own */
  size_t auth_key_len;     /* 0: none */
  uint8_t auth_key[ZPS_NET_AUTH_KEY_MAX];
};
/* The fabric to use, for the caller to fi_freeinfo(); the place of its card, and the reason for it. `asked` is left
 * with what the fabric offers. */
zps_err_t zps_ofi_discover(const struct zps_net_config *config, struct ofi_asked *asked, struct zps_net_info *net_info,
                           struct fi_info **info_p, struct zps_error *error) ZPS_MUSTCHECK;
/* A failed call of libfabric as an error: `rc` is its result, `info` (may be NULL) the fabric. */
zps_err_t zps_ofi_fail(struct zps_error *error, int rc, const char *call, const struct fi_info *info);
/* Does this errno say that the connection is gone, rather than that one operation was wrong? */
bool zps_ofi_errno_is_loss(int err);

/* endpoint.c */
/* Gives new connections keepalive, when a look at them is due. `has_happened`: there may be some, so a look becomes due
 * in 1 s. Among thousands of sockets a look takes milliseconds, and the pause is 500 times as long. */
void zps_ofi_keep_alive(struct ofi_net *net, uint64_t now_ns, bool has_happened);
/* Processor time of this thread. */
uint64_t zps_ofi_used_ns(void);

/* mem.c */
void zps_ofi_region_destroy(struct ofi_region *region);
/* Takes the memory away from the fabric; the region itself stays until it is destroyed. */
void zps_ofi_region_revoke(struct ofi_region *region);
zps_err_t zps_ofi_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                               struct zps_net_mem *mem_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_ofi_mem_release(struct zps_net *net, struct zps_net_mem *mem);
void zps_ofi_pool_init(struct ofi_pool *pool, enum ofi_op_kind kind, size_t buffer_size);
zps_err_t zps_ofi_pool_grow(struct ofi_net *net, struct ofi_pool *pool, size_t count) ZPS_MUSTCHECK;
/* NULL when the pool is empty. */
struct ofi_op *zps_ofi_pool_get(struct ofi_pool *pool);
void zps_ofi_pool_put(struct ofi_pool *pool, struct ofi_op *op);
void zps_ofi_pool_fini(struct ofi_pool *pool);

/* peer.c */
zps_err_t zps_ofi_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx, struct zps_net_peer **peer_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
void zps_ofi_peer_evict(struct zps_net_peer *peer);
void zps_ofi_peer_renew(struct zps_net_peer *peer);
void zps_ofi_peer_cut(struct zps_net_peer *peer);
/* Ends the connections of all peers that were cut, in one pass over the sockets. That takes milliseconds where there
 * are thousands of them, and the next pass waits 20 times as long. */
void zps_ofi_end_cut(struct ofi_net *net, uint64_t now_ns);
/* Marks the peer as lost, unless it is already; its owner is told by the next zps_ofi_peer_report(). */
void zps_ofi_peer_fail(struct ofi_peer *peer, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
unsigned zps_ofi_peer_report(struct ofi_net *net);
/* The fabric has none of the operations any more: all peers fail, and reads are lost. */
void zps_ofi_peers_shut(struct ofi_net *net);
/* An operation of the peer has left the fabric. */
void zps_ofi_peer_unref(struct ofi_peer *peer);
/* Frees a peer without looking at what it has outstanding. */
void zps_ofi_peer_free(struct ofi_peer *peer);

/* ops.c */
zps_err_t zps_ofi_reserve(struct zps_net *net, int count) ZPS_MUSTCHECK;
unsigned zps_ofi_unsent(const struct zps_net_peer *peer);
zps_err_t zps_ofi_send(struct zps_net_peer *peer, const void *data, size_t len) ZPS_MUSTCHECK;
zps_err_t zps_ofi_read(struct zps_net_peer *peer, struct zps_net_read *read) ZPS_MUSTCHECK;
/* done(), and release() where that follows. */
void zps_ofi_read_finish(struct zps_net_read *read, zps_err_t code);
/* Releases the reads in quarantine: the fabric is through with all. Returns their number. */
unsigned zps_ofi_quarantine_end(struct ofi_net *net);
/* Calls back the reads that failed without the fabric. Returns their number. */
unsigned zps_ofi_read_report(struct ofi_net *net);
/* Posts the operations that wait at peers because the fabric pushed back; fails peers at which it has pushed back for
 * too long. */
void zps_ofi_retry(struct ofi_net *net);
/* Gives a receive back to the fabric, or to the pool where there are more than were asked for. */
void zps_ofi_recv_repost(struct ofi_net *net, struct ofi_op *op);

/* cq.c */
unsigned zps_ofi_progress(struct zps_net *net);
/* fi_cq_read(), in which the fabric gets on. Providers tcp and net (2.1 at least) ask errno why a connection that they
 * accepted said too little: where it is EAGAIN still, of some call before, they go on without it and leave its
 * descriptor open for good, so that whoever scans ports takes all of them. */
ssize_t zps_ofi_cq_read(struct ofi_net *net, struct fi_cq_msg_entry *entries);
/* Handles completions alone. */
unsigned zps_ofi_cq_drain(struct ofi_net *net);

/* wait.c */
void zps_ofi_wait(struct zps_net *net, uint64_t timeout_ns);
void zps_ofi_attend(struct zps_net *net, bool is_read);
void zps_ofi_wake(struct zps_net *net);
bool zps_ofi_rest(struct zps_net *net, struct zps_net_rest *rest);
void zps_ofi_rested(struct zps_net *net);

#endif
