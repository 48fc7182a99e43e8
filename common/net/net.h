/*
 * The fabric: reliable datagrams of up to max_msg bytes between peers, and one-sided reads of registered memory.
 *
 * Backends: libfabric (ofi/), TLS over TCP (tls/), and a wrapper that injects faults and checks the rules below over
 * any other (fault.c). Test programs have one in process, too (tests/support/fabrics/loop.h).
 *
 * Threads: one thread, the progress thread, makes every call on a `struct zps_net` and on what belongs to it
 * (FI_THREAD_DOMAIN). Only zps_net_wake() may come from elsewhere. Callbacks run inside zps_net_progress().
 *
 * Death: the fabric may never report it. The control plane decides, and calls zps_net_peer_evict(). Then nothing more
 * is posted to the peer, and its queued sends are dropped. The next zps_net_progress() ends its reads in flight with
 * ZPS_ERR_PEER_LOST. Their local buffers stay in quarantine until the fabric is done with them: zps_net_read.release
 * tells.
 */
#ifndef ZPS_NET_NET_H
#define ZPS_NET_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define ZPS_NET_ADDR_MAX 256u
#define ZPS_NET_WHY_MAX 160u
#define ZPS_NET_RAILS_MAX 4u
#define ZPS_NET_CONNECTIONS_MAX 32u
#define ZPS_NET_MSG_MAX 16384u /* net, ofi_rxm, shm, sockets send this eagerly; a rendezvous may never end */

#define ZPS_NET_AUTH_KEY_MAX 64u
#define ZPS_NET_CONNECT_TIMEOUT_MS 10000u /* connect_timeout_ms of daemons and trainers */
#define ZPS_NET_SENDS_MAX 64u             /* messages to one peer that the fabric takes at a time */

struct zps_net;
struct zps_net_peer;
struct zps_tls;

struct zps_net_config {
  const char *provider;  /* "auto" or a name of the preference list; prefix "fault+" wraps it */
  const char *interface; /* "eth0,ib0": cards, which the processes of a host take in this order; "^docker0,lo": all but
                          * these; NULL: any. Names of interfaces and cards, and PCI addresses */
  const char *subnet;    /* "10.0.0.0/8,fd00::/8": the address must be inside; NULL: any */
  const char *toward; /* a host, the coordinator's: with neither of both, the interface on the way there comes first; ""
                       * or NULL: the default route's */
  const char *gpu;    /* the nearest card is for its PCI address; "" or NULL: for the process's processors */
  unsigned rails;     /* cards that reads come over, at most; 0: one */
  unsigned connections; /* tls: to each peer that this end connects to; 0: one */
  unsigned rail;        /* of these, the one that an endpoint of rails.c has; else 0 */
  unsigned number;      /* of the process among those of its host, 0 too where it is not known: equal cards are dealt */
  uint16_t port_low, port_high; /* listening ports of tcp-like providers; 0: any */
  size_t max_msg;               /* largest message, both ways */
  unsigned n_recv;              /* receives posted at start, shared by all peers; zps_net_reserve() adds more */
  unsigned spin_us;             /* how long zps_net_wait() spins before it blocks; 0 when cores are oversubscribed */
  unsigned keepalive_ms;        /* TCP connections that carry nothing for so long carry an empty packet; 0: none does */
  unsigned connect_timeout_ms;  /* a send that the fabric will not take for so long fails the peer */
  bool encrypt;        /* nobody else can read what goes over the fabric: "auto" takes tls, others are refused */
  struct zps_tls *tls; /* of provider tls: this process's certificate; NULL: none. The fabric takes a reference */
  bool dials; /* tls: this end connects to servers, and they answer over these connections. A rank, maybe behind NAT */
  bool bbr;   /* tls: take the kernel's congestion control bbr, where it has it */
  const char *auth_key_file;   /* holds the fabric's authorization key, in hexadecimal digits; NULL: there is none */
  uint64_t memory_limit_bytes; /* the most that is registered: where the fabric pins, this must be allowed */
  bool device_memory;          /* take a fabric's offer to reach device memory, where it makes one */
  const char *fault; /* "fault+": rules such as "seed=1,again=0.1,delay=0.05:3ms,drop=0.01,kill=200"; see fault.h */
};

