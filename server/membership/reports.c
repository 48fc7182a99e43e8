/* Reports of ranks on their rounds: added up per tensor and per rank, and rounds between ranks put together. */
#include <stdlib.h>
#include <string.h>

#include "server/membership/members_impl.h"

/* A tensor of the library's own, such as "@barrier". */
static bool is_internal(const char *tensor) {
  return tensor[0] == '@';
}

zps_err_t zps_members_tally(struct zps_member_client *client, uint64_t job_id, uint32_t tensor, uint64_t done,
                            const struct zps_tally *growth, uint64_t now_ns, struct zps_error *error) {
  struct zps_member_job *const job = client->job;
  if (!job || job->job_id != job_id || job->state < ZPS_JOB_RUNNING)
    return zps_fail(error, ZPS_ERR_UNKNOWN, "this connection has not joined job 0x%016llx", (unsigned long long)job_id);
  struct zps_member_tensor *const to = zps_members_tensor_find(job, tensor);
  if (!to && tensor < job->next_tensor) return ZPS_OK; /* It was closed meanwhile. */
  if (!to) return zps_fail(error, ZPS_ERR_UNKNOWN, "job '%s' has no tensor %u", job->name, tensor);
  struct zps_member_rank *const rank = job->ranks[client->rank];
  zps_tally_add(&to->tally, growth);
  if (done > to->rounds_done) to->rounds_done = done;
  to->reported_ns = rank->reported_ns = now_ns;
  if (!is_internal(to->spec.name)) zps_tally_add(&rank->tally, growth);
  return ZPS_OK;
}

static zps_err_t check_round(const struct zps_member_job *job, const struct zps_rank_round *round,
                             struct zps_error *error) {
  if (round->tensor >= job->next_tensor)
    return zps_fail(error, ZPS_ERR_INVALID, "job '%s' has no tensor %u", job->name, round->tensor);
  for (uint32_t i = 0; i < round->n_ranks; i++)
    if (round->ranks[i] >= job->world)
      return zps_fail(error, ZPS_ERR_INVALID, "a round waits for rank %u, of %u ranks", round->ranks[i], job->world);
  return ZPS_OK;
}

zps_err_t zps_members_rank_report(struct zps_member_client *client, const struct zps_rank_report *report,
                                  uint64_t now_ns, struct zps_error *error) {
  zps_err_t err = zps_members_running(client->job, report->job_id, error);
  for (uint32_t i = 0; !err && i < report->n_rounds; i++) err = check_round(client->job, &report->rounds[i], error);
  if (err) return err;
  struct zps_member_rank *const rank = client->job->ranks[client->rank];
  rank->kept_bytes = report->kept_bytes;
  rank->mishaps = report->mishaps;
  rank->load = report->load;
  rank->rounds_ns = now_ns;
  rank->n_rounds = report->n_rounds;
  memcpy(rank->rounds, report->rounds, sizeof rank->rounds);
  return ZPS_OK;
}

struct zps_tally zps_member_job_tally(const struct zps_member_job *job) {
  struct zps_tally sum = {0};
  uint64_t rounds = 0;
  for (uint32_t i = 0; i < job->n_tensors; i++) {
    const struct zps_member_tensor *const tensor = job->tensors[i];
    if (is_internal(tensor->spec.name)) continue;
    zps_tally_add(&sum, &tensor->tally);
    rounds += tensor->rounds_done;
  }
  sum.rounds = rounds;
  return sum;
}

/* ------------------------------------------------------------ rounds between ranks */

enum { HERE = 1, WAITS = 2, AWAITED = 4 };

/* One rank's part of a round. */
struct part {
  const struct zps_rank_round *round;
  uint64_t reported_ns;
  uint32_t rank;
};

static int by_round(const void *a, const void *b) {
  const struct zps_rank_round *const one = ((const struct part *)a)->round, *const other =
                                                                                ((const struct part *)b)->round;
  if (one->tensor != other->tensor) return one->tensor < other->tensor ? -1 : 1;
  return (one->step > other->step) - (one->step < other->step);
}

