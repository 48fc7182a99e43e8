#include "server/ctl/late.h"

#include <stdlib.h>
#include <string.h>

struct lag {
  const char *job, *job_id, *name;
  double rank, tensor, seconds, n_without;
};

static bool are_same(const zps_json *row, const zps_json *other) {
  return number(row, "rank") == number(other, "rank") && number(row, "tensor") == number(other, "tensor") &&
         strcmp(text(row, "job_id"), text(other, "job_id")) == 0 &&
         strcmp(text(row, "server"), text(other, "server")) == 0;
}

/* Rows are sorted, so that the row of an answer mostly has the same place in the other one. */
static const zps_json *row_before(const zps_json *rows, size_t i, const zps_json *row) {
  if (i < zps_json_array_len(rows) && are_same(row, zps_json_at(rows, i))) return zps_json_at(rows, i);
  for (size_t j = 0; j < zps_json_array_len(rows); j++)
    if (are_same(row, zps_json_at(rows, j))) return zps_json_at(rows, j);
  return NULL;
}

static int by_rank_and_tensor(const void *a, const void *b) {
  const struct lag *const one = a, *const other = b;
  const int job = strcmp(one->job, other->job), id = job ? job : strcmp(one->job_id, other->job_id);
  if (id) return id;
  if (one->rank != other->rank) return one->rank < other->rank ? -1 : 1;
  return (one->tensor > other->tensor) - (one->tensor < other->tensor);
}

static struct lag *lags_of(const zps_json *now, const zps_json *before, size_t *n_p) {
  const zps_json *const rows = zps_json_get(now, "lags"), *const old = before ? zps_json_get(before, "lags") : NULL;
  const size_t n = zps_json_array_len(rows);
  struct lag *const lags = calloc(n + 1, sizeof *lags);
  for (size_t i = 0; lags && i < n; i++) {
    const zps_json *const row = zps_json_at(rows, i);
    const zps_json *const had = before ? row_before(old, i, row) : NULL;
    const bool is_known = !before || had;
    const double had_ns = number(had, "lag_ns"), lag_ns = number(row, "lag_ns");
    lags[i] = (struct lag){.job = text(row, "job"),
                           .job_id = text(row, "job_id"),
                           .name = text(row, "name"),
                           .rank = number(row, "rank"),
                           .tensor = number(row, "tensor"),
                           .seconds = is_known && lag_ns > had_ns ? (lag_ns - had_ns) / 1e9 : 0,
                           .n_without = is_known ? number(row, "closed_without") - number(had, "closed_without") : 0};
  }
  *n_p = lags ? n : 0;
  if (lags) qsort(lags, n, sizeof *lags, by_rank_and_tensor);
  return lags;
}

/* The greatest number of this kind among the job's tensors. */
static double most_of(const zps_json *now, const char *job_id, const char *key) {
  const zps_json *const rows = zps_json_get(now, "shards");
  double most = 0;
  for (size_t i = 0; i < zps_json_array_len(rows); i++) {
    const double one = number(zps_json_at(rows, i), key);
    if (one > most && strcmp(text(zps_json_at(rows, i), "job_id"), job_id) == 0) most = one;
  }
  return most;
}

static bool are_of_one_rank(const struct zps_late_rank *rank, const struct lag *lag) {
  return rank->rank == lag->rank && strcmp(rank->job, lag->job) == 0 && strcmp(rank->job_id, lag->job_id) == 0;
}

/* A tensor's servers see a rank's lag at the same time, so that the greatest counts. */
static void add_up(struct zps_late_ranks *late, const struct lag *lags, size_t n) {
  for (size_t i = 0; i < n;) {
    const struct lag *const lag = &lags[i];
    struct zps_late_rank *rank = late->n ? &late->ranks[late->n - 1] : NULL;
    double most_s = 0, n_without = 0;
    for (; i < n && by_rank_and_tensor(lag, &lags[i]) == 0; i++) {
      if (lags[i].seconds > most_s) most_s = lags[i].seconds;
      n_without += lags[i].n_without;
    }
    if (!rank || !are_of_one_rank(rank, lag)) {
      rank = &late->ranks[late->n++];
      *rank = (struct zps_late_rank){.job = lag->job, .job_id = lag->job_id, .rank = lag->rank, .tensor = ""};
    }
    rank->late_s += most_s;
    rank->n_without += n_without;
    if (most_s <= rank->most_s) continue;
    rank->most_s = most_s;
    rank->tensor = lag->name;
  }
}

