/* libcurl, loaded when it is first needed: a daemon that does not use etcd takes neither it nor what it is linked with.
 */
#ifndef ZPS_SERVER_STATE_CURL_H
#define ZPS_SERVER_STATE_CURL_H

#include <curl/curl.h>

#include "common/base/err.h"

struct zps_curl {
  __typeof__(curl_easy_init) *easy_init;
  __typeof__(curl_easy_reset) *easy_reset;
  __typeof__(curl_easy_setopt) *easy_setopt;
  __typeof__(curl_easy_perform) *easy_perform;
  __typeof__(curl_easy_getinfo) *easy_getinfo;
  __typeof__(curl_easy_strerror) *easy_strerror;
  __typeof__(curl_easy_cleanup) *easy_cleanup;
  __typeof__(curl_slist_append) *slist_append;
  __typeof__(curl_slist_free_all) *slist_free_all;
};

/* It is loaded once, and stays. From any thread. ZPS_ERR_UNSUPPORTED: it is not there. */
zps_err_t zps_curl_load(const struct zps_curl **curl_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