static size_t collect(const struct zps_member_job *job, uint64_t now_ns, uint64_t fresh_ns, struct part *parts) {
  size_t n = 0;
  for (uint32_t r = 0; r < job->world; r++) {
    const struct zps_member_rank *const rank = job->ranks[r];
    if (!rank || rank->state != ZPS_RANK_IN || rank->n_rounds == 0 || rank->rounds_ns + fresh_ns < now_ns) continue;
    for (uint32_t i = 0; i < rank->n_rounds; i++)
      parts[n++] = (struct part){.round = &rank->rounds[i], .reported_ns = rank->rounds_ns, .rank = r};
  }
  qsort(parts, n, sizeof *parts, by_round);
  return n;
}

/* The ranks with `has` and without `lacks`. */
static void name_ranks(struct zps_member_round *round, const uint8_t *flags, uint32_t world, uint8_t has,
                       uint8_t lacks) {
  for (uint32_t r = 0; r < world; r++) {
    if (!(flags[r] & has) || (flags[r] & lacks)) continue;
    if (round->n_ranks < ZPS_RANK_AWAITED_MAX) round->ranks[round->n_ranks] = r;
    round->n_ranks++;
  }
}

static struct zps_member_round merge(const struct part *parts, size_t n, uint64_t now_ns, uint32_t world,
                                     uint8_t *flags) {
  struct zps_member_round round = {.step = parts->round->step, .left_ms = UINT64_MAX};
  memset(flags, 0, world);
  for (size_t i = 0; i < n; i++) {
    const struct zps_rank_round *const part = parts[i].round;
    const uint64_t since_ms = now_ns > parts[i].reported_ns ? (now_ns - parts[i].reported_ns) / ZPS_NS_PER_MS : 0;
    const uint64_t left_ms = part->left_ms > since_ms ? part->left_ms - since_ms : 0;
    if (part->age_ms + since_ms > round.age_ms) round.age_ms = part->age_ms + since_ms;
    if (left_ms < round.left_ms) round.left_ms = left_ms;
    flags[parts[i].rank] |= part->n_ranks > 0 ? HERE | WAITS : HERE;
    for (uint32_t j = 0; j < part->n_ranks; j++) flags[part->ranks[j]] |= AWAITED;
  }
  name_ranks(&round, flags, world, AWAITED, WAITS);
  if (round.n_ranks == 0) name_ranks(&round, flags, world, AWAITED, 0); /* Each waits for another one. */
  round.computes = round.n_ranks == 0;
  if (round.computes) name_ranks(&round, flags, world, HERE, 0);
  return round;
}

uint32_t zps_member_job_rounds(const struct zps_member_job *job, uint64_t now_ns, uint64_t fresh_ns,
                               void (*visit)(void *ctx, const struct zps_member_job *job,
                                             const struct zps_member_round *round),
                               void *ctx) {
  struct part *const parts = calloc((size_t)job->world * ZPS_RANK_ROUNDS_MAX + 1, sizeof *parts);
  uint8_t *const flags = calloc(job->world + 1, sizeof *flags);
  const size_t n = parts && flags ? collect(job, now_ns, fresh_ns, parts) : 0;
  uint32_t n_rounds = 0, n_out = 0;
  for (size_t i = 0, end; i < n; i = end) {
    for (end = i + 1; end < n && by_round(&parts[i], &parts[end]) == 0; end++) continue;
    const struct zps_member_tensor *const tensor = zps_members_tensor_find(job, parts[i].round->tensor);
    if (!tensor) continue; /* It was closed meanwhile. */
    if (n_rounds == ZPS_MEMBER_ROUNDS_MAX) {
      n_out++;
      continue;
    }
    struct zps_member_round round = merge(parts + i, end - i, now_ns, job->world, flags);
    round.tensor = tensor;
    visit(ctx, job, &round);
    n_rounds++;
  }
  free(flags);
  free(parts);
  return n_out;
}
