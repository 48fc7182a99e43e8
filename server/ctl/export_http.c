/*
 * The HTTP server of `zenpsctl export`, by libmicrohttpd: a thread for each connection, which may wait for an answer.
 *
 * With certificate files it speaks TLS 1.3. A caller shows a certificate of the cluster's authorities that is not
 * revoked, and is an administrator's or an allowed one; without one it gets no page but those that say yes or no.
 */
#include "server/ctl/export_http.h"

#include <stdlib.h>

#include "config.h"

#ifdef HAVE_MICROHTTPD
#include <errno.h>
#include <fcntl.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/route.h"
#include "common/base/secret.h"
#include "common/control/address.h"
#include "common/tls/store.h"

#define FILE_MAX (4u << 20)
#define CONNECTIONS_MAX 64u
#define CONNECTIONS_OF_HOST 16u
#define IDLE_S 10u /* until a connection without a request is closed */
#define STACK_BYTES ((size_t)256 << 10)
#define CHAIN_MAX 8u
#define ADMIN "zenps://admin/"

enum { CA, CERT, KEY, CRL, N_FILES };

/* Texts of the files, and what checks callers' certificates. */
struct identity {
  char *text[N_FILES];
  gnutls_x509_trust_list_t trust;
};

struct zps_ctl_http {
  struct zps_ctl_http_config config;
  int fd;
  bool is_tls;
  char url[80];
  struct server *server;
};

/* What serves with one identity. */
struct server {
  const struct zps_ctl_http_config *config;
  struct identity *identity; /* NULL: plain HTTP */
  struct MHD_Daemon *daemon;
};

/* ------------------------------------------------------------ certificate files */

static void identity_destroy(struct identity *identity) {
  if (!identity) return;
  for (unsigned i = 0; i < N_FILES; i++) free(identity->text[i]);
  if (identity->trust) gnutls_x509_trust_list_deinit(identity->trust, 1);
  free(identity);
}

static zps_err_t read_file(const char *path, bool is_key, char **text_p, struct zps_error *error) {
  char *const text = malloc(FILE_MAX);
  if (!text) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for %.300s", path);
  const zps_err_t err = is_key ? zps_private_read(path, "private key", text, FILE_MAX, error)
                               : zps_certs_file_read(path, text, FILE_MAX, error);
  if (err) {
    free(text);
    return err;
  }
  char *const exact = realloc(text, strlen(text) + 1);
  *text_p = exact ? exact : text;
  return ZPS_OK;
}

static zps_err_t trust_files(struct identity *identity, struct zps_error *error) {
  const gnutls_datum_t ca = {(unsigned char *)identity->text[CA], (unsigned)strlen(identity->text[CA])};
  char *const crl_text = identity->text[CRL];
  const gnutls_datum_t crl = {(unsigned char *)crl_text, crl_text ? (unsigned)strlen(crl_text) : 0};
  int n = gnutls_x509_trust_list_init(&identity->trust, 0);
  if (n >= 0)
    n = gnutls_x509_trust_list_add_trust_mem(identity->trust, &ca, crl_text ? &crl : NULL, GNUTLS_X509_FMT_PEM, 0, 0);
  if (n > 0) return ZPS_OK;
  return zps_fail(error, ZPS_ERR_INVALID, "the authorities and revocation lists cannot be used: %s",
                  n < 0 ? gnutls_strerror(n) : "there are none");
}

/* The files make an identity of this cluster, as zps_tls_create() has it. */
static zps_err_t identity_create(const struct zps_tls_files *files, struct identity **identity_p,
                                 struct zps_error *error) {
  struct zps_tls *tls = NULL;
  zps_err_t err = zps_tls_create(files, &tls, error);
  if (err) return err;
  zps_tls_unref(tls);
  struct identity *const identity = calloc(1, sizeof *identity);
  if (!identity) return zps_fail(error, ZPS_ERR_NOMEM, "no memory for certificates");
  const char *const paths[N_FILES] = {files->ca, files->cert, files->key, files->crl};
  for (unsigned i = 0; i < N_FILES && !err; i++)
    if (paths[i]) err = read_file(paths[i], i == KEY, &identity->text[i], error);
  if (!err) err = trust_files(identity, error);
  if (err) {
    identity_destroy(identity);
    return err;
  }
  *identity_p = identity;
  return ZPS_OK;
}