struct zps_net_handler {
  void *ctx;
  /* A whole message; `data` is borrowed during the call. The sender is in the message's own header. Cards may complete
   * messages in another order than they were sent in; providers over TCP do not. */
  void (*on_message)(void *ctx, const void *data, size_t len);
  /* Sends to `peer` fail; `code` and `text` give the reason. Called once until zps_net_peer_renew(); the owner renews
   * or evicts the peer. */
  void (*on_peer_error)(void *ctx, struct zps_net_peer *peer, zps_err_t code, const char *text);
};

struct zps_net_info {
  char provider[64]; /* libfabric's name of it */
  char protocol[48];
  char addr_format[32];
  char domain[64];                /* interface or device */
  char place[64];                 /* its PCI address and NUMA node, as far as known */
  char why[ZPS_NET_WHY_MAX];      /* the process has this card */
  char address[96];               /* printable */
  uint8_t addr[ZPS_NET_ADDR_MAX]; /* opaque, for the peers' zps_net_peer_add() */
  size_t addr_len;
  size_t max_msg;      /* bytes of one message, as configured */
  size_t max_read;     /* bytes of one read */
  uint64_t link_bits;  /* of a card that moves bytes by itself, a second; 0: not known, or the processor moves them */
  unsigned n_rails;    /* cards that reads come over; 0: one */
  bool weak_keys;      /* of memory: the provider chooses them, or they are short, so that strangers may guess them */
  bool registers_free; /* registering memory is a note in a table: no page is pinned, no card is told */
  bool offers;         /* payloads may come ahead of their reads (zps_net_offer()) */
  bool ends_reads;     /* zps_net_shut() ends what peers read of this process's memory, too */
};

/* Device memory that a fabric is to reach, and how. */
struct zps_net_device {
  int index;       /* of the GPU */
  int dmabuf_fd;   /* the memory's dmabuf, borrowed; -1: memory is given by its address */
  uint64_t offset; /* in the dmabuf */
};

/* The keys of memory on the rails of its owner beside the first one. */
struct zps_net_keys {
  uint64_t key[ZPS_NET_RAILS_MAX - 1];
  uint8_t n;
};

/* Registered memory. A peer needs `addr` and `key` to read it from its first byte on; and `more`, over other rails. A
 * rail that refuses the memory, and those after it, have no key in `more`: no read from it or into it uses them. */
struct zps_net_mem {
  void *base;
  size_t len;
  uint64_t addr;
  uint64_t key;
  struct zps_net_keys more;
  void *desc[ZPS_NET_RAILS_MAX]; /* the fabric's local descriptors */
  void *handle;                  /* the backend's; not NULL while registered */
};

/* One read in flight; embedded in the caller's object, which must not move or die until `done` (or, where `done` said
 * ZPS_ERR_PEER_LOST, `release`) was called. */
struct zps_net_read {
  void *local;
  const struct zps_net_mem *mem; /* registration that contains [local, local + len) */
  size_t len;                    /* 1..max_read */
  uint64_t addr, key;            /* at the peer */
  struct zps_net_keys more;
  uint8_t rail;    /* One of zps_net_peer_rails(), with a key in `more`. */
  bool is_offered; /* set by zps_net_read(): the bytes come without a question, so they say nothing of a round trip */
  size_t here;     /* set by zps_net_read(): of offered bytes, those that had come by then */
  void (*done)(struct zps_net_read *read, zps_err_t code);
  /* May be NULL. Called once after a `done` with ZPS_ERR_PEER_LOST, at once or much later, and after no other: the
   * fabric is through with the buffer, and this struct is the caller's again. */
  void (*release)(struct zps_net_read *read);
  void *ctx;
  struct zps_net_read *next, *prev;                              /* the backend's */
  struct zps_net_peer *peer;                                     /* the backend's */
  void (*owner_done)(struct zps_net_read *read, zps_err_t code); /* the backend's */
  void *op;                                                      /* the backend's */
  uint8_t state;                                                 /* the backend's */
};

