#include "worker/tools/elastic.h"

#include <ctype.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/launcher.h"

/* A number of ranks, with its end. */
static bool parse_ranks(const char *text, char end, const char **rest_p, unsigned *ranks_p) {
  char *rest;
  if (!isdigit((unsigned char)*text)) return false; /* strtoull() itself takes signs and leading blanks */
  const unsigned long long ranks = strtoull(text, &rest, 10);
  if (*rest != end || ranks < 1 || ranks > ZPS_LAUNCHER_WORLD_MAX) return false;
  *rest_p = rest + (end != '\0');
  *ranks_p = (unsigned)ranks;
  return true;
}

/* Options that say nothing without --elastic. */
static zps_err_t check_alone(const struct zps_elastic_options *options, struct zps_error *error) {
  if (options->loss == ZPS_RANK_LOSS_CONTINUE || options->loss == ZPS_RANK_LOSS_RESTART)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--on-rank-loss=%s needs an elastic job, since the ranks of any other fail with the first that is "
                    "lost: give --elastic MIN:MAX as well, where the program calls zenps_job_next()",
                    options->loss == ZPS_RANK_LOSS_CONTINUE ? "continue" : "restart");
  if (options->join_wait_ms > 0)
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "--join-wait is how long the ranks of an elastic job wait for more: give --elastic MIN:MAX as well");
  return ZPS_OK;
}

zps_err_t zps_elastic_find(const struct zps_elastic_options *options, struct zps_elastic *elastic,
                           struct zps_error *error) {
  const char *rest = options->range;
  unsigned min, max;
  if (!rest) {
    *elastic = (struct zps_elastic){.loss = ZPS_RANK_LOSS_FAIL};
    return check_alone(options, error);
  }
  if (!parse_ranks(rest, ':', &rest, &min) || !parse_ranks(rest, '\0', &rest, &max))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--elastic: '%.40s' is not MIN:MAX, two numbers of ranks from 1 to %u, such as 2:4", options->range,
                    ZPS_LAUNCHER_WORLD_MAX);
  if (min > max)
    return zps_fail(error, ZPS_ERR_INVALID, "--elastic %s: %u ranks at least are more than %u at most: MIN comes first",
                    options->range, min, max);
  if (options->ranks == 0)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "--elastic is for ranks that zenpsrun starts: give -n N (under another launcher, set "
                    "ZENPS_MIN_WORLD_SIZE=%u and ZENPS_MAX_WORLD_SIZE=%u for the ranks)",
                    min, max);
  if (options->ranks < min || options->ranks > max)
    return zps_fail(error, ZPS_ERR_INVALID, "-n %llu is not within --elastic %s: give -n from %u to %u",
                    (unsigned long long)options->ranks, options->range, min, max);
  *elastic = (struct zps_elastic){.min = min, .max = max, .loss = options->loss};
  if (options->loss == ZPS_RANK_LOSS_AUTO) elastic->loss = ZPS_RANK_LOSS_CONTINUE;
  return ZPS_OK;
}

bool zps_tries_again(struct zps_tries *tries, uint64_t lived_ns) {
  tries->in_a_row = lived_ns < ZPS_TRIES_SOON_S * ZPS_NS_PER_S ? tries->in_a_row + 1 : 0;
  return tries->in_a_row < ZPS_TRIES_MAX;
}
