/* The commands and their help: what each shows, its columns, examples. Columns come from table.c, so that none can be
 * left out; a test holds that each is described. */
#include <string.h>

#include "common/base/near.h"
#include "server/ctl/ctl.h"
#include "server/ctl/plan.h"

static const struct zps_ctl_verb verbs[] = {
    {.name = "status",
     .method = "status",
     .summary = "the coordinator: version, since when it runs, how much it has to do",
     .about = "One row. It answers as long as the coordinator's loop turns, so it serves as a health check, too.",
     .examples = {"zenpsctl status", "zenpsctl -e 10.0.0.1:7077 -o json status"}},
    {.name = "members",
     .method = "members",
     .summary = "servers, and the ranks of all jobs",
     .about =
         "Three tables: the servers that are registered, the ranks of jobs that wait, run or end, and, while there are "
         "any, the servers that had to leave a running job: ranks could not reach them over the data plane. The job "
         "asks such a server again after a pause: 5 s, doubled each time, up to 300 s. zenpsctl undrain NAME ends it.",
     .examples = {"zenpsctl members", "zenpsctl --watch members"}},
    {.name = "jobs",
     .method = "jobs",
     .summary = "jobs that wait, run or end; with --all also the last 256 that have ended",
     .about =
         "The second table, of --all, has the jobs that some rank had joined and that have ended since the coordinator "
         "started, the last one at the bottom: when, and the first cause where they failed. What followed from that "
         "cause, such as ranks that gave up, is not told. The coordinator keeps it in memory.",
     .examples = {"zenpsctl jobs --all", "zenpsctl -o json jobs --all | jq '.ended[] | select(.state == \"failed\")'"},
     .takes = ZPS_CTL_ALL},
    {.name = "tensors",
     .method = "tensors",
     .summary = "tensors of all jobs: shape, partitions, scheme",
     .about = "Tensors that zenps has for itself (their names begin with '@') are shown with --internal alone.",
     .examples = {"zenpsctl tensors"},
     .takes = ZPS_CTL_INTERNAL},
    {.name = "stats",
     .method = "stats",
     .summary = "rounds of every scheme: bytes, density, phases; what servers see; who is late",
     .about =
         "Six tables. Of servers; of tensors and of ranks, by what ranks have told of their rounds, whatever "
         "carries them out (every ZENPS_TELEMETRY, 5 s unless set, and when they leave; sums over ranks); of shards, "
         "by what each server has seen of a tensor whose rounds went through it; of lags at each server; of shares, "
         "what each job has of a server's threads and memory. Rates, "
         "densities and times are of the time since a tensor was opened; with --watch, from the second answer on, of "
         "the time since the answer before. Bytes have K, M, G, T and P behind them, powers of 1024; JSON has all "
         "digits. Tensors that zenps has for itself (their names begin with '@') are shown with --internal alone.",
     .examples = {"zenpsctl stats", "zenpsctl --watch=5s stats"},
     .takes = ZPS_CTL_INTERNAL},
    {.name = "why",
     .method = "status",
     .gather = zps_ctl_why_gather,
     .takes_job = true,
     .summary = "what is wrong, with its evidence and its remedy, in ten lines at most",
     .about =
         "The worst finding comes first: a round that waits, and for whom; servers that do not answer, are barred from "
         "a job or slow; ranks that are late; jobs that failed within the last day; memory, disk and certificates that "
         "run out. It asks twice, 2 s apart. Exit status: 0 nothing is wrong, 1 warning, 2 critical, as Nagios has it; "
         "3 and above: the coordinator did not answer.",
     .examples = {"zenpsctl why", "zenpsctl why train7 -o json"}},
    {.name = "health",
     .method = "status",
     .gather = zps_ctl_why_gather,
     .takes_job = true,
     .summary = "the first finding of why, in one line, with its exit status",
     .about = "Exit status: 0 nothing is wrong, 1 warning, 2 critical, as Nagios has it.",
     .examples = {"zenpsctl health", "zenpsctl health train7"}},
    {.name = "rounds",
     .method = "stats",
     .takes_job = true,
     .summary = "rounds in flight on servers: their age, and the ranks that they wait for",
     .about =
         "The oldest comes first. Servers are asked, and answer within 2 s. Rounds of schemes between ranks alone pass "
         "no server, and are not shown. Tensors that zenps has for itself (@...) are.",
     .examples = {"zenpsctl rounds", "zenpsctl --watch=1s rounds train7"}},
    {.name = "security",
     .method = "security",
     .summary = "what stands open to strangers, and how to close it",
     .about =
         "As far as the coordinator sees; what a firewall or a network keeps away it does not know. With TLS it is for "
         "administrators alone.",
     .examples = {"zenpsctl security", "zenpsctl -o json security | jq '.parts[] | select(.state == \"open\")'"}},
    {.name = "drain",
     .method = "drain",
     .summary = "a server gets no new jobs, and those that run leave it for their other servers",
     .about =
         "Ranks push the steps in flight once more: none is lost, and no sum is another. The first table has the "
         "server, the second one the jobs that it "
         "still has: those that are about to leave it, and those that stay until they end, with the reason. Such are "
         "jobs that push and pull apart, or push more than their ranks can keep. "
         "The coordinator remembers which servers drain; the last one that takes jobs is refused. A process that ends "
         "by SIGTERM drains first. The last server that a job has keeps it until it ends, or another one has come: a "
         "job "
         "takes in servers, a few seconds after they came or were taken back, in the places of those that it has left.",
     .examples = {"zenpsctl drain node3 --wait", "zenpsctl drain node3 --wait=30s --reason 'a new disk' -o json"},
     .takes = ZPS_CTL_WAIT,
     .change = &zps_ctl_drain},
    {.name = "undrain",
     .method = "undrain",
     .summary = "a server that drains takes new jobs again",
     .about = "Running jobs take it in again, after a few seconds. Refused where its process is about to end, after "
              "SIGTERM.",
     .examples = {"zenpsctl undrain node3"},
     .change = &zps_ctl_undrain},
    {.name = "rebalance",
     .method = "rebalance",
     .summary = "running jobs, or one, take in the servers that are there, at once",
     .about =
         "Jobs do so by themselves, a few seconds after a server has come or was taken back: each takes the place of "
         "one that the job was rid of, or one that was free from the beginning (job.server_places), and the place's "
         "partitions, so that all servers have even shares again. No step is lost, and no sum is another. A job "
         "without "
         "such room has never more servers than it began with; an elastic one begins its next generation, on all "
         "servers that there are. One row for each job.",
     .examples = {"zenpsctl rebalance --wait", "zenpsctl rebalance train7 -o json"},
     .takes = ZPS_CTL_WAIT,
     .change = &zps_ctl_rebalance},
    {.name = "kick",
     .method = "kick",
     .summary = "a rank is taken out of its job, as if its process had died",
     .about =
         "The rank hears it, with the reason; to the others it is lost: an elastic job goes on without it, any other "
         "one fails. Its process is not ended. When it calls as that rank again, also for the next generation, it is "
         "refused; one that is started anew is another. The coordinator remembers the last 64, also when it "
         "starts again where it keeps its state (coordinator.state_dir). Who did it, and who is refused, is in its log "
         "(audit:).",
     .examples = {"zenpsctl kick train7 3 --reason 'its GPU reports ECC errors'"},
     .change = &zps_ctl_kick},
    {.name = "version",
     .method = "status",
     .summary = "versions of zenpsctl, of the coordinator, and of the protocol that each speaks",
     .about = "A coordinator of another protocol refuses, with both numbers in the error.",
     .examples = {"zenpsctl version"}},
    {.name = "plan",
     .summary = "what each scheme would cost on a cluster; asks nobody, has options of its own",
     .about = "",
     .run = zps_ctl_plan_run},
    {.name = "state",
     .summary = "whether a coordinator's journal is whole; asks nobody, has options of its own",
     .about = "",
     .run = zps_ctl_state_run},
    {.name = "token",
     .summary = "keys and tokens, which let ranks into jobs; asks nobody, has options of its own",
     .about = "",
     .run = zps_ctl_token_run},
    {.name = "certs",
     .summary = "certificates for TLS; asks nobody, has options of its own",
     .about = "",
     .run = zps_ctl_certs_run},
    {.name = "help", .summary = "this list, or with a command behind it that command's help", .about = ""},
};
enum { N_VERBS = sizeof verbs / sizeof verbs[0] };

