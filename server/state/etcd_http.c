/* Calls of etcd over HTTP, by libcurl. A transport keeps its connection from call to call. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config.h"
#ifdef HAVE_CURL
#include <curl/curl.h>
#endif
#include "server/state/etcd.h"

#define MEMBERS_MAX 16u
#define MEMBER_SIZE 300u

/* ------------------------------------------------------------ the list of members */

struct members {
  unsigned n, now;
  char url[MEMBERS_MAX][MEMBER_SIZE]; /* without a slash at its end */
};

static bool has_scheme(const char *url, size_t len, const char *scheme) {
  const size_t n = strlen(scheme);
  return len > n && strncmp(url, scheme, n) == 0;
}

static zps_err_t add_member(struct members *members, const char *text, size_t len, struct zps_error *error) {
  const unsigned number = members->n + 1;
  while (len > 0 && strchr(" \t", *text)) text++, len--;
  while (len > 0 && strchr(" \t/", text[len - 1])) len--;
  if (!has_scheme(text, len, "http://") && !has_scheme(text, len, "https://"))
    return zps_fail(error, ZPS_ERR_INVALID, "URL %u of etcd is '%.*s': must be http://HOST:PORT or https://HOST:PORT",
                    number, len > 200 ? 200 : (int)len, text);
  if (members->n == MEMBERS_MAX || len >= MEMBER_SIZE)
    return zps_fail(error, ZPS_ERR_INVALID, "there can be %u URLs of etcd, of %u bytes each", MEMBERS_MAX,
                    MEMBER_SIZE - 1);
  memcpy(members->url[members->n], text, len);
  members->url[members->n++][len] = '\0';
  return ZPS_OK;
}

static zps_err_t parse_members(const char *text, struct members *members, struct zps_error *error) {
  *members = (struct members){.n = 0};
  for (const char *at = text;; at++) {
    const size_t len = strcspn(at, ",");
    const zps_err_t err = add_member(members, at, len, error);
    if (err) return err;
    at += len;
    if (!*at) return ZPS_OK;
  }
}

#ifdef HAVE_CURL

/* libcurl is loaded when it is first needed, and stays. A daemon without etcd loads neither it nor its libraries. */
struct curl {
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

#define LIBRARY "libcurl.so.4"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct curl libcurl;
static char why_not[256]; /* empty: it is loaded */

static void load(void) {
  void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const struct {
    const char *name;
    void *to;
  } functions[] = {
      {"curl_easy_init", &libcurl.easy_init},           {"curl_easy_reset", &libcurl.easy_reset},
      {"curl_easy_setopt", &libcurl.easy_setopt},       {"curl_easy_perform", &libcurl.easy_perform},
      {"curl_easy_getinfo", &libcurl.easy_getinfo},     {"curl_easy_strerror", &libcurl.easy_strerror},
      {"curl_easy_cleanup", &libcurl.easy_cleanup},     {"curl_slist_append", &libcurl.slist_append},
      {"curl_slist_free_all", &libcurl.slist_free_all},
  };
  for (unsigned i = 0; library && i < sizeof functions / sizeof functions[0]; i++) {
    void *const function = dlsym(library, functions[i].name);
    if (!function) break;
    *(void **)functions[i].to = function; /* POSIX's own way with dlsym() */
  }
  if (!libcurl.slist_free_all) snprintf(why_not, sizeof why_not, "%s", dlerror());
}

static zps_err_t load_curl(const struct curl **curl_p, struct zps_error *error) {
  pthread_once(&once, load);
  if (why_not[0])
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    LIBRARY ", by which zenpsd reaches etcd, cannot be loaded (%.200s): install it (Debian: libcurl4)",
                    why_not);
  *curl_p = &libcurl;
  return ZPS_OK;
}

struct http {
  struct zps_etcd_transport transport;
  struct members members;
  const struct curl *lib;
  CURL *curl;
  struct curl_slist *headers;
  char *ca, *cert, *key;
  atomic_bool interrupted;
  char why[CURL_ERROR_SIZE]; /* of the last call; libcurl's as long as the handle lives */
};

zps_err_t zps_etcd_http_check(const char *text, struct zps_error *error) {
  struct members members;
  const struct curl *lib;
  const zps_err_t err = parse_members(text, &members, error);
  return err ? err : load_curl(&lib, error);
}

static size_t on_bytes(char *data, size_t size, size_t n, void *ctx) {
  struct zps_etcd_answer *answer = ctx;
  const size_t len = size * n;
  char *const grown = realloc(answer->body, answer->len + len + 1);
  if (!grown) return 0;
  memcpy(grown + answer->len, data, len);
  answer->body = grown;
  answer->len += len;
  answer->body[answer->len] = '\0';
  return len;
}

static int on_progress(void *ctx, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up) {
  const struct http *http = ctx;
  (void)down_all, (void)down, (void)up_all, (void)up;
  return atomic_load(&http->interrupted);
}

