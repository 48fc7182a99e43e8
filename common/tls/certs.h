/* A small authority for a cluster, and certificates that it makes: keys on curve P-256, roles as tls.h has them. Over
 * memory; and what a certificate in a file says. */
#ifndef ZPS_TLS_CERTS_H
#define ZPS_TLS_CERTS_H

#include "common/tls/tls.h"

struct zps_authority;

/* From when until when a certificate is valid, in seconds of the calendar. */
struct zps_certs_span {
  long long from_s, until_s;
};
/* A certificate and its private key, as text (PEM); zps_certs_pair_fini() wipes the key. */
struct zps_certs_pair {
  char *cert, *key;
};

/* A new one. */
zps_err_t zps_authority_make(const struct zps_certs_span *span, struct zps_authority **authority_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
/* One that was made before. ZPS_ERR_INVALID: the text is none, is that of no authority, or the key is another one's. */
zps_err_t zps_authority_read(const struct zps_certs_pair *pair, struct zps_authority **authority_p,
                             struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_authority_write(const struct zps_authority *authority, struct zps_certs_pair *pair_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
void zps_authority_destroy(struct zps_authority *authority); /* NULL is allowed */
/* ZPS_ERR_INVALID: no name for a certificate of these roles (bits). A name has letters, digits, '-', '.', '_' and '~'.
 * A name for servers alone may end in `*`, or be `*`. */
zps_err_t zps_certs_check_name(unsigned roles, const char *name, struct zps_error *error) ZPS_MUSTCHECK;
/* A certificate for `name` in each of `roles` (bits). ZPS_ERR_INVALID: zps_certs_check_name() refuses the name. */
zps_err_t zps_certs_make(const struct zps_authority *authority, unsigned roles, const char *name,
                         const struct zps_certs_span *span, struct zps_certs_pair *pair_p,
                         struct zps_error *error) ZPS_MUSTCHECK;
void zps_certs_pair_fini(struct zps_certs_pair *pair);

/* A revocation list (PEM, the caller's to free), how many certificates it has, and its end. */
struct zps_certs_list {
  char *text;
  unsigned n;
  char until[40];
};
/* The list `before` (NULL: none yet) with these certificates (PEM) in addition, valid as long as the authority.
 * ZPS_ERR_INVALID: `before`, or a certificate, is none of this authority; the text does not name which. */
zps_err_t zps_authority_revoke(const struct zps_authority *authority, const char *before, const char *const *certs,
                               unsigned n, struct zps_certs_list *list_p, struct zps_error *error) ZPS_MUSTCHECK;

/* What a certificate (PEM) says, for people; the first of the text. */
struct zps_certs_facts {
  char subject[200], issuer[200], roles[200], from[40], until[40]; /* roles: URIs, or "authority", "" */
  long long until_s;                                               /* seconds of the calendar */
  bool is_authority, has_expired;
};
zps_err_t zps_certs_look(const char *pem, struct zps_certs_facts *facts_p, struct zps_error *error) ZPS_MUSTCHECK;

#endif
