/* An HTTP server for `zenpsctl export`: GET and HEAD of a few pages, over TLS or on the loopback interface. */
#ifndef ZPS_SERVER_CTL_EXPORT_HTTP_H
#define ZPS_SERVER_CTL_EXPORT_HTTP_H

#include <stddef.h>

#include "common/base/err.h"
#include "common/tls/tls.h"

struct zps_ctl_page {
  unsigned status; /* of HTTP; 0: there is no such page */
  char *body;      /* malloc'd; NULL: no memory */
  size_t len;
};

struct zps_ctl_http_config {
  const char *listen;         /* ADDR:PORT */
  struct zps_tls_files files; /* none named: plain HTTP, which is for the loopback interface alone */
  /* Names of further certificates that may read every page, with commas in between; NULL: none. An administrator's
   * may. */
  const char *allow;
  void *ctx;
  /* On a thread of the connection; may take seconds. `is_trusted`: the caller may read everything. Else only pages that
   * say no more than yes or no are for it, and others get status 403. */
  void (*page)(void *ctx, const char *path, bool is_trusted, struct zps_ctl_page *page_p);
};

struct zps_ctl_http;

/* Listens. `config` and its strings must outlive the server. ZPS_ERR_INVALID: an address that plain HTTP is not for, or
 * files that make no identity; ZPS_ERR_BUSY: the port is in use; ZPS_ERR_IO. Without libmicrohttpd ZPS_ERR_UNSUPPORTED.
 */
zps_err_t zps_ctl_http_start(const struct zps_ctl_http_config *config, struct zps_ctl_http **http_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* "https://10.0.0.1:7079", with the port that it has. */
const char *zps_ctl_http_url(const struct zps_ctl_http *http);
/* Serves with the certificate files as they are now, if they have changed. On an error the old ones stay in use. */
zps_err_t zps_ctl_http_reload(struct zps_ctl_http *http, bool *changed_p, struct zps_error *error) ZPS_MUSTCHECK;
void zps_ctl_http_stop(struct zps_ctl_http *http); /* NULL is allowed */

#endif
