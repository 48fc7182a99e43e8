/*
 * One table has all metrics: name, type, labels, help, and the source in an answer of the coordinator.
 * deploy/guide/metrics.md repeats the first four; tests/check-options.sh compares them.
 *
 * Rows of an answer with equal labels are one sample. A row without the wanted member makes none.
 */
#include "server/ctl/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/enlarge.h"
#include "common/base/tally.h"

#define TEXT_MAX 256u

enum type { GAUGE, COUNTER, HISTOGRAM };
static const char *const types[] = {[GAUGE] = "gauge", [COUNTER] = "counter", [HISTOGRAM] = "histogram"};

/* What a row's sample is made of. */
enum from {
  NUMBER, /* the member, times `scale` */
  ONE,    /* 1: samples count rows */
  IS_OK,  /* 1 where the member is "ok", else 0 */
  DATE,   /* the member, a date such as "2024-06-01T03:00:12Z", in seconds of the calendar */
  TIMES,  /* a histogram of the members took_* */
};

struct metric {
  const char *name;
  enum type type;
  const char *labels; /* LABEL=MEMBER, with blanks in between */
  const char *help;
  const char *answer, *rows; /* the answer, and the array in it */
  const char *member;
  double scale; /* 0: 1 */
  enum from from;
  bool is_max;        /* Of rows with equal labels the greatest counts; else their sum. */
  const char *state;  /* Only rows of this state; NULL: all. */
  const char *always; /* Values of the last label that have a sample in any case, with blanks in between. */
};

