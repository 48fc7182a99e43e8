/*
 * The knowledge of a process for its next start: records in a journal (journal.h). A process appends the records of one
 * turn of its loop and commits them together, before it tells anybody of their consequences. When the journal has grown
 * it is replaced by a shorter one with the same meaning.
 *
 * The backend decides where the bytes are: files here, memory in tests. The latter can lose uncommitted bytes and tear
 * what was being written. A backend that has failed once is not used again: after a failed fsync() the contents of the
 * disk are unknown.
 */
#ifndef ZPS_SERVER_STATE_STORE_H
#define ZPS_SERVER_STATE_STORE_H

#include "server/state/journal.h"

struct zps_store_backend;
struct zps_store_ops {
  /* All bytes, malloc'd with one more than *len_p, which is 0 where there is no journal. */
  zps_err_t (*read)(struct zps_store_backend *backend, char **data_p, size_t *len_p, struct zps_error *error);
  zps_err_t (*write)(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error);
  /* What was written is durable. */
  zps_err_t (*sync)(struct zps_store_backend *backend, struct zps_error *error);
  /* Durable, or all as before. */
  zps_err_t (*replace)(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error);
  /* As replace, with the first `len` bytes of what there is: needs no room for them. */
  zps_err_t (*cut)(struct zps_store_backend *backend, const char *data, size_t len, struct zps_error *error);
  void (*close)(struct zps_store_backend *backend);
};
/* First member of a backend's own struct. */
struct zps_store_backend {
  const struct zps_store_ops *ops;
  const char *name; /* for texts */
};

struct zps_store;

/* Hands all records to `take` (whose failure is this function's, with the `error` that it left), and cuts a torn tail
 * off. ZPS_ERR_IO: a record is damaged; the text says at which byte. The backend is the store's when this succeeds. */
zps_err_t zps_store_open(struct zps_store_backend *backend, zps_journal_take_fn *take, void *ctx,
                         struct zps_store **store_p, struct zps_error *error) ZPS_MUSTCHECK;
/* What was not committed is dropped. NULL is allowed. */
void zps_store_close(struct zps_store *store);
/* A failure shows in the next commit. */
void zps_store_append(struct zps_store *store, const char *text);
bool zps_store_is_dirty(const struct zps_store *store);
/* All that was appended is durable. After a failure the store takes nothing more. */
zps_err_t zps_store_commit(struct zps_store *store, struct zps_error *error) ZPS_MUSTCHECK;
/* Bytes on disk. */
size_t zps_store_size(const struct zps_store *store);
/* Replaces the journal by what `fill` appends. Nothing may be waiting for a commit. */
zps_err_t zps_store_compact(struct zps_store *store, void (*fill)(void *ctx), void *ctx,
                            struct zps_error *error) ZPS_MUSTCHECK;

/* Files in a folder, which is made where it is missing, and locked: ZPS_ERR_BUSY when another process has it. */
zps_err_t zps_store_file_open(const char *folder, struct zps_store_backend **backend_p,
                              struct zps_error *error) ZPS_MUSTCHECK;

#endif
