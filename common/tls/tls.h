/*
 * TLS 1.3 between the processes of a cluster, over memory: this folder sees no socket. Both ends show a certificate
 * that an authority of the cluster made; what a process may do follows from its certificate's alternative names, which
 * are URIs: zenps://coordinator/NAME, zenps://server/NAME, zenps://worker/NAME, zenps://admin/NAME. A client speaks to
 * coordinators alone; a listener to the three others. The name of a server is the one that it may register as.
 *
 * An identity (struct zps_tls) is one process's files, read: from any thread. A session is one connection's, and its
 * owner's thread's.
 */
#ifndef ZPS_TLS_TLS_H
#define ZPS_TLS_TLS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define ZPS_TLS_NAME_MAX 128u /* of a URI, with its NUL */
#define ZPS_TLS_OWNER_BYTES 16u

/* What a certificate lets its owner do: of these, one bit or several. */
enum zps_tls_role {
  ZPS_TLS_COORDINATOR = 1,
  ZPS_TLS_SERVER = 2,
  ZPS_TLS_WORKER = 4,
  ZPS_TLS_ADMIN = 8,
};

/* PEM. `cert` may go on with the certificates between it and the authority's. `crl` has the revocation lists of the
 * authorities; NULL: no certificate is revoked. */
struct zps_tls_files {
  const char *ca, *cert, *key, *crl;
};

/* Whether a certificate's owner may register as the server of a name, and by what: the widest of its names that the
 * name fits. zenps://server/NAME is for NAME alone, and zenps://server/HEAD* for all names that begin with HEAD. */
enum zps_tls_serves {
  ZPS_TLS_SERVES_NOT,
  ZPS_TLS_SERVES_NAMED, /* the name itself */
  ZPS_TLS_SERVES_SOME,  /* HEAD* */
  ZPS_TLS_SERVES_ANY,   /* `*` */
  ZPS_TLS_SERVES_ALL,   /* it is a coordinator's, which all servers and ranks believe anyway */
};
#define ZPS_TLS_SERVERS_MAX 200u /* of a text of such names, with its NUL */

struct zps_tls;
struct zps_tls_session;

/* Whether TLS is asked for at all: any of the files is named. */
static inline bool zps_tls_files_any(const struct zps_tls_files *files) {
  return files->ca || files->cert || files->key || files->crl;
}
/* Reads the files, whose names are copied. ZPS_ERR_INVALID: one of the first three is not named; a key that others may
 * read (more than 0640), or that is another certificate's; a certificate without a role, or that has expired; a
 * revocation list that is none, or has expired. ZPS_ERR_IO: a file cannot be read. */
zps_err_t zps_tls_create(const struct zps_tls_files *files, struct zps_tls **tls_p,
                         struct zps_error *error) ZPS_MUSTCHECK;
unsigned zps_tls_roles(struct zps_tls *tls); /* of its own certificate, one bit or several */
/* A hash of the first URI of its own certificate that names a role: by it, others know the owner. ZPS_ERR_NOMEM. */
zps_err_t zps_tls_owner(struct zps_tls *tls, uint8_t owner_p[ZPS_TLS_OWNER_BYTES],
                        struct zps_error *error) ZPS_MUSTCHECK;
/* The widest right that the own certificate gives the server `name`. `names_p` gets the servers' names in it, as the
 * certificate has them, with commas in between. */
enum zps_tls_serves zps_tls_serves(struct zps_tls *tls, const char *name, char names_p[ZPS_TLS_SERVERS_MAX]);
/* When the own certificate ends, in seconds of the calendar. Reads the files again if they have changed. */
long long zps_tls_ends_s(struct zps_tls *tls);
struct zps_tls *zps_tls_ref(struct zps_tls *tls); /* NULL is allowed */
void zps_tls_unref(struct zps_tls *tls);          /* NULL is allowed */
/* Reads the files again, for sessions to come. Sessions that there are stay, but zps_tls_take() ends those of a peer
 * whose certificate has been revoked since. On an error the ones that were read last go on being used. Files that have
 * changed are also read again, without this call, when the next session begins; the log says with which outcome. */
zps_err_t zps_tls_reload(struct zps_tls *tls, struct zps_error *error) ZPS_MUSTCHECK;

/* Of a listener (it answers), or of a client. */
zps_err_t zps_tls_session_create(struct zps_tls *tls, bool listens, struct zps_tls_session **session_p,
                                 struct zps_error *error) ZPS_MUSTCHECK;
