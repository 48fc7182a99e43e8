/* The contract of a fabric backend with net.c and open.c. Private to this folder. Every member has the contract that
 * net.h gives its public namesake; a backend embeds the structs below as first members of its own. */
#ifndef ZPS_NET_BACKEND_H
#define ZPS_NET_BACKEND_H

#include <netinet/in.h>
#include <poll.h>

#include "common/net/net.h"

/* The sleep of a thread with several endpoints. */
struct zps_net_rest {
  struct pollfd fds[2 * ZPS_NET_RAILS_MAX];
  unsigned n_fds;
  uint64_t timeout_ns;
};

struct zps_net_ops {
  void (*close)(struct zps_net *net);
  void (*shut)(struct zps_net *net);
  zps_err_t (*reserve)(struct zps_net *net, int count);
  zps_err_t (*peer_add)(struct zps_net *net, const void *addr, size_t len, void *ctx, struct zps_net_peer **peer_p,
                        struct zps_error *error);
  void (*peer_evict)(struct zps_net_peer *peer);
  void (*peer_renew)(struct zps_net_peer *peer);
  void (*peer_cut)(struct zps_net_peer *peer); /* NULL: there are no connections */
  /* `device`: NULL for memory of the host. */
  zps_err_t (*mem_register)(struct zps_net *net, void *base, size_t len, const struct zps_net_device *device,
                            struct zps_net_mem *mem_p, struct zps_error *error);
  void (*mem_release)(struct zps_net *net, struct zps_net_mem *mem);
  zps_err_t (*send)(struct zps_net_peer *peer, const void *data, size_t len);
  unsigned (*unsent)(const struct zps_net_peer *peer);
  zps_err_t (*read)(struct zps_net_peer *peer, struct zps_net_read *read);
  void (*offer)(struct zps_net_peer *peer, uint64_t addr, uint64_t key, uint64_t len); /* NULL: offers do nothing */
  uint64_t (*offered)(const struct zps_net_peer *peer, uint64_t addr, uint64_t key);   /* with offer() */
  void (*peer_keep)(struct zps_net_peer *peer, struct zps_net_keep *keep);             /* with offer() */
  unsigned (*progress)(struct zps_net *net);
  void (*wait)(struct zps_net *net, uint64_t timeout_ns);
  void (*attend)(struct zps_net *net, bool is_read); /* NULL: reads need nobody here */
  void (*wake)(struct zps_net *net);
  /* For an endpoint that has this one as a rail: adds what to sleep on, and sets the time to sleep at most. False:
   * there is something to do. After the sleep: rested(). Both NULL: look each millisecond. */
  bool (*rest)(struct zps_net *net, struct zps_net_rest *rest);
  void (*rested)(struct zps_net *net);
  unsigned (*peer_connections)(const struct zps_net_peer *peer); /* NULL: there is one */
  unsigned (*peer_rails)(const struct zps_net_peer *peer);       /* NULL: there is one */
  /* For tests: cuts the connection to the peer, as fault.h says, and tells the one end or the other by
   * on_peer_error(). NULL: peer_cut() does it. */
  void (*cut)(struct zps_net_peer *peer, bool tells_us, bool tells_peer);
};

struct zps_net {
  const struct zps_net_ops *ops;
  struct zps_net_handler handler;
  struct zps_net_info info;
  struct zps_net_counters counters;
};

struct zps_net_peer {
  struct zps_net *net;
  void *ctx;
};

/* Reads of a backend, in order. A read is in one list at a time. */
struct zps_net_read_list {
  struct zps_net_read *first, *last;
};

static inline void zps_net_read_push(struct zps_net_read_list *list, struct zps_net_read *read) {
  read->next = NULL;
  read->prev = list->last;
  if (list->last)
    list->last->next = read;
  else
    list->first = read;
  list->last = read;
}

static inline void zps_net_read_unlink(struct zps_net_read_list *list, struct zps_net_read *read) {
  if (read->prev)
    read->prev->next = read->next;
  else
    list->first = read->next;
  if (read->next)
    read->next->prev = read->prev;
  else
    list->last = read->prev;
  read->next = read->prev = NULL;
}

/* NULL: the list is empty. */
static inline struct zps_net_read *zps_net_read_pop(struct zps_net_read_list *list) {
  struct zps_net_read *read = list->first;
  if (read) zps_net_read_unlink(list, read);
  return read;
}

/* The key on the read's rail. */
static inline uint64_t zps_net_read_key(const struct zps_net_read *read) {
  return read->rail == 0 ? read->key : read->more.key[read->rail - 1];
}

/* The backends. `config->provider` has been reduced to the part that concerns the backend. */
zps_err_t zps_net_ofi_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_net_tls_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                           struct zps_net **net_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The address of this host that provider tcp would take, without a port. Of net_info it sets domain (the interface),
 * place and why. */
zps_err_t zps_net_ofi_host(const struct zps_net_config *config, struct sockaddr_in6 *addr_p,
                           struct zps_net_info *net_info, struct zps_error *error) ZPS_MUSTCHECK;
void zps_net_ofi_list(const struct zps_net_config *config, void (*line)(void *ctx, const char *text), void *ctx);
typedef zps_err_t zps_net_open_t(const struct zps_net_config *config, const struct zps_net_handler *handler,
                                 struct zps_net **net_p, struct zps_error *error);
/* Several endpoints of the backend that `open` opens, on a card each. */
zps_err_t zps_net_rails_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                             zps_net_open_t *open, struct zps_net **net_p, struct zps_error *error) ZPS_MUSTCHECK;
/* Wraps the backend that `open` opens for `config->provider` (without "fault+"). */
zps_err_t zps_net_fault_open(const struct zps_net_config *config, const struct zps_net_handler *handler,
                             zps_net_open_t *open, struct zps_net **net_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
