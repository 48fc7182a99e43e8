/* zenpsctl token: makes and shows keys and tokens, which let ranks into jobs (common/token). It asks no coordinator. */
#ifndef ZPS_SERVER_CTL_TOKEN_H
#define ZPS_SERVER_CTL_TOKEN_H

#include <stdio.h>

#include "common/base/err.h"

/* `argv` begins with the word "token". ZPS_ERR_INVALID: a word, an option or what a file holds is wrong. */
zps_err_t zps_ctl_token_run(int argc, char **argv, FILE *out, struct zps_error *error) ZPS_MUSTCHECK;

#endif
