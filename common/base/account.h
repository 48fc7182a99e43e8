/* Bytes that are held on somebody's behalf, counted where they are taken and given back. An account outlives who opened
 * it for as long as bytes are out. One thread's. */
#ifndef ZPS_BASE_ACCOUNT_H
#define ZPS_BASE_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct zps_account {
  uint64_t bytes;
  unsigned n_orphans; /* some of them come back when a peer has been read, and nobody waits for what is read */
  bool is_closed;     /* goes when its last bytes come back */
};

/* NULL: no memory. */
static inline struct zps_account *zps_account_open(void) {
  return calloc(1, sizeof(struct zps_account));
}

/* All of these allow NULL, which counts nothing. */
static inline void zps_account_add(struct zps_account *account, uint64_t bytes) {
  if (account) account->bytes += bytes;
}
static inline void zps_account_sub(struct zps_account *account, uint64_t bytes) {
  if (!account) return;
  account->bytes -= bytes;
  if (account->is_closed && account->bytes == 0) free(account);
}
static inline void zps_account_close(struct zps_account *account) {
  if (!account) return;
  account->is_closed = true;
  if (account->bytes == 0) free(account);
}

#endif
