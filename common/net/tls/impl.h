/* Shared by the files of the encrypted fabric. Everything runs on the progress thread, but for `wake_fd`. */
#ifndef ZPS_NET_TLS_IMPL_H
#define ZPS_NET_TLS_IMPL_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/base/clock.h"
#include "common/base/forked.h"
#include "common/net/backend.h"
#include "common/net/tls/frame.h"
#include "common/tls/tls.h"

#define TLSNET_OUT_MAX 16384u      /* bytes handed to TLS at a time: one record */
#define TLSNET_READS_MAX 256u      /* reads that one end asks for over a connection before it has the first answer */
#define TLSNET_STRANGERS_MAX 256u  /* connections of others, of which this end has no peer (yet) */
#define TLSNET_SLOTS_MAX 256u      /* first connections of one other end */
#define TLSNET_OFFERS_MAX 64u      /* of one end over a connection, with bytes to come */
#define TLSNET_LONG_TRIP_US 10000u /* round trip of a long link */
#define TLSNET_FURTHER_MAX 128u    /* further connections of one other end, over all of its links */

struct tlsnet;
struct tlsnet_peer;

/* How others find an endpoint, as it travels: all bytes count. */
struct tlsnet_address {
  struct sockaddr_in6
      at; /* where it listens, also an IPv4 address; family 0: it dials servers, and only ranks dial it */
  uint8_t name[TLSNET_NAME_BYTES];    /* a random number, by which its connections are known */
  uint8_t owner[ZPS_TLS_OWNER_BYTES]; /* of its certificate: nobody else uses the name */
  uint8_t family, unused[3];          /* of `at`, where that says 0 */
};

/* A message that waits for room, or an offer. */
struct tlsnet_message {
  STAILQ_ENTRY(tlsnet_message) link;
  enum tlsnet_frame_type type; /* TLSNET_OFFER: `data` is a struct tlsnet_offer; its frame leaves in its turn */
  size_t len;
  uint8_t data[];
};

enum tlsnet_read_state {
  TLSNET_READ_QUEUED = 1,
  TLSNET_READ_ASKED,
  TLSNET_READ_CAME,
  TLSNET_READ_LOST,
  TLSNET_READ_CLOSED
};

/* A read that was asked for: answers come in the order of the questions. */
struct tlsnet_asked {
  struct zps_net_read *read; /* NULL: it was given up, and its bytes are dropped */
  uint32_t len, got;
};

/* A frame of the other end, as far as it has come. */
struct tlsnet_in {
  size_t got; /* of the head, then of the body */
  bool has_head;
  struct tlsnet_head head;
  uint8_t head_bytes[TLSNET_HEAD_BYTES];
  uint8_t body[]; /* of the largest message */
};

/* Bytes of this end's memory that leave ahead. */
struct tlsnet_outgoing {
  uint64_t key, at;
  uint32_t len;
  bool is_void; /* a later offer has replaced it */
};

/* Bytes of the other end's memory that come ahead. Reads claim them in their order. */
struct tlsnet_incoming {
  TAILQ_ENTRY(tlsnet_incoming) link, held_link;
  struct tlsnet_conn *conn;
  uint64_t key, at;
  uint32_t len, got, claimed;
  struct zps_net_read_list reads; /* claimed, and not all here */
  uint8_t *buf;                   /* of the bytes from `base` on: those that came before their read */
  uint32_t base;
  struct zps_net_keep *keep; /* has them, too; may be NULL */
  bool is_used;
  bool is_dropped; /* no further read gets a byte of it */
};

struct tlsnet_ahead {
  struct tlsnet_outgoing out[TLSNET_OFFERS_MAX]; /* a ring */
  unsigned first_out, n_out,
      n_ready; /* n_ready: a message has left behind their OFFER, so that their bytes may leave */
  struct tlsnet_incoming in[TLSNET_OFFERS_MAX];
  TAILQ_HEAD(, tlsnet_incoming) offers; /* the oldest one at the beginning; complete ones wait for their reads */
  struct zps_net_keep held;             /* all `buf` */
};