static bool same(const char *a, const char *b) {
  return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_files(const struct identity *a, const struct identity *b) {
  for (unsigned i = 0; i < N_FILES; i++)
    if (!same(a->text[i], b->text[i])) return false;
  return true;
}

/* ------------------------------------------------------------ callers */

static bool is_named(const char *names, const char *name, size_t len) {
  for (; names && *names; names += strspn(names, ", ")) {
    const size_t n = strcspn(names, ", ");
    if (n == len && memcmp(names, name, len) == 0) return true;
    names += n;
  }
  return false;
}

static bool is_role_allowed(const struct zps_ctl_http_config *config, gnutls_x509_crt_t cert) {
  for (unsigned i = 0;; i++) {
    char uri[ZPS_TLS_NAME_MAX];
    size_t size = sizeof uri;
    const int type = gnutls_x509_crt_get_subject_alt_name(cert, i, uri, &size, NULL);
    if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE) return false;
    if (type != GNUTLS_SAN_URI) continue;
    if (size > sizeof ADMIN - 1 && memcmp(uri, ADMIN, sizeof ADMIN - 1) == 0) return true;
    if (is_named(config->allow, uri, size)) return true;
  }
}

static bool is_trusted(const struct server *server, struct MHD_Connection *connection) {
  if (!server->identity) return true;
  const union MHD_ConnectionInfo *const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  unsigned n_peers = 0, n = 0, status = 1;
  const gnutls_datum_t *const peers =
      info ? gnutls_certificate_get_peers((gnutls_session_t)info->tls_session, &n_peers) : NULL;
  gnutls_x509_crt_t chain[CHAIN_MAX];
  bool is_whole = peers && n_peers > 0 && n_peers <= CHAIN_MAX;
  for (; is_whole && n < n_peers; n++) {
    if (gnutls_x509_crt_init(&chain[n]) < 0) break;
    if (gnutls_x509_crt_import(chain[n], &peers[n], GNUTLS_X509_FMT_DER) < 0) is_whole = false;
  }
  const bool is_valid = is_whole && n == n_peers &&
                        gnutls_x509_trust_list_verify_crt(server->identity->trust, chain, n, 0, &status, NULL) >= 0 &&
                        status == 0 && is_role_allowed(server->config, chain[0]);
  for (unsigned i = 0; i < n; i++) gnutls_x509_crt_deinit(chain[i]);
  return is_valid;
}

/* ------------------------------------------------------------ requests */

static enum MHD_Result reply(struct MHD_Connection *connection, struct zps_ctl_page *page) {
  struct MHD_Response *const response =
      page->body ? MHD_create_response_from_buffer(page->len, page->body, MHD_RESPMEM_MUST_FREE) : NULL;
  if (!response) {
    free(page->body);
    return MHD_NO; /* closes the connection */
  }
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  if (page->status == MHD_HTTP_METHOD_NOT_ALLOWED)
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  const enum MHD_Result result = MHD_queue_response(connection, page->status, response);
  MHD_destroy_response(response);
  return result;
}

static void say(struct zps_ctl_page *page, unsigned status, const char *text) {
  *page = (struct zps_ctl_page){.status = status, .body = strdup(text), .len = strlen(text)};
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *data, size_t *len_p, void **request_p) {
  static int seen;
  const struct server *const server = ctx;
  struct zps_ctl_page page = {.status = 0};
  (void)version, (void)data, (void)len_p;
  if (!*request_p) { /* The first call has the headers alone. */
    *request_p = &seen;
    return MHD_YES;
  }
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
    say(&page, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    return reply(connection, &page);
  }
  server->config->page(server->config->ctx, url, is_trusted(server, connection), &page);
  if (page.status == 0) say(&page, MHD_HTTP_NOT_FOUND, "there is /metrics, /livez and /readyz\n");
  return reply(connection, &page);
}

/* ------------------------------------------------------------ the server */

static void server_stop(struct server *server) {
  if (!server) return;
  if (server->daemon) MHD_stop_daemon(server->daemon);
  identity_destroy(server->identity);
  free(server);
}

static zps_err_t listen_at(struct zps_ctl_http *http, struct zps_error *error) {
  const char *const text = http->config.listen;
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
  struct addrinfo *list = NULL;
  struct zps_address address;
  zps_err_t err = zps_address_parse(text, &address, error);
  if (err) return err;
  if (address.is_unix)
    return zps_fail(error, ZPS_ERR_INVALID, "%.200s is a Unix socket: must be HOST:PORT, which Prometheus reaches",
                    text);
  const int status = getaddrinfo(address.host[0] ? address.host : NULL, address.port, &hints, &list);
  if (status != 0) return zps_fail(error, ZPS_ERR_INVALID, "cannot listen on %.200s: %s", text, gai_strerror(status));
  if (!http->is_tls && !zps_route_is_loopback(list->ai_addr)) {
    err = zps_fail(error, ZPS_ERR_INVALID,
                   "%.200s can be reached from other hosts: that takes certificates, --tls-ca, --tls-cert and "
                   "--tls-key (ZENPS_TLS_...). Without them listen on 127.0.0.1:%s",
                   text, address.port);
    goto out;
  }
  http->fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_storage at;
  socklen_t len = sizeof at;
  if (http->fd < 0 || setsockopt(http->fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int)) < 0 ||
      bind(http->fd, list->ai_addr, list->ai_addrlen) < 0 || listen(http->fd, CONNECTIONS_MAX) < 0 ||
      getsockname(http->fd, (struct sockaddr *)&at, &len) < 0) {
    err =
        zps_fail_errno(error, errno == EADDRINUSE ? ZPS_ERR_BUSY : ZPS_ERR_IO, errno, "cannot listen on %.200s", text);
    goto out;
  }
  char number[64];
  zps_address_print((struct sockaddr *)&at, number, sizeof number);
  snprintf(http->url, sizeof http->url, "http%s://%s", http->is_tls ? "s" : "", number);
