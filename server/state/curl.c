#include "config.h"
#ifdef HAVE_CURL
#include "server/state/curl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#define LIBRARY "libcurl.so.4"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct zps_curl curl;
static char why[256]; /* empty: it is loaded */

static void load(void) {
  void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const struct {
    const char *name;
    void *to;
  } functions[] = {
      {"curl_easy_init", &curl.easy_init},           {"curl_easy_reset", &curl.easy_reset},
      {"curl_easy_setopt", &curl.easy_setopt},       {"curl_easy_perform", &curl.easy_perform},
      {"curl_easy_getinfo", &curl.easy_getinfo},     {"curl_easy_strerror", &curl.easy_strerror},
      {"curl_easy_cleanup", &curl.easy_cleanup},     {"curl_slist_append", &curl.slist_append},
      {"curl_slist_free_all", &curl.slist_free_all},
  };
  for (unsigned i = 0; library && i < sizeof functions / sizeof functions[0]; i++) {
    void *const function = dlsym(library, functions[i].name);
    if (!function) break;
    *(void **)functions[i].to = function; /* POSIX's own way with dlsym() */
  }
  if (!curl.slist_free_all) snprintf(why, sizeof why, "%s", dlerror());
}

zps_err_t zps_curl_load(const struct zps_curl **curl_p, struct zps_error *error) {
  pthread_once(&once, load);
  if (why[0])
    return zps_fail(error, ZPS_ERR_UNSUPPORTED,
                    LIBRARY ", by which zenpsd reaches etcd, cannot be loaded (%.200s): install it (Debian: libcurl4)",
                    why);
  *curl_p = &curl;
  return ZPS_OK;
}
#endif
