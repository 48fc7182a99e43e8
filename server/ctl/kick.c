/* kick: one call. */
#include <stdlib.h>
#include <string.h>

#include "server/ctl/ctl.h"

static zps_err_t params_of(const struct zps_ctl_options *options, char **args, unsigned n_args, zps_json **params_p,
                           struct zps_error *error) {
  (void)n_args;
  const size_t n_digits = strspn(args[1], "0123456789");
  if (n_digits == 0 || n_digits > 9 || args[1][n_digits])
    return zps_fail(error, ZPS_ERR_INVALID, "kick: '%.80s' is no rank: a number, as zenpsctl members shows it",
                    args[1]);
  *params_p = zps_json_set_str(zps_json_object(), "name", args[0]);
  *params_p = zps_json_set_u64(*params_p, "rank", strtoull(args[1], NULL, 10));
  if (options->reason) *params_p = zps_json_set_str(*params_p, "reason", options->reason);
  return ZPS_OK;
}

const struct zps_ctl_change zps_ctl_kick = {.args = "JOB RANK",
                                            .min_args = 2,
                                            .max_args = 2,
                                            .wants =
                                                "the name of a job and the number of a rank, as zenpsctl members "
                                                "shows them",
                                            .params = params_of};