/* ZPS_ERR_INVALID: gradients are to be encrypted, and the provider does not encrypt. zps_net_open() checks it, too. */
zps_err_t zps_net_check_encrypt(const struct zps_net_config *config, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_net_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                       struct zps_net **net_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Calls back every outstanding read with ZPS_ERR_CLOSED (and releases those in quarantine), then frees; those callbacks
 * may still evict peers and release memory, and their sends and reads are refused with ZPS_ERR_CLOSED. All peers and
 * registrations are gone afterwards. Never blocks for long: an object that a provider will not let go is logged and
 * leaked. NULL is allowed. */
void zps_net_close(struct zps_net *net);
/* Ends all that goes on over the fabric, for good: connections end, and when it returns, nothing is read from this
 * process's memory by the fabric any more (where info.ends_reads), nor written to it, also where a peer's read was
 * being answered. What is outstanding here ends by the next zps_net_progress(): every peer fails (on_peer_error), reads
 * are called back with ZPS_ERR_PEER_LOST and released. New peers and registrations are refused with ZPS_ERR_CLOSED; the
 * rest goes on as with peers that are lost. Not from a callback. Again: nothing to do. */
void zps_net_shut(struct zps_net *net);
const struct zps_net_info *zps_net_info(const struct zps_net *net);

/* Posts `count` more receives (negative: that many fewer again): as many as the credits granted to a peer need. */
zps_err_t zps_net_reserve(struct zps_net *net, int count) ZPS_MUSTCHECK;

zps_err_t zps_net_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx, struct zps_net_peer **peer_p,
                           struct zps_error *error) ZPS_MUSTCHECK;
void *zps_net_peer_ctx(const struct zps_net_peer *peer);
/* The rails that reads from the peer may come over, as bits; the first one is always among them. A rail that fails is
 * out for a while; its reads end with ZPS_ERR_PEER_LOST, and may be tried again over another. */
unsigned zps_net_peer_rails(const struct zps_net_peer *peer);
/* Connections that reads from the peer come over, each over one of them; at least 1. If a further one is lost, its
 * reads end with ZPS_ERR_PEER_LOST, and may be tried again. */
unsigned zps_net_peer_connections(const struct zps_net_peer *peer);
/* See "Death" above; also how a peer that leaves in peace is removed. The handle is invalid afterwards. NULL allowed.
 */
void zps_net_peer_evict(struct zps_net_peer *peer);
/* After on_peer_error: the peer is tried again, over a new connection. What was sent before may have come or not; reads
 * that were in flight still end with ZPS_ERR_PEER_LOST. Again: nothing to do. */
void zps_net_peer_renew(struct zps_net_peer *peer);
/* Ends the connections with the peer, and with others that cannot be told from them: on_peer_error follows where they
 * were in use. The fabric does it in a later zps_net_progress(), for all peers at once, and for 5% of the time at most.
 * A fabric without connections does nothing. */
void zps_net_peer_cut(struct zps_net_peer *peer);

/* Registers [base, base+len) for being read by peers and as target of our reads. Not for the data path: registrations
 * are cached in slabs (slab.h). */
