/* zenpsctl state check: what a coordinator's journal holds, and whether one could start from it. It asks no
 * coordinator, and writes nothing. */
#ifndef ZPS_SERVER_CTL_STATE_H
#define ZPS_SERVER_CTL_STATE_H

#include <stdio.h>

#include "common/base/err.h"

/* `argv` begins with the word "state". ZPS_ERR_INVALID: a word or option is wrong. ZPS_ERR_IO: the journal cannot be
 * read, or is damaged, which `error` says, with the byte. */
zps_err_t zps_ctl_state_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;

#endif