enum tlsnet_conn_state { TLSNET_CONNECTING, TLSNET_SHAKING, TLSNET_OPEN, TLSNET_ENDED };

struct tlsnet_conn {
  struct tlsnet *net;
  LIST_ENTRY(tlsnet_conn) all_link; /* In `conns`, then in `ended`. */
  TAILQ_ENTRY(tlsnet_conn) ready_link, dirty_link;
  LIST_HEAD(, tlsnet_peer) peers;   /* The users. A further connection has those of its first one. */
  struct tlsnet_conn *first;        /* of a further connection: the one that carries its link's messages; else NULL */
  LIST_HEAD(, tlsnet_conn) further; /* of a first one */
  LIST_ENTRY(tlsnet_conn) further_link;
  enum tlsnet_conn_state state;
  int fd;
  bool is_dialled;    /* by this end */
  bool is_named;      /* the end that dialled has said who it is */
  bool is_known;      /* this end has a peer of that name */
  bool is_ready;      /* there may be more to take than the last turn took */
  bool is_dirty;      /* there may be something to put */
  bool is_full;       /* the socket takes no more for now */
  bool is_heard;      /* a frame has come */
  bool is_long;       /* it was a long link at the last look */
  bool is_doubled;    /* one of both ends sees, or saw, another first connection: offers are no good */
  bool must_decline;  /* the other end may not know yet: a DECLINE is to leave */
  bool has_offered;   /* this end has put an OFFER, or will */
  bool ahead_is_next; /* in the next record, before DATA */
  struct zps_forked forked;
  struct zps_tls_session *session;
  struct tlsnet_hello hello;          /* of the end that dialled; of another end, where `is_named` */
  uint8_t owner[ZPS_TLS_OWNER_BYTES]; /* of the other end's certificate, from TLSNET_OPEN on */
  uint64_t deadline_ns;               /* to be open, and to be known; ZPS_NEVER: none */
  uint64_t room_ns;                   /* to have room again; ZPS_NEVER: it has some */
  uint64_t answer_ns;                 /* a further one: to bring some byte of a read; ZPS_NEVER: none is asked for */
  uint64_t further_ns; /* a first one that this end dialled: when to dial a further one; ZPS_NEVER: not now */
  uint64_t path_ns;    /* a first one: when to look again how long the path is */
  uint64_t pause_ns;   /* before the next attempt after a further one was lost; 0: none was, lately */
  char text[80];       /* the other end, for people */
  struct tlsnet_in *in;
  struct tlsnet_ahead *ahead; /* NULL: nothing was offered, by either end */
  size_t out_len, out_sent;
  struct {
    struct tlsnet_asked ring[TLSNET_READS_MAX];
    unsigned first, n;
    uint64_t bytes; /* to come */
  } asked;
  struct {
    struct tlsnet_ask ring[TLSNET_READS_MAX];
    unsigned first, n;
  } served; /* reads that the other end asks for */
  uint8_t out[TLSNET_OUT_MAX + TLSNET_HEAD_BYTES];
};

enum tlsnet_peer_state { TLSNET_PEER_LIVE, TLSNET_PEER_FAILED };

struct tlsnet_peer {
  struct zps_net_peer base;
  struct tlsnet_address address;
  char text[80];
  enum tlsnet_peer_state state;
  bool dials;   /* this end makes the connections */
  bool is_rank; /* it makes connections to servers, and only other ranks connect to it */
  bool in_errors;
  uint32_t slot;            /* tells its connections from those of other peers at the same address */
  struct tlsnet_conn *conn; /* NULL: none yet */
  LIST_ENTRY(tlsnet_peer) all_link, conn_link;
  struct zps_net_keep *keep; /* NULL: none but the endpoint's */
  TAILQ_ENTRY(tlsnet_peer) error_link;
  STAILQ_HEAD(, tlsnet_message) sends; /* waiting for room, in order */
  unsigned n_sends, n_out;             /* how many of them; messages in the connection's `out` */
  struct zps_net_read_list reads;      /* waiting to be asked for */
  uint64_t deadline_ns;                /* to have a connection */
  zps_err_t error;
  char error_text[240];
};