zps_err_t zps_net_mem_register(struct zps_net *net, void *base, size_t len, struct zps_net_mem *mem_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
/* Registers device memory without touching it. ZPS_ERR_UNSUPPORTED where the fabric was not opened for it. */
zps_err_t zps_net_mem_register_device(struct zps_net *net, void *base_on_device, size_t len,
                                      const struct zps_net_device *device, struct zps_net_mem *mem_p,
                                      struct zps_error *error) ZPS_MUSTCHECK;
void zps_net_mem_release(struct zps_net *net, struct zps_net_mem *mem);

/* Sends a copy of `data` (len <= max_msg); messages leave in order per peer. Queued when the fabric pushes back.
 * ZPS_ERR_AGAIN: even the queue is full, or there is no memory for it. Then the next zps_net_wait() is short, and the
 * zps_net_progress() after it counts one event more, so a loop that acts on events tries again. ZPS_ERR_PEER_LOST after
 * on_peer_error. */
zps_err_t zps_net_send(struct zps_net_peer *peer, const void *data, size_t len) ZPS_MUSTCHECK;
/* The number of messages to the peer that zps_net_send() took and the fabric is not through with: evicting the peer
 * would lose them. */
unsigned zps_net_unsent(const struct zps_net_peer *peer);
/* The peer will read this registered memory, [addr, addr + len), after the next message to it. On a long link the
 * fabric may send some bytes at once. Call it for each announcement of memory, also of bytes that were offered before,
 * when the bytes are complete. */
void zps_net_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len);
/* Bytes from `addr` on that the peer has offered and sends without a question. Reads of an offer go from its beginning
 * to its end, without a gap. */
uint64_t zps_net_offered(const struct zps_net_peer *peer, uint64_t addr, uint64_t key);
/* Bytes that came before a read, of some peers together. At the limit older offers give way, and reads are asked for.
 */
struct zps_net_keep {
  uint64_t bytes, most_bytes; /* most_bytes 0: no limit */
};
#define ZPS_NET_KEEP_PART 16u /* of a memory limit, this part may be kept bytes */
/* The peer's kept bytes count there, too, until it is evicted. */
void zps_net_peer_keep(struct zps_net_peer *peer, struct zps_net_keep *keep);
/* Starts a read; `done` is called exactly once, from progress (or close), also on failure. Returns
 * an error only for arguments that cannot be right; then `done` is not called. */
zps_err_t zps_net_read(struct zps_net_peer *peer, struct zps_net_read *read) ZPS_MUSTCHECK;

/* Handles the events that are ready, without blocking. Returns their number. */
unsigned zps_net_progress(struct zps_net *net);
/* Blocks until there may be something to do, zps_net_wake() is called, or `timeout_ns` has passed. */
void zps_net_wait(struct zps_net *net, uint64_t timeout_ns);
/* Whether peers may be reading this process's memory. A fabric without a descriptor may need this process for that: it
 * then naps briefly. */
void zps_net_attend(struct zps_net *net, bool is_read);
/* From any thread: makes the current or next zps_net_wait() return, whatever zps_net_progress() does before it. */
void zps_net_wake(struct zps_net *net);

/* Bytes handed to and taken from the fabric since open, frames and reads (a read counts where it lands). */
struct zps_net_counters {
  uint64_t msgs_sent, msgs_received, msg_bytes_sent, msg_bytes_received;
  uint64_t reads, read_bytes;
  uint64_t mem_registered_bytes;
  uint64_t again;         /* times the fabric pushed back */
  uint64_t quarantined;   /* abandoned reads with buffers that the fabric still holds */
  uint64_t rails_lost;    /* of peers, beside their first ones */
  uint64_t rails_out;     /* rails of peers that are lost now, or are lost again and again */
  uint64_t rails_refused; /* registrations held now that a card beside the first one refused */
  uint64_t unmatched;     /* messages that found no receive posted; only the in-process backend can tell */
};
const struct zps_net_counters *zps_net_counters(const struct zps_net *net);

/* One line per usable provider/domain/address of this host, with its place, for --list-providers and for error texts.
 */
void zps_net_list(const struct zps_net_config *config, void (*line)(void *ctx, const char *text), void *ctx);

#endif