/* The order of a row's first line is what the guide's check reads. */
/* clang-format off */
static const struct metric metrics[] = {
    {"zenps_up", GAUGE, "", "1: the coordinator answered this scrape. 0: it did not, and all other metrics of the cluster are missing.",
     "scrape", "scrape", .member = "up"},
    {"zenps_scrape_seconds", GAUGE, "", "Time that the coordinator took to answer this scrape.",
     "scrape", "scrape", .member = "seconds"},
    {"zenps_scrape_rows_left_out", GAUGE, "", "Rows that the coordinator left out of its answers, because there were too many.",
     "scrape", "scrape", .member = "rows_left_out"},
    {"zenps_coordinator_info", GAUGE, "version=version protocol=protocol", "1. The labels have the coordinator's version and protocol number.",
     "status", "coordinator", .from = ONE},
    {"zenps_coordinator_uptime_seconds", GAUGE, "", "Time since the coordinator started.",
     "status", "coordinator", .member = "uptime_s"},
    {"zenps_coordinator_state_size_bytes", GAUGE, "", "Size of the file system of coordinator.state_dir.",
     "status", "coordinator", .member = "state_size_bytes"},
    {"zenps_coordinator_state_free_bytes", GAUGE, "", "Free space there. A full disk ends the coordinator.",
     "status", "coordinator", .member = "state_free_bytes"},
    {"zenps_coordinator_certificate_end_timestamp_seconds", GAUGE, "", "End of the coordinator's certificate.",
     "status", "coordinator", .member = "certificate_ends"},
    {"zenps_servers", GAUGE, "state=state", "Registered servers. in: takes jobs; draining: takes no more jobs; stopping: its process is about to end; away: disconnected.",
     "members", "servers", .from = ONE, .always = "in draining stopping away"},
    {"zenps_server_info", GAUGE, "server=name host=host version=version", "1. The labels have the server's host and version.",
     "members", "servers", .from = ONE},
    {"zenps_server_silent_seconds", GAUGE, "server=name", "Time since the server's last message to the coordinator.",
     "members", "servers", .member = "silent_ms", .scale = 1e-3},
    {"zenps_server_certificate_end_timestamp_seconds", GAUGE, "server=name", "End of the server's certificate.",
     "members", "servers", .member = "certificate_ends"},
    {"zenps_server_barred_seconds", GAUGE, "zenps_job=job server=name", "Time since a job barred this server, because ranks could not reach it.",
     "members", "unreachable", .member = "out_s", .is_max = true},
    {"zenps_server_up", GAUGE, "server=server", "1: the server answered the coordinator within 2 s. 0: it did not.",
     "stats", "servers", .member = "answer", .from = IS_OK},
    {"zenps_server_memory_in_use_bytes", GAUGE, "server=server", "Registered memory in use.",
     "stats", "servers", .member = "memory_in_use_bytes"},
    {"zenps_server_memory_limit_bytes", GAUGE, "server=server", "Limit of the registered memory (server.memory_limit).",
     "stats", "servers", .member = "memory_limit_bytes"},
    {"zenps_server_rounds_in_flight", GAUGE, "server=server", "Rounds that have begun on the server, and have not ended.",
     "stats", "servers", .member = "rounds_in_flight"},
    {"zenps_server_read_bytes_total", COUNTER, "server=server", "Bytes that the server read from ranks' memory.",
     "stats", "servers", .member = "read_bytes"},
    {"zenps_server_forged_messages_total", COUNTER, "server=server", "Messages that the server ignored, because no process of their job had sent them.",
     "stats", "servers", .member = "forged"},
    {"zenps_server_corrupt_reads_total", COUNTER, "server=server", "Reads of the server that brought the announced bytes at the second attempt only.",
     "stats", "servers", .member = "corrupt"},
    {"zenps_server_reconnects_total", COUNTER, "server=server", "Connections of the data plane that the server made again.",
     "stats", "servers", .member = "reconnects"},
    {"zenps_jobs", GAUGE, "state=state", "Jobs. joining: waits for ranks or servers; opening; running; closing: failed, waits for its ranks.",
     "jobs", "jobs", .from = ONE, .always = "joining opening running closing"},
    {"zenps_job_age_seconds", GAUGE, "zenps_job=job state=state", "Time since the job began to run, or to wait.",
     "jobs", "jobs", .member = "age_s", .is_max = true},
    {"zenps_job_servers", GAUGE, "zenps_job=job", "Servers that the job has now.",
     "jobs", "jobs", .member = "servers_in"},
    {"zenps_job_servers_begun", GAUGE, "zenps_job=job", "Servers that the job began with.",
     "jobs", "jobs", .member = "servers"},
    {"zenps_job_failed_timestamp_seconds", GAUGE, "zenps_job=job code=code", "Time of the last failure of a job of this name, among the last 256 ended jobs.",
     "jobs", "ended", .member = "ended_at", .from = DATE, .is_max = true, .state = "failed"},
    {"zenps_job_ranks", GAUGE, "zenps_job=job state=state", "Ranks of the job. joining; in; away: disconnected; left: ended normally; lost.",
     "members", "ranks", .from = ONE},
    {"zenps_job_oldest_round_age_seconds", GAUGE, "zenps_job=job", "Age of the job's oldest round in flight on servers, or of one between ranks that is over 1 s old. Missing without such a round.",
     "stats", "rounds", .member = "age_ms", .scale = 1e-3, .is_max = true},
    {"zenps_rounds_total", COUNTER, "zenps_job=job tensor=name", "Good rounds, on the rank with the most.",
     "stats", "tensors", .member = "rounds"},
    {"zenps_round_failures_total", COUNTER, "zenps_job=job tensor=name", "Failed rounds, counted on every rank.",
     "stats", "tensors", .member = "failed"},
    {"zenps_round_seconds", HISTOGRAM, "zenps_job=job tensor=name", "Time of good rounds, counted on every rank.",
     "stats", "tensors", .member = "total_ns", .scale = 1e-9, .from = TIMES},
    {"zenps_sent_bytes_total", COUNTER, "zenps_job=job tensor=name", "Bytes that ranks sent, or that others read from them, over the fabric.",
     "stats", "tensors", .member = "bytes_out"},
    {"zenps_received_bytes_total", COUNTER, "zenps_job=job tensor=name", "Bytes that ranks received over the fabric.",
     "stats", "tensors", .member = "bytes_in"},
    {"zenps_rank_wait_seconds_total", COUNTER, "zenps_job=job rank=rank", "Time that the rank waited for sums.",
     "stats", "ranks", .member = "wait_ns", .scale = 1e-9},
    {"zenps_rank_lag_seconds_total", COUNTER, "zenps_job=job rank=rank server=server", "Time from the first push of a round to the rank's push, summed over rounds of all tensors. The late rank has the most.",
     "stats", "lags", .member = "lag_ns", .scale = 1e-9},
    {"zenps_rank_silent_seconds", GAUGE, "zenps_job=job rank=rank", "Time since the rank's last message to the coordinator.",
     "members", "ranks", .member = "silent_ms", .scale = 1e-3, .is_max = true},
};
/* clang-format on */
enum { N_METRICS = sizeof metrics / sizeof metrics[0] };

/* Limits of a histogram's buckets in ms, and the members that count them. */
#define LIMIT(name, ms) {#name, (double)(ms)},
static const struct bucket {
  const char *member;
  double ms;
} buckets[] = {ZPS_TALLY_TIMES(LIMIT)};
#undef LIMIT
enum { N_BUCKETS = sizeof buckets / sizeof buckets[0], SUM = N_BUCKETS, COUNT, N_PARTS };