struct tlsnet_region {
  LIST_ENTRY(tlsnet_region) link;
  const uint8_t *base;
  size_t len;
  uint64_t key;
};

TAILQ_HEAD(tlsnet_conn_queue, tlsnet_conn);
enum { TLSNET_BUCKETS = 1024 };

struct tlsnet {
  struct zps_net base;
  struct zps_tls *tls;
  struct tlsnet_address address;
  bool dials;
  bool has_bbr; /* its connections take this congestion control */
  uint64_t connect_timeout_ns, spin_ns;
  uint32_t long_trip_us;               /* TLSNET_LONG_TRIP_US */
  unsigned keepalive_s, n_connections; /* n_connections: of each peer that this end dials */
  int epoll_fd, wake_fd, listen_fd;
  struct zps_forked listen_forked;
  _Atomic bool woken;
  bool was_woken; /* by a wake that a turn came across: the next wait ends at once */
  bool shut, closing;
  bool pushed_back; /* the owner should try to send again */
  uint32_t next_slot;
  long n_reserved;
  uint64_t next_deadline_ns;
  uint64_t accept_at_ns; /* when descriptors may be there again; ZPS_NEVER: they are */
  unsigned n_strangers;
  LIST_HEAD(, tlsnet_conn)
  conns, ended; /* `ended`: to be freed when no callback is under way, and its socket is closed */
  struct tlsnet_conn_queue ready, dirty;
  LIST_HEAD(, tlsnet_peer) peers;
  TAILQ_HEAD(, tlsnet_peer) errors;
  TAILQ_HEAD(, tlsnet_incoming) held; /* with `buf`, in their order */
  struct zps_net_keep keep;           /* all of them */
  struct zps_net_read_list over;      /* reads to be called back by the next progress: they are lost, or came ahead */
  LIST_HEAD(, tlsnet_region) regions[TLSNET_BUCKETS];
};

static inline struct tlsnet *tlsnet_of(struct zps_net *net) {
  return (struct tlsnet *)net;
}
static inline struct tlsnet_peer *tlsnet_peer_of(struct zps_net_peer *peer) {
  return (struct tlsnet_peer *)peer;
}

/* address.c */
/* The socket that this endpoint listens on, and its address. */
zps_err_t zps_tlsnet_listen(struct tlsnet *net, const struct zps_net_config *config,
                            struct zps_error *error) ZPS_MUSTCHECK;
/* The bytes of a peer's address; `at` of it has its family again. */
zps_err_t zps_tlsnet_address_read(const void *bytes, size_t len, struct tlsnet_address *address_p, bool *dials_p,
                                  struct zps_error *error) ZPS_MUSTCHECK;
socklen_t zps_tlsnet_address_len(const struct tlsnet_address *address);
/* Has the socket take the congestion control bbr. False: errno says why not. */
bool zps_tlsnet_take_bbr(int fd);
const char *zps_tlsnet_address_text(const struct sockaddr_in6 *at, char *text, size_t size);

/* conn.c */
/* A connection to the peer. On an error there is none, and the peer has failed. */
void zps_tlsnet_dial(struct tlsnet_peer *peer);
void zps_tlsnet_accept(struct tlsnet *net);
/* The socket is ready: goes on with its beginning. */
void zps_tlsnet_conn_step(struct tlsnet_conn *conn);
/* The end that dialled says who it is. */
void zps_tlsnet_conn_name(struct tlsnet_conn *conn, const struct tlsnet_hello *hello);
/* Ends it: the peers of a first one fail, and a further one's reads are lost. It is freed by the end of the next
 * progress. ZPS_ERR_CLOSED: its messages still reach the other end, and it is freed then. */
void zps_tlsnet_conn_end(struct tlsnet_conn *conn, zps_err_t code, const char *fmt, ...) ZPS_PRINTF(3, 4);
/* Something has come over one that has ended. */
void zps_tlsnet_conn_rest(struct tlsnet_conn *conn);
/* Frees those that have ended, but for sockets with messages on their way. */
void zps_tlsnet_conns_free(struct tlsnet *net);
/* Waits for these messages, for a short while, and frees all. */
void zps_tlsnet_conns_close(struct tlsnet *net);
/* Tells strangers from others anew, among the connections of this address: it is a new peer's, or that of one that
 * has gone. Returns the newest of them; NULL: there is none. */
