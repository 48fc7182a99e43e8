/* The commands and their help: what each shows, its columns, examples. Columns come from table.c, so that none can be
 * left out; a test holds that each is described. */
#include <string.h>

#include "common/base/did_you_mean.h"
#include "server/ctl/ctl.h"
#include "server/ctl/late.h"
#include "server/ctl/metrics.h"
#include "server/ctl/plan.h"

static const struct zps_ctl_verb verbs[] = {
    {.name = "status",
     .method = "status",
     .summary = "the coordinator: version, uptime, and how many servers, jobs and tensors it has",
     .about = "One row. The coordinator answers as long as its event loop runs, so this is also a health check.",
     .examples = {"zenpsctl status", "zenpsctl -e 10.0.0.1:7077 -o json status"}},
    {.name = "members",
     .method = "members",
     .summary = "servers, and the ranks of all jobs",
     .about = "Three tables. The first has the registered servers, the second the ranks of jobs that wait, run or end. "
              "The third has servers that had to leave a running job because ranks could not reach them over the data "
              "plane; it is shown while there are any. The job asks such a server again after a pause: 5 s, doubled "
              "each time, up to 300 s. zenpsctl undrain NAME ends the pause.",
     .examples = {"zenpsctl members", "zenpsctl --watch members"}},
    {.name = "jobs",
     .method = "jobs",
     .summary = "jobs that wait, run or end; with --all also the last 256 ended jobs",
     .about =
         "With --all a second table lists the last 256 jobs that have ended, the latest at the bottom. Jobs that "
         "no rank had joined are left out. For each it shows how and when it ended, and for a failed job the first "
         "cause: a loss, or the first error of a rank. Later effects of that cause, for example ranks that gave up, "
         "are not shown. With coordinator.state_dir or etcd the list survives a restart of the coordinator.",
     .examples = {"zenpsctl jobs --all", "zenpsctl -o json jobs --all | jq '.ended[] | select(.state == \"failed\")'"},
     .takes = ZPS_CTL_ALL},
    {.name = "tensors",
     .method = "tensors",
     .summary = "tensors of all jobs: shape, partitions, scheme",
     .about = "zenps's own tensors, named @..., are shown only with --internal.",
     .examples = {"zenpsctl tensors"},
     .takes = ZPS_CTL_INTERNAL},
    {.name = "stats",
     .method = "stats",
     .summary = "rounds of every scheme: bytes, density, phases; counters of servers; late ranks",
     .about = "Six tables: servers, tensors, ranks, shards, lags and shares. The tables of tensors and ranks have what "
              "ranks report of their rounds, under every scheme. Ranks report every ZENPS_TELEMETRY (default: 5 s) and "
              "when they leave; the table of tensors sums over ranks. Shards: what a server has counted of a tensor "
              "whose rounds went through it. Lags: how late the pushes of ranks are at each server. Shares: each job's "
              "part of a server's threads and memory. " ZPS_LATE_RULE " Rates, "
              "densities and times cover the time since the tensor was "
              "opened. With --watch, from the second answer on, they cover the time since the answer before. Bytes "
              "have the suffixes K, M, G, T and P, powers of 1024; JSON has all digits. zenps's own tensors, named "
              "@..., are shown only with --internal.",
     .examples = {"zenpsctl stats", "zenpsctl --watch=5s stats"},
     .takes = ZPS_CTL_INTERNAL},
    {.name = "why",
     .method = "status",
     .gather = zps_ctl_why_gather,
     .takes_job = true,
     .summary = "what is wrong, with evidence and remedy, in at most ten lines",
     .about = "The worst finding comes first. Findings are: a round that waits, with the ranks that it waits for; "
              "servers that are silent, slow or barred from a job; late ranks; jobs that failed within the last day; "
              "memory, disk and certificates that run out; clocks that differ from the coordinator's by over 1 s. The "
              "command asks twice, 2 s apart. Exit status, as in "
              "Nagios: 0 nothing is wrong, 1 warning, 2 critical. 3 and above: the coordinator did not answer.",
     .examples = {"zenpsctl why", "zenpsctl why train7 -o json"}},
    {.name = "health",
     .method = "status",
     .gather = zps_ctl_why_gather,
     .takes_job = true,
     .summary = "the first finding of why, in one line, with its exit status",
     .about = "Exit status, as in Nagios: 0 nothing is wrong, 1 warning, 2 critical.",
     .examples = {"zenpsctl health", "zenpsctl health train7"}},
    {.name = "rounds",
     .method = "stats",
     .takes_job = true,
     .summary = "rounds in flight: their age, and the ranks they wait for",
     .about =
         "The oldest round comes first. The coordinator asks all servers, and each has 2 s to answer. Rounds of "
         "schemes "
         "between ranks have no server. Their ranks report them from the first second of their age on, once a "
         "heartbeat, unless ZENPS_TELEMETRY is 0. Such a round waits for ranks that others wait for, and that wait for "
         "no other rank themselves. If each waits for another one, it waits for all of these. Rounds of zenps's own "
         "tensors (@...) are shown.",
     .examples = {"zenpsctl rounds", "zenpsctl --watch=1s rounds train7"}},
    {.name = "security",
     .method = "security",
     .summary = "what is open to strangers, and how to close it",
     .about = "This covers what the coordinator sees. It does not know what a firewall or a network keeps away. With "
              "TLS only administrators may ask.",
     .examples = {"zenpsctl security", "zenpsctl -o json security | jq '.parts[] | select(.state == \"open\")'"}},
    {.name = "drain",
     .method = "drain",
     .summary = "stop new jobs on a server, and move its running jobs to their other servers",
     .about = "Ranks resend the steps in flight: no step is lost, and no sum changes. The first table shows the "
              "server. The second shows the jobs it still has: those about to leave it, and those that stay until they "
              "end, with the reason. A job stays if it pushes and pulls separately, or if it pushes more than its "
              "ranks can keep. The coordinator remembers which servers drain. It refuses to drain the last server that "
              "takes jobs. A server process drains by itself when it ends by SIGTERM. The last server of a job keeps "
              "the job until it ends or another server comes. A job takes in new or undrained servers after a few "
              "seconds, in the places of servers that it has left.",
     .examples = {"zenpsctl drain node3 --wait", "zenpsctl drain node3 --wait=30s --reason 'a new disk' -o json"},
     .takes = ZPS_CTL_WAIT,
     .change = &zps_ctl_drain},
    {.name = "undrain",
     .method = "undrain",
     .summary = "let a draining server take new jobs again",
     .about = "Running jobs take the server in again after a few seconds. The coordinator refuses if the server's "
              "process is about to end after SIGTERM.",
     .examples = {"zenpsctl undrain node3"},
     .change = &zps_ctl_undrain},
    {.name = "rebalance",
     .method = "rebalance",
     .summary = "let all running jobs, or one, take in available servers at once",
     .about = "Jobs do this by themselves, a few seconds after a server has come or was undrained. The server takes a "
              "free place in the job, and the partitions of that place, so that all servers have even shares again. A "
              "place is free when its server has left the job, or when no server ever had it (job.server_places). No "
              "step is lost, and no sum changes. A job without free places never has more servers than it began with. "
              "An elastic job begins its next generation instead, on all available servers. One row for each job.",
     .examples = {"zenpsctl rebalance --wait", "zenpsctl rebalance train7 -o json"},
     .takes = ZPS_CTL_WAIT,
     .change = &zps_ctl_rebalance},
    {.name = "kick",
     .method = "kick",
     .summary = "take a rank out of its job, as if its process had died",
     .about = "The rank is notified, with the reason. For the others it is lost: an elastic job goes on without it, "
              "any other job fails. Its process is not ended. The coordinator refuses this process when it joins as "
              "that rank again, also in the next generation. A newly started process is not refused. The coordinator "
              "remembers the last 64 kicks, across restarts only with coordinator.state_dir. Its log (audit:) names "
              "the caller, and each refused process.",
     .examples = {"zenpsctl kick train7 3 --reason 'its GPU reports ECC errors'"},
     .change = &zps_ctl_kick},
    {.name = "export",
     .method = "status",
     .serve = zps_ctl_export,
     .takes = ZPS_CTL_LISTEN,
     .summary = "serve metrics of the cluster to Prometheus over HTTP, until a signal ends it",
     .about =
         "Pages: /metrics has the metrics below. /livez: status 200 while the process lives. /readyz: 200 if the "
         "coordinator answers, else 503. One exporter serves the whole cluster. A scrape asks the coordinator once; "
         "scrapes at the same time share the answer. While the coordinator is away, /metrics has zenps_up 0 alone. "
         "With --tls-cert the exporter speaks HTTPS, also on loopback. Then it serves metrics to administrators, and "
         "to certificates in --allow; /livez and /readyz to everybody. An administrator's certificate shows all jobs; "
         "with another one the exporter sees what zenpsctl sees with it. Changed certificate files are read within "
         "10 s, or at SIGHUP.",
     .examples = {"zenpsctl export", "zenpsctl export --listen 0.0.0.0:7079 --allow zenps://worker/prometheus"}},
    {.name = "version",
     .method = "status",
     .summary = "versions of zenpsctl and the coordinator, and the protocol number of each",
     .about = "A coordinator with another protocol number refuses; the error has both numbers.",
     .examples = {"zenpsctl version"}},
    {.name = "plan",
     .summary = "predict the cost of each scheme on a cluster; offline, has options of its own",
     .about = "",
     .run = zps_ctl_plan_run},
    {.name = "state",
     .summary = "check a coordinator's journal for damage; offline, has options of its own",
     .about = "",
     .run = zps_ctl_state_run},
    {.name = "token",
     .summary = "make keys and tokens that let ranks into jobs; offline, has options of its own",
     .about = "",
     .run = zps_ctl_token_run},
    {.name = "certs",
     .summary = "make and show certificates for TLS; offline, has options of its own",
     .about = "",
     .run = zps_ctl_certs_run},
    {.name = "help", .summary = "this list; help COMMAND: the help of that command", .about = ""},
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

/* The first that fits; NULL: in any table. */
static const struct {
  const char *noun, *array, *key, *text;
} columns[] = {
    {NULL, "coordinator", "address", "where it listens"},
    {NULL, "coordinator", "state", "running, or draining: takes no jobs and ends after the last one"},
    {"members", NULL, "version", "its version of zenps"},
    {"members", NULL, "clock_ms", "its clock minus the coordinator's, in milliseconds"},
    {"members", NULL, "clock_error_ms", "CLOCK/ms is exact to so many milliseconds"},
    {NULL, NULL, "version", "of zenps"},
    {NULL, NULL, "protocol", "number of the protocol; must be equal everywhere"},
    {NULL, NULL, "pid", "process"},
    {NULL, NULL, "uptime_s", "seconds since it started"},
    {"jobs", NULL, "epoch", "membership epoch of its servers and ranks; a lost server starts another"},
    {"jobs", NULL, "generation", "generation of an elastic job, from 1 on; 0: not elastic"},
    {"jobs", NULL, "weight", "its turns on a server, relative to other jobs (job.weights)"},
    {NULL, NULL, "epoch", "counts changes of membership"},
    {"status", NULL, "servers", "servers that are registered"},
    {NULL, NULL, "servers_draining", "servers that take no more jobs"},
    {"status", NULL, "jobs", "jobs that wait, run or end"},
    {"members", "unreachable", "server", "number of the server, never reused"},
    {"members", "unreachable", "name", "its server.name"},
    {"members", "unreachable", "rank", "first rank that could not reach it"},
    {"members", "unreachable", "ranks", "how many ranks could not"},
    {"members", "unreachable", "out_s", "seconds since it was removed from the job"},
    {"members", "unreachable", "again_s", "seconds until the job may ask it again to take a place"},
    {"members", "unreachable", "reason", "error that this rank reported"},
    {"status", NULL, "ranks", "ranks in these jobs"},
    {"status", NULL, "tensors", "tensors in these jobs"},
    {"security", NULL, "part", "what is checked"},
    {"security", NULL, "state", "guarded; host: open to users of this host only; open"},
    {"security", NULL, "how", "how it is guarded, or who can use it"},
    {"security", NULL, "close", "options that close it"},
    {"drain", "servers", "name", "its server.name"},
    {"undrain", "servers", "name", "its server.name"},
    {"drain", "servers", "state",
     "draining: takes no more jobs; stopping: its process is about to end; away: disconnected, drains when it is "
     "back"},
    {"undrain", "servers", "state", "in: takes jobs; away: disconnected, takes jobs when it is back"},
    {"drain", "servers", "jobs", "jobs that it still has"},
    {"undrain", "servers", "jobs", "jobs that it has"},
    {"drain", "jobs", "outcome", "leaves: the job goes on with its other servers; stays: until the job ends"},
    {"drain", "jobs", "reason", "why it stays"},
    {"rebalance", NULL, "outcome", "moves: servers take places; waits: moves later; stays: does not change"},
    {"rebalance", NULL, "servers", "servers after the change"},
    {"rebalance", NULL, "partitions", "partitions of its tensors that go to another server"},
    {"rebalance", NULL, "reason", "servers that take places; what the job waits for; why it stays"},
    {"kick", NULL, "job_state", "state of the job now; closing: it fails; ended: it ended with this rank"},
    {"members", "servers", "server", "number, never reused"},
    {"rounds", NULL, "server", "name of the server; none: a round between ranks"},
    {NULL, NULL, "server", "name of the server"},
    {"members", "servers", "name", "its server.name"},
    {"members", "servers", "state",
     "in; draining: takes no more jobs (zenpsctl drain); stopping: its process is about to end (SIGTERM); away: "
     "disconnected"},
    {NULL, NULL, "host", "its host's name"},
    {NULL, NULL, "provider", "libfabric's provider"},
    {NULL, NULL, "keys", "memory keys: random; weak: strangers can guess them and read gradients"},
    {NULL, NULL, "rails", "network cards that gradients come over at once (fabric.rails)"},
    {NULL, NULL, "address", "its address on the fabric"},
    {"members", NULL, "jobs", "jobs on it"},
    {NULL, NULL, "silent_ms", "milliseconds since its last message"},
    {NULL, NULL, "job", "name of the job"},
    {NULL, NULL, "rank", "rank in the job"},
    {"members", "ranks", "state", "joining: waits for the others; in; left: ended normally; lost"},
    {NULL, NULL, "memory", "where gradients are: host; for a GPU: staged (through the host), hmem or dmabuf"},
    {NULL, NULL, "job_id", "number of this run of the job"},
    {"jobs", "jobs", "state",
     "joining: waits for ranks or servers; opening; running; closing: failed, waits for its ranks"},
    {"jobs", "ended", "state", "left: all ranks have left, without an error; failed: see code and failure"},
    {NULL, NULL, "world", "number of ranks in the job"},
    {NULL, NULL, "joined", "ranks that have joined"},
    {NULL, NULL, "left", "ranks that ended normally"},
    {NULL, NULL, "lost", "ranks that are lost"},
    {"jobs", NULL, "servers", "servers that it began with"},
    {"jobs", NULL, "lost_servers", "names of lost servers; the others have their partitions"},
    {"jobs", NULL, "servers_in", "servers that it has now"},
    {"jobs", NULL, "places", "servers that it has room for (job.server_places)"},
    {"jobs", NULL, "tensors", "tensors that were opened"},
    {NULL, NULL, "age_s", "seconds since it began to run, or to wait"},
    {NULL, NULL, "ran_s", "seconds that it ran; or waited, if it never ran"},
    {NULL, NULL, "started_at", "time of the start, UTC"},
    {NULL, NULL, "ended_at", "time of the end, UTC"},
    {NULL, NULL, "code", "error code of the failure, as in <zenps/zenps.h>"},
    {"jobs", NULL, "failure", "why it failed, or fails: the first cause"},
    {"tensors", NULL, "tensor", "number in the job"},
    {NULL, NULL, "name", "name of the tensor"},
    {NULL, NULL, "group", "group of ranks that share it; none: all ranks"},
    {"tensors", NULL, "state", "opening, open or failed"},
    {NULL, NULL, "rows", "rows"},
    {NULL, NULL, "width", "values of a row"},
    {NULL, NULL, "dtype", "type of a value"},
    {NULL, NULL, "op", "sum, mean, max or min"},
    {NULL, NULL, "partitions", "partitions, spread over the servers"},
    {NULL, NULL, "block_bits", "rows hashed together as one block, as a power of two"},
    {NULL, NULL, "codec", "encoding of row numbers"},
    {NULL, NULL, "values", "encoding of values"},
    {"tensors", NULL, "scheme", "how rounds are carried out"},
    {NULL, NULL, "planned", "scheme that the coordinator has chosen, if the choice is its own"},
    {NULL, NULL, "too_slow",
     "schemes that it does not try: their first round took, or would take at the measured rate, more than 3 times as "
     "long"},
    {"tensors", NULL, "servers", "servers of the job"},
    {"rounds", NULL, "step", "the step"},
    {"rounds", NULL, "age_ms", "milliseconds since the first rank pushed, or began"},
    {"rounds", NULL, "waits_for",
     "push: ranks have not pushed; bytes: the server reads gradients; sum: the server sums; pull: ranks have not read "
     "the sums; message: ranks have sent nothing; rank: ranks compute"},
    {"rounds", NULL, "n_ranks", "how many ranks it waits for"},
    {"rounds", NULL, "ranks", "the first 16 of these ranks"},
    {"rounds", NULL, "left_ms", "milliseconds until the earliest deadline of a rank ends the round"},
    {NULL, NULL, "answer", "ok, or why the server did not answer"},
    {"stats", "servers", "jobs", "jobs that are open on it"},
    {"stats", "servers", "tensors", "tensors that are open on it"},
    {NULL, NULL, "rounds_in_flight", "rounds that have begun, and have not ended"},
    {NULL, NULL, "memory_in_use_bytes", "bytes of registered memory in use"},
    {NULL, NULL, "memory_high_water_bytes", "most bytes ever in use"},
    {NULL, NULL, "read_bytes", "bytes that it read from ranks' memory"},
    {NULL, NULL, "msg_bytes_sent", "bytes of messages that it sent"},
    {NULL, NULL, "msg_bytes_received", "bytes of messages that it received"},
    {NULL, NULL, "again", "retries because the fabric had no room"},
    {NULL, NULL, "malformed", "frames refused as malformed"},
    {NULL, NULL, "forged", "messages ignored because no process of their job had sent them"},
    {NULL, NULL, "corrupt", "reads with other bytes than announced, right at the second attempt"},
    {NULL, NULL, "reconnects", "data-plane connections made again after a loss or a takeover"},
    {NULL, NULL, "resent", "messages resent over another connection"},
    {NULL, NULL, "reordered", "messages that waited because earlier ones had not arrived"},
    {NULL, NULL, "rails_lost", "times that a card lost a peer, whose gradients then came over the others"},
    {NULL, NULL, "rails_out", "peers that a card has lost: nothing was read since, or it loses them again and again"},
    {NULL, NULL, "rails_refused", "pieces of memory in use that a card refused: they are read over fewer cards"},
    {"stats", "tensors", "rounds", "successful rounds, on the rank with the most"},
    {"stats", "ranks", "state", "in; left: ended normally; lost"},
    {"stats", NULL, "scheme", "scheme of its last round"},
    {"stats", NULL, "step", "step of the last successful round"},
    {"stats", NULL, "failed", "failed rounds, counted on every rank"},
    {"stats", "tensors", "bytes_out", "bytes that ranks sent, or that others read from them, over the fabric"},
    {"stats", "ranks", "bytes_out", "bytes that it sent, or that others read from it, over the fabric"},
    {"stats", "tensors", "bytes_in", "bytes that ranks received"},
    {"stats", "ranks", "bytes_in", "bytes that it received"},
    {"stats", NULL, "shared_out", "bytes given to ranks of the same host in shared memory"},
    {"stats", "ranks", "kept_bytes",
     "bytes of its pushes kept in registered memory in case a server is lost (ZENPS_REPLAY_MEMORY)"},
    {"stats", NULL, "saved", "bytes that a dense ring would move over those moved, shared memory included"},
    {"stats", NULL, "round_ms", "mean milliseconds from zenps_allreduce() to the result"},
    {"stats", NULL, "encode_ms", "from the call to the first announced push; phases overlap"},
    {"stats", NULL, "push_ms", "from the first push to the last one"},
    {"stats", NULL, "wait_ms", "from the last push to the first sum"},
    {"stats", NULL, "pull_ms", "from the first sum to the last one"},
    {"stats", NULL, "decode_ms", "from the last sum to the finished result"},
    {"stats", "tensors", "imbalance_push",
     "rows that the busiest server gets of a rank's push over its even share, for the worst rank, mean of rounds; 1 is "
     "even"},
    {"stats", "tensors", "imbalance_pull", "rows of the sums at the busiest server over its even share; 1 is even"},
    {"stats", "ranks", "link_bytes_per_s", "bytes that it received, by second of reading sums"},
    {"stats", "ranks", "late_percent", "percent of the time that the others waited for its pushes"},
    {"stats", "ranks", "late", "late: it is the late rank of its job; -: no round of its tensors went to a server"},
    {"stats", NULL, "told_s", "seconds since the last report of a rank"},
    {"jobs", NULL, "rounds", "rounds of its tensors, as ranks have reported"},
    {"jobs", NULL, "bytes_out", "bytes that its ranks sent"},
    {"jobs", NULL, "bytes_in", "bytes that its ranks received"},
    {NULL, NULL, "rounds", "successful rounds"},
    {NULL, NULL, "aborted", "failed rounds"},
    {NULL, NULL, "rounds_per_s", "rounds a second"},
    {NULL, NULL, "bytes_in", "bytes from ranks"},
    {NULL, NULL, "bytes_in_per_s", "bytes a second from ranks"},
    {NULL, NULL, "bytes_out", "bytes to ranks"},
    {NULL, NULL, "bytes_out_per_s", "bytes a second to ranks"},
    {NULL, NULL, "density", "share of rows that a rank pushes, 0 to 1"},
    {NULL, NULL, "union_density", "share of rows in the sum, 0 to 1"},
    {NULL, NULL, "imbalance_push", "heaviest partition of a rank's pushes over the mean one, of all rounds; 1 is even"},
    {NULL, NULL, "imbalance_pull", "heaviest partition of the sum over the mean one; 1 is even"},
    {NULL, NULL, "imbalance_step",
     "rows that this server gets of a rank's push over its even share, for the worst rank, mean of rounds"},
    {NULL, NULL, "collect_ms", "mean milliseconds from the first push to the last one"},
    {NULL, NULL, "reduce_ms", "mean milliseconds of summing, added over threads"},
    {NULL, NULL, "publish_ms", "mean milliseconds from the first sum until all ranks have the sums"},
    {"stats", "shares", "weight", "weight of the job on the server (job.weights)"},
    {NULL, NULL, "pool_bytes", "bytes of the job's gradients that the server's threads have processed"},
    {NULL, NULL, "pool_contested_bytes", "of these, bytes processed while other jobs waited"},
    {NULL, NULL, "pool_waited_bytes",
     "bytes of other jobs processed while this job waited, counted once per waiting item"},
    {NULL, NULL, "memory_bytes", "registered memory of the server that the job uses now"},
    {NULL, NULL, "lag_ms",
     "mean milliseconds between the first push and this rank's push, or the end of a round that closed without it; "
     "the slowest rank has the most"},
    {NULL, NULL, "closed_without", "rounds that a quorum closed without this rank"},
};

const char *zps_ctl_column_help(const char *noun, const char *array, const char *key) {
  for (unsigned i = 0; i < sizeof columns / sizeof columns[0]; i++) {
    if (columns[i].noun && strcmp(columns[i].noun, noun) != 0) continue;
    if (columns[i].array && strcmp(columns[i].array, array) != 0) continue;
    if (strcmp(columns[i].key, key) == 0) return columns[i].text;
  }
  return NULL;
}

const struct zps_ctl_verb *zps_ctl_verb_at(unsigned index) {
  return index < N_VERBS ? &verbs[index] : NULL;
}

zps_err_t zps_ctl_verb_find(const char *name, const struct zps_ctl_verb **verb_p, struct zps_error *error) {
  struct zps_near near;
  char meant[64];
  zps_near_begin(&near, name, strlen(name));
  for (unsigned i = 0; i < N_VERBS; i++) {
    if (strcmp(verbs[i].name, name) == 0) {
      *verb_p = &verbs[i];
      return ZPS_OK;
    }
    zps_near_try(&near, verbs[i].name);
  }
  return zps_fail(error, ZPS_ERR_INVALID, "there is no command '%.80s': %szenpsctl help lists what there is", name,
                  zps_near_say(&near, "did you mean '", "'? ", meant, sizeof meant));
}

struct listing {
  const char *noun, *array; /* of the columns being printed */
};

static void print_column(void *ctx, const char *array, const char *key, const char *title) {
  struct listing *listing = ctx;
  if (!listing->array || strcmp(listing->array, array) != 0) {
    char heading[80];
    snprintf(heading, sizeof heading, "Columns of %s", array);
    zps_config_help_title(heading);
    listing->array = array;
  }
  const char *const text = zps_ctl_column_help(listing->noun, array, key);
  char row[300];
  snprintf(row, sizeof row, "%s [%s]", text ? text : "", key);
  zps_config_help_row(title, row);
}

static void print_metric(void *ctx, const char *name, const char *type, const char *help) {
  char row[300];
  (void)ctx;
  snprintf(row, sizeof row, "%s: %s", type, help);
  zps_config_help_row(name, row);
}

static void print_verb(const struct zps_ctl_verb *verb) {
  struct listing listing = {.noun = verb->name};
  const char *const args = verb->change ? verb->change->args : verb->takes_job ? "[JOB]" : "";
  printf("Usage: zenpsctl [OPTION...] %s%s%s%s%s%s%s%s\n%s\n", verb->name, *args ? " " : "", args,
         verb->takes & ZPS_CTL_ALL ? " [--all]" : "", verb->takes & ZPS_CTL_INTERNAL ? " [--internal]" : "",
         verb->takes & ZPS_CTL_WAIT ? " [--wait[=TIME]]" : "",
         verb->takes & ZPS_CTL_LISTEN ? " [--listen ADDR:PORT] [--allow URI,...]" : "",
         verb->change ? " [--reason TEXT]" : "", verb->summary);
  zps_config_help_text(verb->about);
  zps_ctl_table_columns(verb->name, print_column, &listing);
  if (listing.array) zps_config_help_text("In brackets: the key in JSON. JSON arrays have the names of the tables.");
  if (verb->serve) {
    zps_config_help_title("Metrics");
    zps_ctl_metrics_each(print_metric, NULL);
  }
  zps_config_help_title("Examples");
  for (unsigned i = 0; verb->examples[i]; i++) printf("  %s\n", verb->examples[i]);
  zps_config_help_text("For the options see zenpsctl --help.");
}

zps_err_t zps_ctl_help(const char *command, struct zps_error *error) {
  const struct zps_ctl_verb *verb = NULL;
  if (!command || strcmp(command, "help") == 0) {
    zps_config_help_title("Commands");
    for (unsigned i = 0; i < N_VERBS; i++) zps_config_help_row(verbs[i].name, verbs[i].summary);
    zps_config_help_text("zenpsctl help COMMAND describes a command and its columns.");
    return ZPS_OK;
  }
  zps_err_t err = zps_ctl_verb_find(command, &verb, error);
  if (err) return err;
  if (verb->run) {
    static char help[] = "--help";
    char name[40], *argv[] = {name, help, NULL};
    snprintf(name, sizeof name, "%s", verb->name);
    return verb->run(2, argv, stdout, error);
  }
  print_verb(verb);
  return ZPS_OK;
}

zps_err_t zps_ctl_apart_run(const struct zps_ctl_apart *apart, int argc, char **argv, void *options, FILE *out,
                            struct zps_error *error) {
  struct zps_config_rest rest;
  zps_err_t err = zps_config_load(apart->table, argc, argv, NULL, options, &rest, error);
  if (err) return err;
  if (!rest.exit_now) err = apart->run(options, &rest, out, error);
  zps_config_fini(apart->table, options);
  return err;
}
