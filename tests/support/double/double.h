/*
 * A double of a fabric that this machine lacks: a libfabric provider that presents itself as efa, cxi or gni, and works
 * over libfabric's TCP provider. README.md says what it shows.
 *
 * Each object embeds the public struct of libfabric first, and has the TCP provider's object as `inner`.
 */
#ifndef ZPS_TESTS_DOUBLE_H
#define ZPS_TESTS_DOUBLE_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* Completion queues of net up to tcp 1.18.0 need a wait set to have a descriptor that falls silent. */
#if FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION <= 18
#define DOUBLE_WAIT_SETS 1
#endif

/* The fabric, and its luck in this process. */
struct double_traits {
  const char *name;
  const char *card;        /* a domain's name, with %d for its number */
  uint32_t addr_format;    /* FI_ADDR_... */
  size_t addr_len;         /* bytes of an address */
  size_t key_size;         /* bytes of a memory key */
  uint64_t mr_mode;        /* FI_MR_... */
  unsigned long has_fd;    /* 1: completion queues have a descriptor to sleep on */
  unsigned long rx, tx;    /* receives, and sends and reads, at the fabric at a time */
  unsigned long eager;     /* bytes; longer messages are rendezvous */
  unsigned long max_len;   /* bytes of one operation */
  int lost_errno;          /* FI_E... of operations at a peer that is lost */
  int lost_prov_errno;     /* the provider's own number for it */
  const char *lost_text;   /* the provider's text for it */
  unsigned long late_us;   /* a rendezvous completes so much later */
  unsigned long jitter_us; /* every completion is up to so much late */
  unsigned long again;     /* of 1,000 posts, this many are refused */
  unsigned long silent;    /* 1: operations at a lost peer never complete */
  unsigned long n_cards;   /* equal cards on offer */
};

enum double_kind { DOUBLE_RECV = 1, DOUBLE_SEND, DOUBLE_READ };

struct double_fabric {
  struct fid_fabric fid;
  struct fid_fabric *inner;
  unsigned n_children;
};

struct double_domain {
  struct fid_domain fid;
  struct fid_domain *inner;
  struct double_fabric *fabric;
  char card[32];
  unsigned n_children;
  atomic_bool is_busy; /* a thread is inside */
};

struct double_av {
  struct fid_av fid;
  struct fid_av *inner;
  struct double_domain *domain;
};

struct double_mr {
  struct fid_mr fid;
  struct fid_mr *inner; /* NULL: not enabled */
  struct double_domain *domain;
  struct double_ep *ep; /* bound to it; NULL: none */
  const char *base;
  size_t len;
  uint64_t access;
  unsigned n_ops; /* in flight that name it as their descriptor */
};

/* An operation in flight: from the post until the caller reads its completion. */
struct double_op {
  LIST_ENTRY(double_op) link; /* of the endpoint's, or of the free ones */
  enum double_kind kind;
  struct double_ep *ep; /* NULL: it is closed */
  struct double_mr *mr;
  void *context; /* the caller's */
  const char *buf;
  size_t len;
  uint64_t sum; /* of what is sent */
};
LIST_HEAD(double_ops, double_op);

/* A buffer that an operation in flight writes to. */
struct double_target {
  const char *begin, *end;
};

/* A completion that the caller has not read. */
struct double_pending {
  struct fi_cq_msg_entry entry;
  struct fi_cq_err_entry error; /* .err 0: none */
  struct double_op *op;
  uint64_t due_ns, number;
};

struct double_cq {
  struct fid_cq fid;
  struct fid_cq *inner;
  struct fid_wait *wait;
  struct double_domain *domain;
  struct double_ep *ep; /* NULL: none is bound, or it is closed */
  struct double_pending *pending, failed;
  size_t n, room;
  bool has_failed; /* `failed` waits to be read */
  uint64_t number; /* of the latest completion */
  uint64_t most;   /* the highest number that was read */
  struct double_ops free;
  struct double_block *blocks; /* memory of operations */
};

struct double_ep {
  struct fid_ep fid;
  struct fid_ep *inner;
  struct double_domain *domain;
  struct double_cq *cq;
  bool is_enabled;
  unsigned n_mrs; /* bound to it */
  struct double_ops ops;
  struct double_target *targets; /* in order of addresses */
  size_t n_targets, targets_room;
  unsigned long posted[2], most[2], refused[2]; /* 0: receives, 1: sends and reads */
  unsigned long unlucky, overtaken, muted;      /* posts refused by chance; completions */
};

/* traits.c */
extern struct double_traits double_is;
/* From the environment. False: no double is asked for. */
bool double_traits_load(void);
/* One line into the file that ZPS_DOUBLE_LOG names, if it does. */
void double_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t double_now_ns(void);
/* True with a chance of n in 1,000. */
bool double_chance(unsigned long n);
unsigned long double_below(unsigned long bound);

/* rules.c */
/* The caller broke a rule of libfabric: ends the process with its name and text. */
void double_violation(const char *rule, const char *text) __attribute__((noreturn));
/* Only one thread at a time is inside a domain. */
void double_enter(struct double_domain *domain);
void double_leave(struct double_domain *domain);
void double_check_post(const struct double_ep *ep, enum double_kind kind, const void *context, const char *buf,
                       size_t len, const struct double_mr *mr);
uint64_t double_sum(const char *bytes, size_t len);
/* The operation is over: what the caller was not to touch is as it was. */
void double_check_done(const struct double_op *op);
void double_target_add(struct double_ep *ep, const char *buf, size_t len);
void double_target_drop(struct double_ep *ep, const char *buf, size_t len);

/* fabric.c */
int double_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric_p, void *context);

/* offer.c */
/* The TCP provider, with this double's mode of addresses; for the caller to fi_freeinfo(). NULL: out of memory. */
struct fi_info *double_inner_info(void);

/* address.c */
int double_getname(fid_t fid, void *addr, size_t *len_p);
void double_address_of(const void *inner, uint8_t *addr);
int double_av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **av_p, void *context);

/* memory.c */
int double_mr_reg(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key,
                  uint64_t flags, struct fid_mr **mr_p, void *context);

/* endpoint.c */
int double_ep_open(struct fid_domain *fid, struct fi_info *info, struct fid_ep **ep_p, void *context);

/* queue.c */
int double_cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **cq_p, void *context);
int double_trywait(struct fid_fabric *fid, struct fid **fids, int count);
/* NULL: out of memory. */
struct double_op *double_op_get(struct double_cq *cq);
/* It is not in flight any more. */
void double_op_put(struct double_cq *cq, struct double_op *op);
/* The context belongs to an operation in flight. */
bool double_op_has(const struct double_cq *cq, const void *context);

#endif
