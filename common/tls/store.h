/* A folder with an authority, and the certificates that it has made: NAME.pem and NAME.key each. */
#ifndef ZPS_TLS_STORE_H
#define ZPS_TLS_STORE_H

#include "common/tls/certs.h"

struct zps_certs_store {
  char *folder;
  struct zps_authority *authority;
};

/* The folder is made where it is not there (0700), and an authority in it (ca.pem and ca.key) where there is none.
 * ZPS_ERR_INVALID, ZPS_ERR_IO: what is there cannot be read, or is none. */
zps_err_t zps_certs_store_open(const char *folder, struct zps_certs_store *store_p, bool *is_new_p,
                               struct zps_error *error) ZPS_MUSTCHECK;
void zps_certs_store_close(struct zps_certs_store *store);
/* FILE.pem and FILE.key, valid from some minutes ago on, as clocks differ. They take the place of those that are there,
 * each at once and whole. */
zps_err_t zps_certs_store_make(const struct zps_certs_store *store, unsigned roles, const char *name, const char *file,
                               long long until_s, struct zps_error *error) ZPS_MUSTCHECK;
/* Adds certificates of the authority to its revocation list, crl.pem, which is made where there is none; all of them or
 * none. Each is FILE of FILE.pem in the folder, or a path with '/' or ".pem" in it. list_p->text is NULL.
 * ZPS_ERR_INVALID: one is no certificate of this authority; ZPS_ERR_IO. */
zps_err_t zps_certs_store_revoke(const struct zps_certs_store *store, char *const *files, unsigned n,
                                 struct zps_certs_list *list_p, struct zps_error *error) ZPS_MUSTCHECK;
/* A text file, of less than `size` bytes. */
zps_err_t zps_certs_file_read(const char *path, char *text, size_t size, struct zps_error *error) ZPS_MUSTCHECK;

#endif