out:
  freeaddrinfo(list);
  return err;
}

/* Serves on the socket, beside the server that may be there. Takes over the identity. */
static zps_err_t server_start(const struct zps_ctl_http *http, struct identity *identity, struct server **server_p,
                              struct zps_error *error) {
  static char priorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3";
  unsigned flags = MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_ITC;
  struct MHD_OptionItem tls[] = {{MHD_OPTION_END, 0, NULL},
                                 {MHD_OPTION_HTTPS_MEM_CERT, 0, NULL},
                                 {MHD_OPTION_HTTPS_MEM_TRUST, 0, NULL},
                                 {MHD_OPTION_HTTPS_PRIORITIES, 0, priorities},
                                 {MHD_OPTION_END, 0, NULL}};
  if (identity) {
    flags |= MHD_USE_TLS;
    tls[0] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, identity->text[KEY]};
    tls[1].ptr_value = identity->text[CERT];
    tls[2].ptr_value = identity->text[CA];
  }
  struct server *const server = calloc(1, sizeof *server);
  const int fd = server ? fcntl(http->fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (fd < 0) {
    free(server);
    identity_destroy(identity);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory, or no descriptor, to serve %s", http->url);
  }
  server->config = &http->config;
  server->identity = identity;
  server->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET, fd,
                                    MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                                    CONNECTIONS_OF_HOST, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
                                    MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
  if (!server->daemon) {
    close(fd);
    server_stop(server);
    return zps_fail(error, ZPS_ERR_INTERNAL, "libmicrohttpd does not serve %s", http->url);
  }
  *server_p = server;
  return ZPS_OK;
}

zps_err_t zps_ctl_http_start(const struct zps_ctl_http_config *config, struct zps_ctl_http **http_p,
                             struct zps_error *error) {
  struct zps_ctl_http *const http = calloc(1, sizeof *http);
  struct identity *identity = NULL;
  if (!http) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to serve %.200s", config->listen);
  *http = (struct zps_ctl_http){.config = *config, .fd = -1, .is_tls = zps_tls_files_any(&config->files)};
  zps_err_t err = http->is_tls ? identity_create(&config->files, &identity, error) : ZPS_OK;
  if (!err) err = listen_at(http, error);
  if (!err)
    err = server_start(http, identity, &http->server, error);
  else
    identity_destroy(identity);
  if (err)
    zps_ctl_http_stop(http);
  else
    *http_p = http;
  return err;
}

const char *zps_ctl_http_url(const struct zps_ctl_http *http) {
  return http->url;
}

zps_err_t zps_ctl_http_reload(struct zps_ctl_http *http, bool *changed_p, struct zps_error *error) {
  struct identity *identity = NULL;
  struct server *server = NULL;
  *changed_p = false;
  if (!http->is_tls) return ZPS_OK;
  zps_err_t err = identity_create(&http->config.files, &identity, error);
  if (!err && same_files(identity, http->server->identity)) {
    identity_destroy(identity);
    return ZPS_OK;
  }
  if (!err) err = server_start(http, identity, &server, error);
  if (err) return err;
  server_stop(http->server);
  http->server = server;
  *changed_p = true;
  return ZPS_OK;
}

void zps_ctl_http_stop(struct zps_ctl_http *http) {
  if (!http) return;
  server_stop(http->server);
  if (http->fd >= 0) close(http->fd);
  free(http);
}

#else
zps_err_t zps_ctl_http_start(const struct zps_ctl_http_config *config, struct zps_ctl_http **http_p,
                             struct zps_error *error) {
  (void)config, (void)http_p;
  return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                  "this zenpsctl was built without libmicrohttpd: install libmicrohttpd-dev, and configure "
                  "--with-microhttpd=yes");
}

const char *zps_ctl_http_url(const struct zps_ctl_http *http) {
  (void)http;
  return "";
}

zps_err_t zps_ctl_http_reload(struct zps_ctl_http *http, bool *changed_p, struct zps_error *error) {
  (void)http, (void)error;
  *changed_p = false;
  return ZPS_OK;
}

void zps_ctl_http_stop(struct zps_ctl_http *http) {
  (void)http;
}
#endif
