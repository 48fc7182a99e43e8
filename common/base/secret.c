#include "common/base/secret.h"

#include <errno.h>
#include <sys/random.h>
#include <sys/types.h>

zps_err_t zps_secret_make(uint64_t *secret_p) {
  uint64_t word = 0;
  while (word == 0) {
    const ssize_t n = getrandom(&word, sizeof word, 0);
    if (n < 0 && errno != EINTR) return ZPS_ERR_UNSUPPORTED;
    if (n != (ssize_t)sizeof word) word = 0;
  }
  *secret_p = word;
  return ZPS_OK;
}
