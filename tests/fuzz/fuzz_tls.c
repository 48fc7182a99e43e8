/* Takes arbitrary bytes for what comes over a connection. With 'l' or 'c' in front they are sent as they are to a
 * listener's or a client's session: none of it may be taken for something that a peer has said. Else each byte is a
 * step of two sessions that speak to each other: one says something, bytes travel in pieces, are changed, lost or sent
 * twice. Whatever an end hears must be what the other end has said, from the beginning on and nothing else, and each
 * failure must have words. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/tls/certs.h"
#include "common/tls/store.h"
#include "common/tls/tls.h"
#include "tests/fuzz/fuzz.h"

enum { SAID_MAX = 4096, HEARD_MAX = 2 * SAID_MAX };

struct end {
  struct zps_tls_session *session;
  char *wire; /* from this end, on its way */
  size_t wire_len;
  char heard[HEARD_MAX];
  size_t n_said, n_heard;
  bool failed;
};

static struct zps_tls *tls[2]; /* the client's, the listener's */

static void need(bool holds) {
  if (!holds) abort();
}

static struct zps_tls *identity(const struct zps_certs_store *store, unsigned role, const char *name) {
  char ca[200], cert[200], key[200];
  struct zps_tls *made = NULL;
  need(zps_certs_store_make(store, role, name, name, (long long)time(NULL) + 86400, NULL) == ZPS_OK);
  snprintf(ca, sizeof ca, "%s/ca.pem", store->folder);
  snprintf(cert, sizeof cert, "%s/%s.pem", store->folder, name);
  snprintf(key, sizeof key, "%s/%s.key", store->folder, name);
  const struct zps_tls_files files = {.ca = ca, .cert = cert, .key = key};
  need(zps_tls_create(&files, &made, NULL) == ZPS_OK);
  return made;
}

static char folder[] = "/tmp/zenps-fuzz-XXXXXX";

static void release(void) {
  static const char *const files[] = {"ca", "worker", "coordinator"};
  char path[80];
  zps_tls_unref(tls[0]);
  zps_tls_unref(tls[1]);
  for (unsigned i = 0; i < 6; i++) {
    snprintf(path, sizeof path, "%s/%s.%s", folder, files[i / 2], i % 2 ? "key" : "pem");
    unlink(path);
  }
  rmdir(folder);
}

static void prepare(void) {
  struct zps_certs_store store;
  bool is_new;
  if (tls[0]) return;
  need(mkdtemp(folder) && zps_certs_store_open(folder, &store, &is_new, NULL) == ZPS_OK);
  tls[0] = identity(&store, ZPS_TLS_WORKER, "worker");
  tls[1] = identity(&store, ZPS_TLS_COORDINATOR, "coordinator");
  zps_certs_store_close(&store);
  atexit(release);
}

/* The n-th byte that an end says. */
static char word(const struct end *end, size_t n, const struct end *client) {
  return (char)((n * 7 + (end == client ? 1 : 2)) & 0x7f);
}

static void hear(struct end *end, const char *bytes, size_t len) {
  struct zps_error error = {.text = ""};
  size_t n = 1;
  if (end->failed) return;
  zps_err_t err = zps_tls_take(end->session, bytes, len, &error);
  while (err == ZPS_OK && n > 0 && end->n_heard < HEARD_MAX) {
    err = zps_tls_read(end->session, end->heard + end->n_heard, HEARD_MAX - end->n_heard, &n, &error);
    need(err == ZPS_OK || n == 0);
    end->n_heard += n;
  }
  end->failed = err != ZPS_OK;
  need(!end->failed || (error.code == err && error.text[0]));
}

/* What its session has is added to what is on its way. */
static void load(struct end *end) {
  char *bytes;
  size_t len;
  need(zps_tls_send(end->session, &bytes, &len) == ZPS_OK);
  char *all = len ? realloc(end->wire, end->wire_len + len) : NULL;
  if (all) {
    memcpy(all + end->wire_len, bytes, len);
    end->wire = all;
    end->wire_len += len;
  }
  free(bytes);
}

static void step(struct end *from, struct end *to, const struct end *client, unsigned what, unsigned arg) {
  load(from);
  const size_t len = from->wire_len, part = len < arg + 1 ? len : arg + 1;
  switch (what) {
    case 0: /* all that is on its way */
    case 1: /* some of it */
      hear(to, from->wire, what == 0 ? len : part);
      from->wire_len -= what == 0 ? len : part;
      if (from->wire_len) memmove(from->wire, from->wire + (len - from->wire_len), from->wire_len);
      break;
    case 2: /* is changed, lost or doubled */
      if (len && arg < 16) from->wire[arg * len / 16] ^= (char)(1 << (arg % 8));
      if (len && arg >= 16 && arg < 24) from->wire_len = len * (arg - 16) / 8;
      if (len && arg >= 24) hear(to, from->wire, len * (arg - 23) / 8);
      break;
    default:
      for (unsigned i = 0; i <= arg && from->n_said < SAID_MAX && !from->failed; i++) {
        const char said = word(from, from->n_said, client);
        if (zps_tls_write(from->session, &said, 1, NULL) != ZPS_OK) return;
        from->n_said++;
      }
  }
}

static void check_heard(const struct end *end, const struct end *other, const struct end *client) {
  need(end->n_heard <= other->n_said);
  for (size_t i = 0; i < end->n_heard; i++) need(end->heard[i] == word(other, i, client));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct end ends[2] = {{.n_said = 0}, {.n_said = 0}}; /* the client, the listener */
  prepare();
  for (unsigned i = 0; i < 2; i++) need(zps_tls_session_create(tls[i], i == 1, &ends[i].session, NULL) == ZPS_OK);
  if (size > 0 && (data[0] == 'l' || data[0] == 'c')) {
    struct end *const end = &ends[data[0] == 'l'];
    hear(end, (const char *)data + 1, size - 1);
    need(end->n_heard == 0 && zps_tls_peer_roles(end->session) == 0);
  } else {
    for (size_t i = 0; i < size; i++)
      step(&ends[data[i] & 1], &ends[!(data[i] & 1)], &ends[0], data[i] >> 1 & 3, data[i] >> 3);
    check_heard(&ends[0], &ends[1], &ends[0]);
    check_heard(&ends[1], &ends[0], &ends[0]);
  }
  for (unsigned i = 0; i < 2; i++) {
    zps_tls_session_destroy(ends[i].session);
    free(ends[i].wire);
  }
  return 0;
}