/* How many rounds the job's ranks have in flight at a time, by the median rank: that many wait for a late rank at once.
 * 1 where reports do not tell. */
static double in_flight(const zps_json *now, const zps_json *before, const char *job_id, double seconds) {
  const zps_json *const rows = zps_json_get(now, "ranks"), *const old = before ? zps_json_get(before, "ranks") : NULL;
  const size_t n = zps_json_array_len(rows);
  double *const totals_ns = calloc(n + 2, sizeof *totals_ns), most = 1;
  size_t n_told = 0;
  for (size_t i = 0; totals_ns && i < n; i++) {
    const zps_json *const row = zps_json_at(rows, i);
    double grown_ns = before ? 0 : number(row, "total_ns");
    if (strcmp(text(row, "job_id"), job_id) != 0) continue;
    for (size_t j = 0; j < zps_json_array_len(old); j++)
      if (are_same(row, zps_json_at(old, j)))
        grown_ns = number(row, "total_ns") - number(zps_json_at(old, j), "total_ns");
    if (grown_ns > 0) totals_ns[n_told++] = grown_ns;
  }
  if (n_told > 0 && seconds > 0) most = zps_ctl_median(totals_ns, n_told + 1, n_told) / 1e9 / seconds;
  free(totals_ns);
  return most > 1 ? most : 1;
}

/* Of the ranks of one job. Servers tell of the latest ranks of a tensor alone: of the others in the world, no lag
 * counts. */
static void judge(struct zps_late_rank *ranks, size_t n, double seconds, double world) {
  const size_t all = world > (double)n ? (size_t)world : n;
  double *const late_s = calloc(all, sizeof *late_s);
  size_t worst = 0;
  for (size_t i = 0; i < n; i++) {
    ranks[i].share = seconds > 0 ? ranks[i].late_s / seconds : 0;
    if (ranks[i].late_s > ranks[worst].late_s) worst = i;
    if (late_s) late_s[i] = ranks[i].late_s;
  }
  ranks[worst].is_late = late_s && all > 1 && ranks[worst].share * 100 >= ZPS_LATE_PERCENT &&
                         ranks[worst].late_s >= ZPS_LATE_FACTOR * zps_ctl_median(late_s, all, worst);
  free(late_s);
}

struct zps_late_ranks zps_late_find(const zps_json *now, const zps_json *before, double seconds) {
  size_t n = 0;
  struct lag *const lags = lags_of(now, before, &n);
  struct zps_late_ranks late = {.ranks = calloc(n + 1, sizeof *late.ranks)};
  if (late.ranks) add_up(&late, lags, n);
  for (size_t i = 0, end; i < late.n; i = end) {
    const char *const job_id = late.ranks[i].job_id;
    for (end = i; end < late.n && strcmp(late.ranks[end].job_id, job_id) == 0; end++) continue;
    const double since_s = before ? seconds : most_of(now, job_id, "age_s");
    judge(late.ranks + i, end - i, since_s * in_flight(now, before, job_id, since_s), most_of(now, job_id, "world"));
  }
  free(lags);
  return late;
}

void zps_late_fini(struct zps_late_ranks *late) {
  free(late->ranks);
  *late = (struct zps_late_ranks){.n = 0};
}

const struct zps_late_rank *zps_late_of(const struct zps_late_ranks *late, const char *job, const char *job_id,
                                        double rank) {
  for (size_t i = 0; i < late->n; i++) {
    const struct zps_late_rank *const of = &late->ranks[i];
    if (of->rank == rank && strcmp(of->job, job) == 0 && (!job_id || strcmp(of->job_id, job_id) == 0)) return of;
  }
  return NULL;
}

static int by_value(const void *a, const void *b) {
  const double one = *(const double *)a, other = *(const double *)b;
  return (one > other) - (one < other);
}

double zps_ctl_median(const double *values, size_t n, size_t without) {
  double *const others = malloc(n * sizeof *others);
  size_t n_others = 0;
  for (size_t i = 0; others && i < n; i++)
    if (i != without) others[n_others++] = values[i];
  if (n_others > 0) qsort(others, n_others, sizeof others[0], by_value);
  const double middle = n_others ? others[n_others / 2] : 0;
  free(others);
  return middle;
}