/* The first that fits; NULL: in any table. */
static const struct {
  const char *noun, *array, *key, *text;
} columns[] = {
    {NULL, "coordinator", "address", "where it listens"},
    {NULL, "coordinator", "state", "running, or draining: takes no jobs and ends after the last one"},
    {NULL, NULL, "version", "of zenps"},
    {NULL, NULL, "protocol", "number of the protocol, which must be equal everywhere"},
    {NULL, NULL, "pid", "process"},
    {NULL, NULL, "uptime_s", "seconds since it started"},
    {"jobs", NULL, "epoch", "membership epoch that its servers and ranks live in; a lost server makes another"},
    {"jobs", NULL, "generation", "of an elastic job, whose ranks change: from 1 on; 0: it is not elastic"},
    {"jobs", NULL, "weight", "its turns among the jobs of a server (job.weights)"},
    {NULL, NULL, "epoch", "counts changes of membership"},
    {"status", NULL, "servers", "servers that are registered"},
    {NULL, NULL, "servers_draining", "of them, those that take no more jobs"},
    {"status", NULL, "jobs", "jobs that wait, run or end"},
    {"members", "unreachable", "server", "number of the server, issued once"},
    {"members", "unreachable", "name", "its server.name"},
    {"members", "unreachable", "rank", "first rank that could not reach it"},
    {"members", "unreachable", "ranks", "how many ranks could not"},
    {"members", "unreachable", "out_s", "seconds since it had to leave the job"},
    {"members", "unreachable", "again_s", "seconds until the job may ask it to take a place again"},
    {"members", "unreachable", "reason", "what the first rank saw"},
    {NULL, NULL, "ranks", "ranks in them"},
    {"status", NULL, "tensors", "tensors in them"},
    {"security", NULL, "part", "what it is about"},
    {"security", NULL, "state", "guarded; host: open to users of this host alone; open"},
    {"security", NULL, "how", "how it is guarded, or to whom it is open"},
    {"security", NULL, "close", "options that close it"},
    {"drain", "servers", "name", "its server.name"},
    {"undrain", "servers", "name", "its server.name"},
    {"drain", "servers", "state", "draining: takes no more jobs; away: so, when it is back"},
    {"undrain", "servers", "state", "in: takes jobs; away: so, when it is back"},
    {"drain", "servers", "jobs", "jobs that it still has"},
    {"undrain", "servers", "jobs", "jobs that it has"},
    {"drain", "jobs", "outcome", "leaves: it goes on with its other servers; stays: until it ends"},
    {"drain", "jobs", "reason", "why it stays"},
    {"rebalance", NULL, "outcome", "moves: servers take places; waits: so, when it can; stays: as it is"},
    {"rebalance", NULL, "servers", "servers that it has then"},
    {"rebalance", NULL, "partitions", "of its tensors, those that another server has then"},
    {"rebalance", NULL, "reason", "who takes places; what it waits for; why it stays"},
    {"kick", NULL, "job_state", "what became of the job: joining, or closing: it fails; or it has ended with the rank"},
    {"members", "servers", "server", "number, issued once"},
    {NULL, NULL, "server", "name of the server"},
    {"members", "servers", "name", "its server.name"},
    {"members", "servers", "state", "in, or draining: takes no more jobs"},
    {NULL, NULL, "host", "its host's name"},
    {NULL, NULL, "provider", "libfabric's provider"},
    {NULL, NULL, "keys", "memory keys: random, or weak: such as strangers may guess, who then read gradients"},
    {NULL, NULL, "address", "its address on the fabric"},
    {"members", NULL, "jobs", "jobs that are on it"},
    {NULL, NULL, "silent_ms", "milliseconds since anything was heard of it"},
    {NULL, NULL, "job", "name of the job"},
    {NULL, NULL, "rank", "rank in the job"},
    {"members", "ranks", "state", "joining: waits for the others; in; left: in peace; lost"},
    {NULL, NULL, "memory", "where gradients are: host; of a GPU staged (through the host), hmem or dmabuf"},
    {NULL, NULL, "job_id", "number of this run of the job"},
    {"jobs", "jobs", "state",
     "joining: waits for ranks or servers; opening; running; closing: failed, waits for its ranks"},
    {"jobs", "ended", "state", "closed: all ranks left in peace; failed"},
    {NULL, NULL, "world", "ranks that it is of"},
    {NULL, NULL, "joined", "ranks that are in"},
    {NULL, NULL, "left", "ranks that left in peace"},
    {NULL, NULL, "lost", "ranks that were lost"},
    {"jobs", NULL, "servers", "servers that it began with"},
    {"jobs", NULL, "lost_servers", "by name, servers that were lost: the others have their partitions"},
    {"jobs", NULL, "servers_in", "servers that it has now"},
    {"jobs", NULL, "places", "servers that it has room for (job.server_places)"},
    {"jobs", NULL, "tensors", "tensors that were opened"},
    {NULL, NULL, "age_s", "seconds since it began to run, or to wait"},
    {NULL, NULL, "ran_s", "seconds that it ran; or waited, if it never ran"},
    {NULL, NULL, "ended_at", "when, UTC"},
    {NULL, NULL, "code", "of the failure, as in <zenps/zenps.h>"},
    {"jobs", NULL, "failure", "why it failed: the first cause"},
    {"tensors", NULL, "tensor", "number in the job"},
    {NULL, NULL, "name", "name of the tensor"},
    {NULL, NULL, "group", "the group of ranks that it is a tensor of; none: all ranks"},
    {"tensors", NULL, "state", "opening, open or failed"},
    {NULL, NULL, "rows", "rows"},
    {NULL, NULL, "width", "values of a row"},
    {NULL, NULL, "dtype", "type of a value"},
    {NULL, NULL, "op", "sum, mean, max or min"},
    {NULL, NULL, "partitions", "partitions, spread over the servers"},
    {NULL, NULL, "block_bits", "rows that stay together when they are hashed, as a power of two"},
    {NULL, NULL, "codec", "how row numbers travel"},
    {NULL, NULL, "values", "what values travel as"},
    {"tensors", NULL, "scheme", "how rounds are carried out"},
    {NULL, NULL, "planned", "the scheme that the coordinator has chosen, where it may"},
    {NULL, NULL, "too_slow",
     "schemes that it does not try: at the rate of measured rounds, or by their first round, they "
     "take more than 3 times as long"},
    {"tensors", NULL, "servers", "servers of the job"},
    {"rounds", NULL, "step", "the step"},
    {"rounds", NULL, "age_ms", "milliseconds since the first rank pushed"},
    {"rounds", NULL, "waits_for",
     "push: ranks have not pushed; bytes: they are being read from ranks; sum: the server sums; pull: ranks have not "
     "read the sums"},
    {"rounds", NULL, "n_ranks", "how many ranks it waits for"},
    {"rounds", NULL, "ranks", "the first 16 of them"},
    {"rounds", NULL, "left_ms", "milliseconds until the earliest deadline of its ranks ends it"},
    {"members", NULL, "version", "its version of zenps"},
    {NULL, NULL, "answer", "ok, or why the server did not answer"},
    {"stats", "servers", "jobs", "jobs that are open on it"},
    {"stats", "servers", "tensors", "tensors that are open on it"},
    {NULL, NULL, "rounds_in_flight", "rounds that have begun and not ended"},
    {NULL, NULL, "memory_in_use_bytes", "bytes of registered memory in use"},
    {NULL, NULL, "memory_high_water_bytes", "the most that were ever in use"},
    {NULL, NULL, "read_bytes", "bytes that it read from ranks' memory"},
    {NULL, NULL, "msg_bytes_sent", "bytes of messages that it sent"},
    {NULL, NULL, "msg_bytes_received", "bytes of messages that it received"},
    {NULL, NULL, "again", "times that the fabric had no room and was asked again"},
    {NULL, NULL, "malformed", "frames that were refused"},
    {NULL, NULL, "forged", "messages passed over, which no process of their job had sent"},
    {NULL, NULL, "corrupt", "reads that did not bring the bytes that were announced, and were made again or failed"},
    {NULL, NULL, "reconnects", "connections of the data plane that were lost or taken over, and made anew"},
    {NULL, NULL, "resent", "messages that were sent again over another connection"},
    {NULL, NULL, "reordered", "messages that came before others that were sent earlier, and waited"},
    {"stats", "tensors", "rounds", "rounds that ended well, on the rank that has done most"},
    {"stats", "ranks", "state", "in; left: in peace; lost"},
    {"stats", NULL, "scheme", "that its last round ran under"},
    {"stats", NULL, "step", "of the last round that ended well"},
    {"stats", NULL, "failed", "rounds that did not end well, counted on every rank"},
    {"stats", "tensors", "bytes_out", "bytes that ranks sent over the fabric, or that were read from them"},
    {"stats", "ranks", "bytes_out", "bytes that it sent over the fabric, or that were read from it"},
    {"stats", "tensors", "bytes_in", "bytes that ranks received"},
    {"stats", "ranks", "bytes_in", "bytes that it received"},
    {"stats", NULL, "shared_out", "bytes that it gave other ranks of its host in memory"},
    {"stats", "ranks", "kept_bytes",
     "of its pushes, in registered memory, in case a server is lost (ZENPS_REPLAY_MEMORY)"},
    {"stats", NULL, "saved", "times the bytes, also those in memory that ranks share, that a dense ring would move"},
    {"stats", NULL, "round_ms", "milliseconds from zenps_allreduce() to the result, on average"},
    {"stats", NULL, "encode_ms", "of these, until the first push is announced; phases overlap"},
    {"stats", NULL, "push_ms", "until the last push is announced"},
    {"stats", NULL, "wait_ms", "until the first sum is announced: the rank that waits least is the one that is late"},
    {"stats", NULL, "pull_ms", "until the last sum is here"},
    {"stats", NULL, "decode_ms", "until the result is written"},
    {"stats", "tensors", "imbalance_push",
     "what the server that is sent most gets of a rank's rows in a step over its even share, of the heaviest rank, "
     "mean of "
     "rounds; 1 is even"},
    {"stats", "tensors", "imbalance_pull",
     "rows of the sums at the server that has most over its even share; 1 is even"},
    {"stats", NULL, "told_s", "seconds since a rank last told of it"},
    {"jobs", NULL, "rounds", "rounds of its tensors, as ranks have told"},
    {"jobs", NULL, "bytes_out", "bytes that its ranks sent"},
    {"jobs", NULL, "bytes_in", "bytes that they received"},
    {NULL, NULL, "rounds", "rounds that ended well"},
    {NULL, NULL, "aborted", "rounds that did not"},
    {NULL, NULL, "rounds_per_s", "rounds a second"},
    {NULL, NULL, "bytes_in", "bytes that came from ranks"},
    {NULL, NULL, "bytes_in_per_s", "the same a second"},
    {NULL, NULL, "bytes_out", "bytes that went to ranks"},
    {NULL, NULL, "bytes_out_per_s", "the same a second"},
    {NULL, NULL, "density", "rows that a rank pushes, of those it could, 0 to 1"},
    {NULL, NULL, "union_density", "rows in the sum, of all, 0 to 1"},
    {NULL, NULL, "imbalance_push", "heaviest partition that a rank pushes over the mean one, of all rounds; 1 is even"},
    {NULL, NULL, "imbalance_pull", "heaviest partition of the sum over the mean one; 1 is even"},
    {NULL, NULL, "imbalance_step",
     "what the server is sent of a rank's rows over its even share, of the heaviest rank, mean of rounds"},
    {NULL, NULL, "collect_ms", "milliseconds of a round from the first push until all are there"},
    {NULL, NULL, "reduce_ms", "milliseconds of a round until all sums are made"},
    {NULL, NULL, "publish_ms", "milliseconds of a round until all ranks have the sums"},
    {"stats", "shares", "weight", "of the job, on the server (job.weights)"},
    {NULL, NULL, "pool_bytes", "bytes of the job's gradients that the server's threads have worked on"},
    {NULL, NULL, "pool_contested_bytes", "of these, while other jobs' waited"},
    {NULL, NULL, "pool_waited_bytes",
     "bytes of other jobs' that they worked on while this one's waited, summed over what waited"},
    {NULL, NULL, "memory_bytes", "bytes of the server's registered memory that the job has at the moment"},
    {NULL, NULL, "lag_ms",
     "milliseconds by which its push comes after the first one, on average: the last is the slowest"},
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

static void print_verb(const struct zps_ctl_verb *verb) {
  struct listing listing = {.noun = verb->name};
  const char *const args = verb->change ? verb->change->args : verb->takes_job ? "[JOB]" : "";
  printf("Usage: zenpsctl [OPTION...] %s%s%s%s%s%s%s\n%s\n", verb->name, *args ? " " : "", args,
         verb->takes & ZPS_CTL_ALL ? " [--all]" : "", verb->takes & ZPS_CTL_INTERNAL ? " [--internal]" : "",
         verb->takes & ZPS_CTL_WAIT ? " [--wait[=TIME]]" : "", verb->change ? " [--reason TEXT]" : "", verb->summary);
  zps_config_help_text(verb->about);
  zps_ctl_table_columns(verb->name, print_column, &listing);
  if (listing.array) zps_config_help_text("In brackets: the key in JSON, whose arrays have the names of the tables.");
  zps_config_help_title("Examples");
  for (unsigned i = 0; verb->examples[i]; i++) printf("  %s\n", verb->examples[i]);
  zps_config_help_text("Options are those of zenpsctl: zenpsctl --help.");
}

zps_err_t zps_ctl_help(const char *command, struct zps_error *error) {
  const struct zps_ctl_verb *verb = NULL;
  if (!command || strcmp(command, "help") == 0) {
    zps_config_help_title("Commands");
    for (unsigned i = 0; i < N_VERBS; i++) zps_config_help_row(verbs[i].name, verbs[i].summary);
    zps_config_help_text("zenpsctl help COMMAND tells what a command shows, column by column.");
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