void zps_tls_session_destroy(struct zps_tls_session *session); /* NULL is allowed */
/* Bytes from the peer. ZPS_ERR_REFUSED: one end does not take the other's certificate; ZPS_ERR_PROTOCOL: no TLS, or
 * none that can be gone on with. The text says why, and has no word on who the peer is. After an error there may be
 * bytes for the peer, and nothing else to do. */
zps_err_t zps_tls_take(struct zps_tls_session *session, const void *bytes, size_t len,
                       struct zps_error *error) ZPS_MUSTCHECK;
/* What they say; *len_p is 0 when more bytes are needed. */
zps_err_t zps_tls_read(struct zps_tls_session *session, void *buf, size_t size, size_t *len_p,
                       struct zps_error *error) ZPS_MUSTCHECK;
/* To be said. Until both ends know each other it waits in the session. */
zps_err_t zps_tls_write(struct zps_tls_session *session, const void *bytes, size_t len,
                        struct zps_error *error) ZPS_MUSTCHECK;
/* Nothing more will be said: there are bytes that tell the peer so. */
void zps_tls_end(struct zps_tls_session *session);
/* Takes the bytes that are for the peer: the caller's to free, NULL when there are none. */
zps_err_t zps_tls_send(struct zps_tls_session *session, char **bytes_p, size_t *len_p) ZPS_MUSTCHECK;
/* ---- A session over a socket that does not block, in the place of take, read, write and send ---- */

/* The socket stays the caller's. `takes`: the peer must have one of these roles. */
zps_err_t zps_tls_socket_create(struct zps_tls *tls, int fd, bool listens, unsigned takes,
                                struct zps_tls_session **session_p, struct zps_error *error) ZPS_MUSTCHECK;
/* From now on shake and read together take at most so many bytes from the socket; at first none. Then they do as if it
 * had no more. */
void zps_tls_socket_allow(struct zps_tls_session *session, size_t n_bytes);
/* Goes on until both ends know each other. ZPS_OK without *is_set_p: the socket has to be waited for. Errors of these
 * three are those of zps_tls_take(), and ZPS_ERR_CLOSED: the connection has ended. */
zps_err_t zps_tls_socket_shake(struct zps_tls_session *session, bool *is_set_p, struct zps_error *error) ZPS_MUSTCHECK;
/* The last call waits for room in the socket, not for bytes. */
bool zps_tls_socket_is_full(const struct zps_tls_session *session);
/* ZPS_OK with *len_p = 0: the socket has to be waited for. A write that did nothing has to be repeated, with the same
 * bytes. */
zps_err_t zps_tls_socket_read(struct zps_tls_session *session, void *buf, size_t size, size_t *len_p,
                              struct zps_error *error) ZPS_MUSTCHECK;
zps_err_t zps_tls_socket_write(struct zps_tls_session *session, const void *bytes, size_t len, size_t *len_p,
                               struct zps_error *error) ZPS_MUSTCHECK;

/* ---- The peer ---- */

/* The peer's certificate: its roles, 0 before it was looked at, and the first URI that names one. */
unsigned zps_tls_peer_roles(const struct zps_tls_session *session);
const char *zps_tls_peer_name(const struct zps_tls_session *session);
/* The peer's, when both ends know each other. */
zps_err_t zps_tls_peer_owner(const struct zps_tls_session *session, uint8_t owner_p[ZPS_TLS_OWNER_BYTES],
                             struct zps_error *error) ZPS_MUSTCHECK;
/* When the peer's certificate ends, in seconds of the calendar; 0 before it was looked at. */
long long zps_tls_peer_ends_s(const struct zps_tls_session *session);
/* ZPS_TLS_SERVES_NOT before it was looked at; names_p as above. */
enum zps_tls_serves zps_tls_peer_serves(const struct zps_tls_session *session, const char *name,
                                        char names_p[ZPS_TLS_SERVERS_MAX]);
/* After ZPS_ERR_PROTOCOL: the peer's first byte was none of TLS, so that it can read a plain answer. */
bool zps_tls_peer_is_plain(const struct zps_tls_session *session);
/* Whether the first bytes of a plain connection are the beginning of TLS; three are needed to tell. */
bool zps_tls_is_greeting(const void *bytes, size_t len);

/* For tests: the time, in seconds of the calendar, by which the dates of peers' certificates are looked at. */
void zps_tls_set_time(struct zps_tls *tls, long long time_s);

#endif