static void set_options(struct http *http, const char *url, const char *body, uint64_t timeout_ms,
                        struct zps_etcd_answer *answer) {
  const struct curl *const lib = http->lib;
  CURL *const curl = http->curl;
  lib->easy_reset(curl); /* connections stay */
  lib->easy_setopt(curl, CURLOPT_URL, url);
  lib->easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  lib->easy_setopt(curl, CURLOPT_NOPROXY, "*");
  lib->easy_setopt(curl, CURLOPT_HTTPHEADER, http->headers);
  lib->easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
  lib->easy_setopt(curl, CURLOPT_POSTFIELDS, body);
  lib->easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(timeout_ms > 0 ? timeout_ms : 1));
  lib->easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_bytes);
  lib->easy_setopt(curl, CURLOPT_WRITEDATA, answer);
  lib->easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  lib->easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  lib->easy_setopt(curl, CURLOPT_XFERINFODATA, http);
  lib->easy_setopt(curl, CURLOPT_ERRORBUFFER, http->why);
  if (http->ca) lib->easy_setopt(curl, CURLOPT_CAINFO, http->ca);
  if (http->cert) lib->easy_setopt(curl, CURLOPT_SSLCERT, http->cert);
  if (http->key) lib->easy_setopt(curl, CURLOPT_SSLKEY, http->key);
}

static zps_err_t code_of(CURLcode status) {
  if (status == CURLE_OPERATION_TIMEDOUT) return ZPS_ERR_TIMEOUT;
  return status == CURLE_OUT_OF_MEMORY || status == CURLE_WRITE_ERROR ? ZPS_ERR_NOMEM : ZPS_ERR_CONNECT;
}

static zps_err_t http_post(struct zps_etcd_transport *transport, const char *path, const char *body,
                           uint64_t timeout_ms, struct zps_etcd_answer *answer_p, struct zps_error *error) {
  struct http *http = (struct http *)transport;
  struct zps_etcd_answer answer = {.body = NULL};
  const char *const member = http->members.url[http->members.now];
  char url[MEMBER_SIZE + 64];
  long http_status = 0;
  snprintf(url, sizeof url, "%s%s", member, path);
  http->why[0] = '\0';
  set_options(http, url, body, timeout_ms, &answer);
  const CURLcode status = http->lib->easy_perform(http->curl);
  if (status != CURLE_OK) {
    free(answer.body);
    http->members.now = (http->members.now + 1) % http->members.n;
    return zps_fail(error, code_of(status), "etcd at %.150s: %.200s", member,
                    http->why[0] ? http->why : http->lib->easy_strerror(status));
  }
  http->lib->easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &http_status);
  if (http_status >= 500) http->members.now = (http->members.now + 1) % http->members.n;
  answer.status = (unsigned)http_status;
  if (!answer.body) answer.body = calloc(1, 1);
  if (!answer.body) return zps_fail(error, ZPS_ERR_NOMEM, "etcd at %.150s: no memory for its answer", member);
  *answer_p = answer;
  return ZPS_OK;
}

static void http_pause(struct zps_etcd_transport *transport, unsigned ms) {
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  (void)transport;
  nanosleep(&time, NULL);
}

static void http_interrupt(struct zps_etcd_transport *transport, bool is_on) {
  atomic_store(&((struct http *)transport)->interrupted, is_on);
}

static void http_close(struct zps_etcd_transport *transport) {
  struct http *http = (struct http *)transport;
  http->lib->easy_cleanup(http->curl);
  http->lib->slist_free_all(http->headers);
  free(http->ca);
  free(http->cert);
  free(http->key);
  free(http);
}

static const struct zps_etcd_transport_ops http_ops = {
    .post = http_post, .pause = http_pause, .interrupt = http_interrupt, .close = http_close};

static bool copy(char **to, const char *from) {
  if (from) *to = strdup(from);
  return !from || *to;
}

zps_err_t zps_etcd_http_open(const struct zps_etcd_access *access, struct zps_etcd_transport **transport_p,
                             struct zps_error *error) {
  struct members members;
  const struct curl *lib;
  zps_err_t err = parse_members(access->members, &members, error);
  if (!err) err = load_curl(&lib, error);
  if (err) return err;
  struct http *http = calloc(1, sizeof *http);
  if (!http) return zps_fail(error, ZPS_ERR_NOMEM, "no memory to reach etcd");
  http->transport.ops = &http_ops;
  http->members = members;
  http->lib = lib;
  http->curl = lib->easy_init();
  http->headers = lib->slist_append(NULL, "Content-Type: application/json");
  if (http->headers) lib->slist_append(http->headers, "Expect:"); /* a body leaves at once */
  if (!http->curl || !http->headers || !copy(&http->ca, access->ca) || !copy(&http->cert, access->cert) ||
      !copy(&http->key, access->key)) {
    http_close(&http->transport);
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory to reach etcd");
  }
  *transport_p = &http->transport;
  return ZPS_OK;
}

#else

zps_err_t zps_etcd_http_check(const char *text, struct zps_error *error) {
  struct members members;
  const zps_err_t err = parse_members(text, &members, error);
  return err ? err
             : zps_fail(error, ZPS_ERR_UNSUPPORTED,
                        "this zenpsd was built without libcurl, by which it reaches etcd: build it with --with-curl");
}

zps_err_t zps_etcd_http_open(const struct zps_etcd_access *access, struct zps_etcd_transport **transport_p,
                             struct zps_error *error) {
  (void)transport_p;
  return zps_etcd_http_check(access->members, error);
}

#endif