struct sample {
  char *labels;  /* `server="a",state="in"` */
  unsigned part; /* of a histogram: a bucket, SUM or COUNT */
  double value;
};

struct samples {
  struct sample *at;
  size_t n;
  uint64_t cap;
};

/* ------------------------------------------------------------ labels */

static void put_value(FILE *out, const char *text) {
  for (; *text; text++) {
    if (*text == '\n')
      fputs("\\n", out);
    else if (*text == '\\' || *text == '"')
      fprintf(out, "\\%c", *text);
    else
      fputc(*text, out);
  }
}

struct word {
  const char *at;
  size_t len;
};

/* Takes the next word off *rest_p. */
static bool next_word(const char **rest_p, struct word *word_p) {
  *rest_p += strspn(*rest_p, " ");
  *word_p = (struct word){*rest_p, strcspn(*rest_p, " ")};
  *rest_p += word_p->len;
  return word_p->len > 0;
}

/* `last` (may be NULL) takes the place of the last label's member. NULL: no memory. */
static char *labels_of(const struct metric *metric, const zps_json *row, const struct word *last) {
  char *text = NULL;
  size_t size;
  FILE *const out = open_memstream(&text, &size);
  if (!out) return NULL;
  const char *rest = metric->labels;
  struct word word;
  for (bool is_first = true; next_word(&rest, &word); is_first = false) {
    const size_t len = strcspn(word.at, "=");
    char member[TEXT_MAX], value[TEXT_MAX];
    snprintf(member, sizeof member, "%.*s", (int)(word.len - len - 1), word.at + len + 1);
    if (last && *rest == '\0')
      snprintf(value, sizeof value, "%.*s", (int)last->len, last->at);
    else
      zps_json_text(zps_json_get(row, member), value, sizeof value);
    fprintf(out, "%s%.*s=\"", is_first ? "" : ",", (int)len, word.at);
    put_value(out, value);
    fputc('"', out);
  }
  const bool is_whole = !ferror(out);
  if (fclose(out) == 0 && is_whole) return text;
  free(text);
  return NULL;
}

/* ------------------------------------------------------------ samples */

/* Takes over `labels`. */
static zps_err_t add(struct samples *samples, char *labels, unsigned part, double value) {
  if (!labels || !zps_enlarge_for_one(&samples->at, &samples->cap, samples->n, 64, sizeof *samples->at)) {
    free(labels);
    return ZPS_ERR_NOMEM;
  }
  samples->at[samples->n++] = (struct sample){labels, part, value};
  return ZPS_OK;
}

static double date_of(const char *utc) {
  struct tm parts = {0};
  return strptime(utc, "%Y-%m-%dT%H:%M:%SZ", &parts) ? (double)timegm(&parts) : 0;
}

/* Rows of ranks, ended jobs and members have a state; a tensor whose name begins with '@' is zenps's own. */
static bool is_wanted(const struct metric *metric, const zps_json *row) {
  if (metric->state && strcmp(zps_json_opt_str(row, "state", ""), metric->state) != 0) return false;
  if (strcmp(metric->rows, "tensors") == 0 && zps_json_opt_str(row, "name", "")[0] == '@') return false;
  return !metric->member || zps_json_get(row, metric->member);
}

static zps_err_t add_times(struct samples *samples, const struct metric *metric, const zps_json *row) {
  double count = 0;
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < N_BUCKETS && !err; i++) {
    count += zps_json_opt_real(row, buckets[i].member, 0);
    err = add(samples, labels_of(metric, row, NULL), i, count);
  }
  if (!err)
    err = add(samples, labels_of(metric, row, NULL), SUM, zps_json_opt_real(row, metric->member, 0) * metric->scale);
  return err ? err : add(samples, labels_of(metric, row, NULL), COUNT, count);
}

static zps_err_t add_row(struct samples *samples, const struct metric *metric, const zps_json *row) {
  const double scale = metric->scale > 0 ? metric->scale : 1;
  double value = 1;
  if (metric->from == TIMES) return add_times(samples, metric, row);
  if (metric->from == NUMBER) value = zps_json_opt_real(row, metric->member, 0) * scale;
  if (metric->from == IS_OK) value = strcmp(zps_json_opt_str(row, metric->member, ""), "ok") == 0;
  if (metric->from == DATE) value = date_of(zps_json_opt_str(row, metric->member, ""));
  return add(samples, labels_of(metric, row, NULL), 0, value);
}

