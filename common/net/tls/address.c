/* The endpoint's address: where it listens, and its name. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/config.h"
#include "common/base/secret.h"
#include "common/net/tls/impl.h"

#define ZPS_LOG_COMPONENT "net"
#include "common/base/log.h"

enum { BACKLOG = 1024 };

socklen_t zps_tlsnet_address_len(const struct tlsnet_address *address) {
  return address->at.sin6_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static in_port_t *port_of(struct sockaddr_in6 *at) {
  return &at->sin6_port; /* where a sockaddr_in has it, too */
}

const char *zps_tlsnet_address_text(const struct sockaddr_in6 *at, char *text, size_t size) {
  char ip[INET6_ADDRSTRLEN] = "?";
  struct sockaddr_in v4;
  memcpy(&v4, at, sizeof v4);
  const bool is_v4 = at->sin6_family == AF_INET;
  inet_ntop(at->sin6_family, is_v4 ? (const void *)&v4.sin_addr : (const void *)&at->sin6_addr, ip, sizeof ip);
  snprintf(text, size, is_v4 ? "%s:%u" : "[%s]:%u", ip, ntohs(at->sin6_port));
  return text;
}

/* Another endpoint may have the port between bind() and listen(): both are one attempt. -1: errno says why. */
static int listen_at(const struct tlsnet_address *address) {
  const int one = 1, fd = socket(address->at.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, (const struct sockaddr *)&address->at, zps_tlsnet_address_len(address)) == 0 && listen(fd, BACKLOG) == 0)
    return fd;
  const int err_number = errno;
  close(fd);
  errno = err_number;
  return -1;
}

static zps_err_t listen_in_range(const struct zps_net_config *config, struct tlsnet *net, struct zps_error *error) {
  struct tlsnet_address *const address = &net->address;
  const unsigned n = config->port_low ? config->port_high - config->port_low + 1u : 1;
  char text[80];
  int err_number = 0;
  for (unsigned i = 0; i < n; i++) {
    *port_of(&address->at) = htons(config->port_low ? (uint16_t)(config->port_low + i) : 0);
    net->listen_fd = listen_at(address);
    if (net->listen_fd >= 0) return ZPS_OK;
    err_number = errno;
  }
  return zps_fail_errno(error, ZPS_ERR_FABRIC, err_number,
                        "cannot listen at %s, ports %u to %u (fabric.port_low, fabric.port_high)",
                        zps_tlsnet_address_text(&address->at, text, sizeof text), config->port_low, config->port_high);
}

static zps_err_t make_name(uint8_t name[TLSNET_NAME_BYTES], struct zps_error *error) {
  uint64_t words[2];
  for (int i = 0; i < 2; i++) {
    const zps_err_t err = zps_secret_make(&words[i]);
    if (err) return zps_fail(error, err, "this kernel has no generator of keys");
  }
  memcpy(name, words, sizeof words);
  return ZPS_OK;
}

bool zps_tlsnet_take_bbr(int fd) {
  static const char bbr[] = "bbr";
  return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, bbr, sizeof bbr - 1) == 0;
}

/* A kernel without it is no error: rounds are right, and slower. */
static bool ask_for_bbr(const struct tlsnet *net) {
  if (zps_tlsnet_take_bbr(net->listen_fd)) return true;
  zps_log_warn(
      "%s: this process cannot take TCP's congestion control bbr (%s): rounds over long links that lose packets take "
      "several times longer. Load the module tcp_bbr, and let bbr be in net.ipv4.tcp_allowed_congestion_control",
      zps_config_label("fabric.bbr"), strerror(errno));
  return false;
}

static void info_fill(struct tlsnet *net) {
  struct zps_net_info *const info = &net->base.info;
  struct tlsnet_address shown = net->address;
  shown.family = (uint8_t)shown.at.sin6_family;
  if (net->dials) shown.at.sin6_family = 0; /* nobody is to be checked for naming it: only ranks dial it */
  memcpy(info->addr, &shown, sizeof shown);
  info->addr_len = sizeof shown;
  snprintf(info->provider, sizeof info->provider, "tls");
  snprintf(info->protocol, sizeof info->protocol, "TLS 1.3 over TCP");
  snprintf(info->addr_format, sizeof info->addr_format, "FI_SOCKADDR, name and owner");
  zps_tlsnet_address_text(&net->address.at, info->address, sizeof info->address);
  info->max_read = 1u << 30;
  info->registers_free = info->ends_reads = true;
}

zps_err_t zps_tlsnet_listen(struct tlsnet *net, const struct zps_net_config *config, struct zps_error *error) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = &net->listen_fd};
  socklen_t len = sizeof net->address.at;
  zps_err_t err = zps_net_ofi_host(config, &net->address.at, &net->base.info, error);
  if (!err) err = make_name(net->address.name, error);
  if (!err) err = zps_tls_owner(config->tls, net->address.owner, error);
  if (!err) err = listen_in_range(config, net, error);
  if (err) return err;
  if (getsockname(net->listen_fd, (struct sockaddr *)&net->address.at, &len) != 0 ||
      epoll_ctl(net->epoll_fd, EPOLL_CTL_ADD, net->listen_fd, &event) != 0)
    return zps_fail_errno(error, ZPS_ERR_IO, errno, "cannot listen");
  zps_forked_close_socket(&net->listen_forked, net->listen_fd);
  net->has_bbr = config->bbr && ask_for_bbr(net);
  info_fill(net);
  return ZPS_OK;
}

zps_err_t zps_tlsnet_address_read(const void *bytes, size_t len, struct tlsnet_address *address_p, bool *dials_p,
                                  struct zps_error *error) {
  if (len == sizeof *address_p) {
    memcpy(address_p, bytes, len);
    *dials_p = address_p->at.sin6_family == 0;
    if (*dials_p) address_p->at.sin6_family = address_p->family;
  }
  if (len == sizeof *address_p && (address_p->at.sin6_family == AF_INET || address_p->at.sin6_family == AF_INET6))
    return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID,
                  "a peer's fabric address has %zu bytes and is none of provider tls, which has %zu: do both use the "
                  "same provider?",
                  len, sizeof *address_p);
}
