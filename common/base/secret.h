/* Words that nobody can guess: by which a process is known again, ids of jobs, seeds. From the kernel's generator. */
#ifndef ZPS_BASE_SECRET_H
#define ZPS_BASE_SECRET_H

#include <stdint.h>

#include "common/base/err.h"

/* Never 0. ZPS_ERR_UNSUPPORTED, with errno set: this kernel has no such generator. */
zps_err_t zps_secret_make(uint64_t *secret_p) ZPS_MUSTCHECK;

/* Of a job: its servers and ranks know it, and nobody else. */
struct zps_secret {
  uint8_t bytes[16];
};

#endif