static int by_labels(const void *a, const void *b) {
  const struct sample *const one = a, *const other = b;
  const int order = strcmp(one->labels, other->labels);
  return order ? order : (one->part > other->part) - (one->part < other->part);
}

/* Sorts, and makes one sample of those with equal labels. */
static void merge(struct samples *samples, bool is_max) {
  size_t n = 0;
  if (samples->n) qsort(samples->at, samples->n, sizeof samples->at[0], by_labels);
  for (size_t i = 0; i < samples->n; i++) {
    struct sample *const sample = &samples->at[i], *const last = n ? &samples->at[n - 1] : NULL;
    if (!last || by_labels(last, sample) != 0) {
      samples->at[n++] = *sample;
      continue;
    }
    if (!is_max)
      last->value += sample->value;
    else if (sample->value > last->value)
      last->value = sample->value;
    free(sample->labels);
  }
  samples->n = n;
}

static zps_err_t collect(struct samples *samples, const struct metric *metric, const zps_json *answer) {
  const zps_json *const rows = answer ? zps_json_get(answer, metric->rows) : NULL;
  const char *rest = metric->always;
  struct word value;
  zps_err_t err = ZPS_OK;
  while (answer && rest && !err && next_word(&rest, &value)) err = add(samples, labels_of(metric, NULL, &value), 0, 0);
  for (size_t i = 0; i < zps_json_array_len(rows) && !err; i++)
    if (is_wanted(metric, zps_json_at(rows, i))) err = add_row(samples, metric, zps_json_at(rows, i));
  if (!err) merge(samples, metric->is_max);
  return err;
}

/* ------------------------------------------------------------ text */

static void print_sample(FILE *out, const struct metric *metric, const struct sample *sample) {
  const bool is_bucket = metric->type == HISTOGRAM && sample->part < N_BUCKETS;
  const char *const suffix = metric->type != HISTOGRAM ? ""
                             : is_bucket               ? "_bucket"
                             : sample->part == SUM     ? "_sum"
                                                       : "_count";
  fprintf(out, "%s%s", metric->name, suffix);
  if (*sample->labels || is_bucket) {
    fprintf(out, "{%s", sample->labels);
    if (is_bucket) fputs(*sample->labels ? ",le=\"" : "le=\"", out);
    if (is_bucket && sample->part == N_BUCKETS - 1)
      fputs("+Inf\"", out);
    else if (is_bucket)
      fprintf(out, "%g\"", buckets[sample->part].ms / 1000);
    fputc('}', out);
  }
  fprintf(out, " %.15g\n", sample->value);
}

static const zps_json *answer_of(const struct metric *metric, const struct zps_ctl_metrics_answers *answers) {
  if (strcmp(metric->answer, "status") == 0) return answers->status;
  if (strcmp(metric->answer, "members") == 0) return answers->members;
  if (strcmp(metric->answer, "jobs") == 0) return answers->jobs;
  return strcmp(metric->answer, "stats") == 0 ? answers->stats : answers->scrape;
}

static zps_err_t print_metric(FILE *out, const struct metric *metric, const struct zps_ctl_metrics_answers *answers) {
  struct samples samples = {.n = 0};
  const zps_err_t err = collect(&samples, metric, answer_of(metric, answers));
  if (!err && samples.n) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name, types[metric->type]);
    for (size_t i = 0; i < samples.n; i++) print_sample(out, metric, &samples.at[i]);
  }
  for (size_t i = 0; i < samples.n; i++) free(samples.at[i].labels);
  free(samples.at);
  return err;
}

zps_err_t zps_ctl_metrics_print(FILE *out, const struct zps_ctl_metrics_answers *answers) {
  zps_err_t err = ZPS_OK;
  for (unsigned i = 0; i < N_METRICS && !err; i++) err = print_metric(out, &metrics[i], answers);
  return err;
}

void zps_ctl_metrics_each(void (*each)(void *ctx, const char *name, const char *type, const char *help), void *ctx) {
  for (unsigned i = 0; i < N_METRICS; i++) each(ctx, metrics[i].name, types[metrics[i].type], metrics[i].help);
}

zps_json *zps_ctl_metrics_scrape(bool is_up, double seconds, uint64_t rows_left_out) {
  zps_json *row = zps_json_set_u64(zps_json_object(), "up", is_up);
  if (is_up) {
    row = zps_json_set_real(row, "seconds", seconds);
    row = zps_json_set_u64(row, "rows_left_out", rows_left_out);
  }
  return zps_json_set(zps_json_object(), "scrape", zps_json_append(zps_json_array(), row));
}