struct tlsnet_conn *zps_tlsnet_conns_know(struct tlsnet *net, const struct tlsnet_address *address);
/* Ends those connections of strangers whose reads are to be served: their memory may get other contents now. */
void zps_tlsnet_conns_serve_none(struct tlsnet *net);
/* The other end dialled it, and this end has no peer of that name (any more): it gets no answer. */
static inline bool zps_tlsnet_is_stranger(const struct tlsnet_conn *conn) {
  return !conn->is_dialled && !conn->is_known;
}
void zps_tlsnet_conn_attach(struct tlsnet_conn *conn, struct tlsnet_peer *peer);
/* Has the next turn take bytes, or put some. */
void zps_tlsnet_conn_ready(struct tlsnet_conn *conn);
void zps_tlsnet_conn_dirty(struct tlsnet_conn *conn);
/* The socket has no room, or has room again. */
void zps_tlsnet_conn_full(struct tlsnet_conn *conn, bool is_full);
/* The first frame comes. */
void zps_tlsnet_conn_hear(struct tlsnet_conn *conn);
/* All connections of a link, the first one at the beginning; NULL: no more. */
static inline struct tlsnet_conn *zps_tlsnet_conn_next(const struct tlsnet_conn *conn) {
  return conn->first ? LIST_NEXT(conn, further_link) : LIST_FIRST(&conn->further);
}
/* Ends what is late, and dials what is due. */
void zps_tlsnet_deadlines(struct tlsnet *net, uint64_t now_ns);
void zps_tlsnet_deadline_set(struct tlsnet *net, uint64_t *deadline_p, uint64_t deadline_ns);
/* Some byte has come, or the first read is asked for. */
void zps_tlsnet_await_answer(struct tlsnet_conn *conn);

/* receive.c */
/* Takes what has come, for a while. Returns the number of events. */
unsigned zps_tlsnet_receive(struct tlsnet_conn *conn);

/* ahead.c */
void zps_tlsnet_offer(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len);
uint64_t zps_tlsnet_offered(const struct zps_net_peer *peer, uint64_t addr, uint64_t key);
void zps_tlsnet_peer_keep(struct zps_net_peer *peer, struct zps_net_keep *keep);
/* An offer's turn has come among the messages: `offer` is the data of a struct tlsnet_message. */
void zps_tlsnet_offer_put(struct tlsnet_conn *conn, const void *offer);
/* The peer begins to use a connection of others. */
void zps_tlsnet_offers_replace(struct tlsnet_peer *peer);
/* Puts bytes of offers. */
void zps_tlsnet_ahead_add(struct tlsnet_conn *conn);
/* An OFFER frame has come. */
void zps_tlsnet_offer_take(struct tlsnet_conn *conn);
/* Whether an AHEAD frame of `len` bytes may come now. */
zps_err_t zps_tlsnet_ahead_check(const struct tlsnet_conn *conn, uint32_t len, struct zps_error *error) ZPS_MUSTCHECK;
/* Where its next bytes go, `*len_p` of them at most. */
void *zps_tlsnet_ahead_place(struct tlsnet_conn *conn, size_t *len_p);
void zps_tlsnet_ahead_came(struct tlsnet_conn *conn, size_t len);
/* An AHEAD frame without bytes: reads that wait for the rest are asked for. */
void zps_tlsnet_ahead_withdrawn(struct tlsnet_conn *conn);
/* Whether the read is of an offer. Then it is not asked for. */
bool zps_tlsnet_ahead_read(struct tlsnet_conn *conn, struct zps_net_read *read);
/* Loses the peer's reads of offers. */
void zps_tlsnet_ahead_lose(struct tlsnet_conn *conn, const struct tlsnet_peer *of);
/* No further read gets a byte of what was offered so far, by either end. */
void zps_tlsnet_offers_drop(struct tlsnet_conn *conn);
/* The other end has two first connections: its messages are in no order with this one's offers. It is told. */
void zps_tlsnet_ahead_double(struct tlsnet_conn *conn);
/* A DECLINE frame has come: nothing more comes ahead, either way. */
void zps_tlsnet_ahead_declined(struct tlsnet_conn *conn);
/* Bytes to come. */
uint64_t zps_tlsnet_ahead_missing(const struct tlsnet_conn *conn);
void zps_tlsnet_ahead_free(struct tlsnet_conn *conn);

