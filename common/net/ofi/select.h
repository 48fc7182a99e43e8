/*
 * The choice among the fabrics that libfabric offers: provider by preference or name, then interface and subnet, then a
 * card for this process (affinity.h).
 *
 * Pure, so that it can be tested with made-up lists: libfabric 1.17 ignores the domain's name in its hints for socket
 * providers, hence the list is walked here.
 */
#ifndef ZPS_NET_OFI_SELECT_H
#define ZPS_NET_OFI_SELECT_H

#include <rdma/fabric.h>
#include <sys/socket.h>

#include "common/net/net.h"
#include "common/net/ofi/affinity.h"

/* An address of this host and the interface that has it. */
struct ofi_iface {
  char name[32];
  struct sockaddr_storage addr;
  unsigned bits; /* of its network */
};

struct ofi_host {
  const struct ofi_iface *ifaces;
  size_t n_ifaces;
  const char *root;       /* see affinity.h */
  struct ofi_place place; /* of the process: of its GPU, or else of its processors */
  unsigned number;        /* of the process among those of the host */
  unsigned rails, rail;   /* how many cards it takes, and which of them this is; 0: one */
};

struct ofi_wish {
  const char *provider;  /* "auto" or a name */
  const char *interface; /* see struct zps_net_config */
  const char *subnet;
  const struct sockaddr_storage *source; /* of packets to the coordinator: its interface comes first; NULL: not known */
};

struct ofi_choice {
  const struct fi_info *info;      /* the element of the list to use */
  const struct fi_info *ruled_out; /* of a better provider, by interface and subnet alone; NULL: none is */
  char why[ZPS_NET_WHY_MAX];       /* this card */
};

/* An error names the wish and lists what there is. */
zps_err_t zps_ofi_select(const struct fi_info *list, const struct ofi_host *host, const struct ofi_wish *wish,
                         struct ofi_choice *choice_p, struct zps_error *error) ZPS_MUSTCHECK;
/* "net eth0 192.0.2.2": provider, domain and address. Returns `text`. */
const char *zps_ofi_info_text(const struct fi_info *info, char *text, size_t size);
/* May be used at all: not a layering that only loses against its lower half. */
bool zps_ofi_info_usable(const struct fi_info *info);
/* The list has the same provider, domain and address before `info`: libfabric repeats them with other features. */
bool zps_ofi_info_repeated(const struct fi_info *list, const struct fi_info *info);

#endif
