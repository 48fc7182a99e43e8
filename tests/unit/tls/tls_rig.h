/* A folder with an authority's certificates, identities made of them, and two sessions that speak over memory. */
#ifndef ZPS_TESTS_TLS_RIG_H
#define ZPS_TESTS_TLS_RIG_H

#include "common/tls/certs.h"
#include "common/tls/tls.h"

#define RIG_DAY_S 86400LL

struct rig {
  char folder[64];
  struct zps_authority *authority;
};

/* Seconds of the calendar. */
long long rig_now(void);
/* A new folder with an authority of its own, whose certificate is in "ca.pem" there. */
void rig_open(struct rig *rig);
void rig_close(struct rig *rig); /* removes the folder */
const char *rig_path(const struct rig *rig, const char *name, const char *suffix, char buf[160]);
/* The text of NAME.pem; the caller frees it. */
char *rig_text(const struct rig *rig, const char *name);
void rig_write(const char *path, const char *text, unsigned mode);
/* NAME.pem and NAME.key, valid from `from_s` until `until_s`, counted from now. */
void rig_cert(struct rig *rig, const char *name, unsigned roles, long long from_s, long long until_s);
/* The outcome of zps_tls_create() with NAME's files and the authority of `trusted`. */
zps_err_t rig_try(const struct rig *rig, const char *name, const struct rig *trusted, struct zps_tls **tls_p,
                  struct zps_error *error);
/* Makes a TLS end that works. */
struct zps_tls *rig_tls(const struct rig *rig, const char *name, const struct rig *trusted);
/* A certificate of some days, and its identity. */
struct zps_tls *rig_identity(struct rig *rig, const char *name, unsigned roles);

/* Adds NAME's certificate (NULL: none) to crl.pem, the revocation list of the rig's authority. `is_first`: makes it. */
void rig_revoke(const struct rig *rig, const char *name, bool is_first);

struct rig_end {
  struct zps_tls_session *session;
  zps_err_t err;
  struct zps_error error;
  char said[4096];
  size_t n_said;
};
struct rig_pair {
  struct rig_end listener, client;
};

void rig_pair_open(struct rig_pair *pair, struct zps_tls *listener, struct zps_tls *client);
/* Carries bytes to and fro, `chunk` of them at a time, until there are none, or an end has failed and been told. */
void rig_pair_run(struct rig_pair *pair, size_t chunk);
void rig_pair_close(struct rig_pair *pair);

#endif