/* transmit.c */
/* Room for a body of DATA or AHEAD; 0: not enough for one. */
size_t zps_tlsnet_frame_room(const struct tlsnet_conn *conn);
bool zps_tlsnet_frame_fits(const struct tlsnet_conn *conn, size_t len);
/* Room for the body of a frame, whose head is written. */
uint8_t *zps_tlsnet_frame_add(struct tlsnet_conn *conn, enum tlsnet_frame_type type, size_t len);
/* Behind the peer's other messages. False: no memory. */
bool zps_tlsnet_message_queue(struct tlsnet_peer *peer, enum tlsnet_frame_type type, const void *data,
                              size_t len) ZPS_MUSTCHECK;
/* To be asked for. */
void zps_tlsnet_read_queue(struct tlsnet_peer *peer, struct zps_net_read *read);
/* Puts what there is to say, for a while. */
void zps_tlsnet_transmit(struct tlsnet_conn *conn);
zps_err_t zps_tlsnet_send(struct zps_net_peer *peer, const void *data, size_t len) ZPS_MUSTCHECK;
zps_err_t zps_tlsnet_read(struct zps_net_peer *peer, struct zps_net_read *read) ZPS_MUSTCHECK;
unsigned zps_tlsnet_unsent(const struct zps_net_peer *peer);
unsigned zps_tlsnet_connections(const struct zps_net_peer *peer);

/* memory.c */
zps_err_t zps_tlsnet_mem_register(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                                  struct zps_net_mem *mem_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_tlsnet_mem_release(struct zps_net *net, struct zps_net_mem *mem);
void zps_tlsnet_regions_free(struct tlsnet *net);
/* The bytes [at, at + len) of the memory with this key; NULL: there are none. */
const uint8_t *zps_tlsnet_region_bytes(const struct tlsnet *net, uint64_t key, uint64_t at, size_t len);
/* To be called back by the next progress. */
void zps_tlsnet_read_lose(struct tlsnet *net, struct zps_net_read *read);
/* Its bytes are here: it is called back by the next progress. */
void zps_tlsnet_read_came(struct tlsnet *net, struct zps_net_read *read);
/* Loses the reads that a connection was asked for, of one peer; NULL: of all. */
void zps_tlsnet_asked_lose(struct tlsnet_conn *conn, const struct tlsnet_peer *of);
/* The peer is gone: its reads that came are lost, too. */
void zps_tlsnet_came_lose(struct tlsnet *net, const struct tlsnet_peer *of);
/* Calls back the reads that are over. Returns their number. */
unsigned zps_tlsnet_read_report(struct tlsnet *net);

/* peer.c */
zps_err_t zps_tlsnet_peer_add(struct zps_net *net, const void *addr, size_t len, void *ctx,
                              struct zps_net_peer **peer_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_tlsnet_peer_evict(struct zps_net_peer *peer);
void zps_tlsnet_peer_renew(struct zps_net_peer *peer);
void zps_tlsnet_peer_cut(struct zps_net_peer *peer);
/* Marks it as lost; its owner is told by the next zps_tlsnet_peer_report(). */
void zps_tlsnet_peer_fail(struct tlsnet_peer *peer, zps_err_t code, const char *text);
unsigned zps_tlsnet_peer_report(struct tlsnet *net);

/* wait.c */
zps_err_t zps_tlsnet_wait_open(struct tlsnet *net, struct zps_error *error) ZPS_MUSTCHECK;
unsigned zps_tlsnet_progress(struct zps_net *net);
void zps_tlsnet_wait(struct zps_net *net, uint64_t timeout_ns);
void zps_tlsnet_wake(struct zps_net *net);

#endif
