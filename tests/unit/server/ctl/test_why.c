/* What `why` finds in a coordinator's answers: the right finding comes first, with its evidence and its remedy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/ctl/ctl.h"
#include "server/ctl/derive.h"
#include "server/ctl/why.h"

#define NOW_S 1717210812 /* 2024-06-01T03:00:12Z */

/* Members of each answer that a case leaves out are those of a cluster without a fault. */
struct trouble {
  const char *title, *job;
  const char *status, *members, *jobs, *before, *now;
  const char *state, *evidence, *remedy; /* of the first finding; state "ok": there is none */
  unsigned n;                            /* findings */
};

#define STATUS "{\"address\":\"10.0.0.1:7077\",\"servers\":2,\"version\":\"1.0\""
#define S(name, more) "{\"server\":\"" name "\",\"host\":\"h" name "\",\"answer\":\"ok\"" more "}"
#define RANKS                                                                            \
  "\"ranks\":[{\"job\":\"j\",\"rank\":0,\"host\":\"w0\",\"pid\":100,\"silent_ms\":300}," \
  "{\"job\":\"j\",\"rank\":1,\"host\":\"w1\",\"pid\":101,\"silent_ms\":400},"            \
  "{\"job\":\"j\",\"rank\":2,\"host\":\"w2\",\"pid\":102,\"silent_ms\":9400}]"
#define JOB "{\"job\":\"j\",\"state\":\"running\",\"world\":3,\"joined\":3,\"servers\":2,\"servers_in\":2}"
#define ROUND(age, waits, n, ranks)                                                                                \
  "{\"server\":\"s1\",\"job\":\"j\",\"job_id\":\"0x1\",\"tensor\":0,\"name\":\"emb\",\"step\":100,\"age_ms\":" age \
  ",\"left_ms\":47000,\"waits_for\":\"" waits "\",\"n_ranks\":" n ",\"ranks\":" ranks "}"
#define PEERS(age, waits, n, ranks)                                                              \
  "{\"job\":\"j\",\"job_id\":\"0x1\",\"tensor\":0,\"name\":\"emb\",\"step\":100,\"age_ms\":" age \
  ",\"left_ms\":47000,\"waits_for\":\"" waits "\",\"n_ranks\":" n ",\"ranks\":" ranks "}"
#define CLOCK(host, ms, error) \
  "{\"name\":\"s" host "\",\"state\":\"in\",\"host\":\"" host "\",\"clock_ms\":" ms ",\"clock_error_ms\":" error "}"
#define SHARD(server, bytes, ns)                                                     \
  "{\"server\":\"" server                                                            \
  "\",\"job\":\"j\",\"job_id\":\"0x1\",\"tensor\":0,\"name\":\"emb\",\"rounds\":10," \
  "\"bytes_out\":" bytes ",\"publish_ns\":" ns "}"
#define LAG(tensor, name, rank, ns)                                                                                \
  "{\"server\":\"s1\",\"job\":\"j\",\"job_id\":\"0x1\",\"tensor\":" tensor ",\"name\":\"" name "\",\"rank\":" rank \
  ",\"lag_ns\":" ns "}"
#define LAGS(a, b, c, barrier)                                                                                    \
  "{\"servers\":[" S("s1", "") "," S("s2", "") "],\"lags\":[" LAG("0", "emb", "0", a) "," LAG(                    \
      "0", "emb", "1", b) "," LAG("0", "emb", "2", c) "," LAG("1", "@barrier", "0",                               \
                                                              barrier) "," LAG("1", "@barrier", "1",              \
                                                                               "0") "," LAG("1", "@barrier", "2", \
                                                                                            "0") "]}"
/* Of 40 ranks the servers tell of the two latest. */
#define WIDE(a, b) \
  "{\"servers\":[" S("s1", "") "],\"shards\":[{\"server\":\"s1\",\"job\":\"j\",\"job_id\":\"0x1\",\"tensor\":0," \
  "\"world\":40}],\"lags\":[" LAG("0", "emb", "1", a) "," LAG("0", "emb", "2", b) "]}"
/* Rank 1 is late, received so many bytes in so many ns of its rounds' time; of the others 100 MB came in 1 s. */
#define TOLD(rank, bytes, pull, total)                                                                        \
  "{\"job\":\"j\",\"job_id\":\"0x1\",\"rank\":" rank ",\"busy\":600,\"bytes_in\":" bytes ",\"pull_ns\":" pull \
  ",\"total_ns\":" total "}"
#define LINKS(lag, bytes, pull, total)                                                          \
  "{\"servers\":[" S("s1", "") "],\"ranks\":[" TOLD("0", "100e6", "1e9", "2e9") "," TOLD(       \
      "1", bytes, pull, total) "," TOLD("2", "100e6", "1e9",                                    \
                                        "2e9") "],\"lags\":[" LAG("0", "emb", "0",              \
                                                                  "0") "," LAG("0", "emb", "1", \
                                                                               lag) "," LAG("0", "emb", "2", "0") "]}"
/* Rank 1 is late. Its last report has these shares of its main thread. */
#define LATE(busy, starved)                                                      \
  "{\"ranks\":[{\"job\":\"j\",\"rank\":1,\"busy\":" busy ",\"starved\":" starved \
  "}],\"lags\":[" LAG("0", "emb", "0", "0") "," LAG("0", "emb", "1", "800e6") "," LAG("0", "emb", "2", "0") "]}"
#define IS_BUSY(trouble) (strstr((trouble)->evidence, "its main thread") || strstr((trouble)->evidence, "its link"))
#define NOW(more) "{\"servers\":[" S("s1", "") "," S("s2", "") "]" more "}"

static const struct trouble troubles[] = {
    {"nothing", .state = "ok"},
    {"a rank lives and does not call", .now = NOW(",\"rounds\":[" ROUND("6200", "push", "1", "[1]") "]"),
     .state = "critical",
     .evidence = "job j: step 100 of tensor emb has waited 6.2 s for the push of rank 1 (host w1, pid 101); its "
                 "deadline comes in 47.0 s",
     .remedy = "print its stack there (py-spy dump -p 101, gdb -p 101); zenpsctl kick j 1 ends it", .n = 1},
    {"a rank is silent", .now = NOW(",\"rounds\":[" ROUND("6200", "push", "1", "[2]") "]"), .state = "critical",
     .evidence = "for the push of rank 2 (host w2, pid 102)",
     .remedy = "it has been silent for 9.4 s: its process is stopped or starved", .n = 1},
    {"several ranks are missing", .now = NOW(",\"rounds\":[" ROUND("6200", "push", "9", "[1,2,4,5,7,8,9,10,11]") "]"),
     .state = "critical", .evidence = "for the push of ranks 1, 2, 4, 5 and 5 more", .n = 1},
    {"the oldest round of a job counts",
     .now = NOW(",\"rounds\":[" ROUND("3000", "push", "1", "[1]") "," ROUND("6200", "bytes", "1", "[0]") "]"),
     .state = "critical", .evidence = "6.2 s for bytes of rank 0", .remedy = "look at the link between its host and s1",
     .n = 1},
    {"an older round that is not stuck hides none",
     .now =
         NOW(",\"rounds\":[{\"server\":\"s1\",\"job\":\"j\",\"name\":\"slow\",\"age_ms\":5000,\"waits_for\":\"sum\"}"
             "," ROUND("3000", "push", "1", "[1]") "],\"shards\":[{\"server\":\"s1\",\"job\":\"j\",\"name\":\"slow\","
                                                   "\"rounds\":10,\"collect_ns\":10e9}]"),
     .state = "critical", .evidence = "tensor emb has waited 3.0 s", .n = 1},
    {"a server that stops cannot be taken back", .members = "{\"servers\":[{\"name\":\"s2\",\"state\":\"stopping\"}]}",
     .jobs = "{\"jobs\":[{\"job\":\"j\",\"state\":\"running\",\"servers\":2,\"servers_in\":1}]}", .state = "warning",
     .evidence = "job j runs on 1 of 2 servers; stopping: s2", .remedy = "start s2 again, or another server", .n = 1},
    {"a name that a shell would run", .members = "{\"unreachable\":[{\"job\":\"j\",\"name\":\"a'$(rm x)\"}]," RANKS "}",
     .state = "warning", .remedy = "zenpsctl undrain 'a'\\''$(rm x)' at once", .n = 1},
    {"a server has lost peers on one of its cards",
     .now = "{\"servers\":[" S("s1", ",\"rails_lost\":5,\"rails_out\":3") "]}", .state = "warning",
     .evidence = "does not reliably reach 3 of its peers over each of its cards",
     .remedy = "look at the link that its log names", .n = 1},
    {"a card has refused memory", .now = "{\"servers\":[" S("s1", ",\"rails_refused\":2") "]}", .state = "warning",
     .evidence = "refused 2 pieces of memory", .remedy = "locked memory counts once for each card", .n = 1},
    {"memory that a card refused is given back", .now = "{\"servers\":[" S("s1", ",\"rails_refused\":0") "]}",
     .state = "ok"},
    {"a card reaches all peers again", .now = "{\"servers\":[" S("s1", ",\"rails_lost\":3,\"rails_out\":0") "]}",
     .state = "ok"},
    {"a round is young", .now = NOW(",\"rounds\":[" ROUND("1900", "push", "1", "[1]") "]"), .state = "ok"},
    {"rounds take long by themselves",
     .now =
         NOW(",\"rounds\":[" ROUND("6200", "push", "1", "[1]") "],\"shards\":[{\"server\":\"s1\",\"job\":\"j\","
                                                               "\"name\":\"emb\",\"rounds\":10,\"collect_ns\":10e9}]"),
     .state = "ok"},
    {"a rank of a round between ranks does not call",
     .now = NOW(",\"rounds\":[" PEERS("6200", "message", "1", "[1]") "]"), .state = "critical",
     .evidence =
         "job j: step 100 of tensor emb has waited 6.2 s for messages of rank 1 (host w1, pid 101); its deadline",
     .remedy = "its process lives, and does not call, or does not get on: print its stack there (py-spy dump -p 101",
     .n = 1},
    {"a rank of a round between ranks is silent", .now = NOW(",\"rounds\":[" PEERS("6200", "message", "1", "[2]") "]"),
     .state = "critical", .evidence = "for messages of rank 2 (host w2, pid 102)",
     .remedy = "it has been silent for 9.4 s: its process is stopped or starved", .n = 1},
    {"a rank of a round between ranks computes", .now = NOW(",\"rounds\":[" PEERS("6200", "rank", "1", "[0]") "]"),
     .state = "critical", .evidence = "for the work of rank 0 (host w0, pid 100)", .remedy = "print its stack", .n = 1},
    {"ranks wait for each other", .now = NOW(",\"rounds\":[" PEERS("6200", "message", "3", "[0,1,2]") "]"),
     .state = "critical", .evidence = "for messages of ranks 0, 1, 2", .remedy = "the links between them", .n = 1},
    {"rounds between ranks take long by themselves",
     .now = NOW(
         ",\"rounds\":[" PEERS("6200", "message", "1", "[1]") "],\"tensors\":[{\"job\":\"j\",\"job_id\":\"0x1\","
                                                              "\"tensor\":0,\"rank_rounds\":10,\"total_ns\":10e9}]"),
     .state = "ok"},
    {"a clock is wrong",
     .members = "{\"servers\":[" CLOCK(
         "a", "0.1", "0.2") "],\"ranks\":[{\"job\":\"j\",\"rank\":1,"
                            "\"host\":\"b\",\"clock_ms\":-90500,\"clock_error_ms\":3},{\"job\":\"j\",\"rank\":2,"
                            "\"host\":\"b\",\"clock_ms\":-90500,\"clock_error_ms\":3}]}",
     .state = "warning", .evidence = "the clock of host b (rank 1 of job j) is 90.5 s behind the coordinator's",
     .remedy = "timedatectl", .n = 1},
    {"a clock is so wrong that certificates are not valid yet",
     .members = "{\"servers\":[" CLOCK("a", "700e3", "2") "]}", .state = "critical",
     .evidence = "the clock of host a (server sa) is 700.0 s ahead of the coordinator's", .n = 1},
    {"a clock that may be right", .members = "{\"servers\":[" CLOCK("a", "4000", "3001") "]}", .state = "ok"},
    {"a clock that is a little off", .members = "{\"servers\":[" CLOCK("a", "990", "1") "]}", .state = "ok"},
    {"the coordinator's clock is wrong",
     .members =
         "{\"servers\":[" CLOCK("a", "-5000", "1") "," CLOCK("b", "-5001", "1") "," CLOCK("c", "-4999", "1") "]}",
     .state = "warning", .evidence = "the coordinator's clock is over 1 s ahead of the clocks of 3 of 3 hosts", .n = 1},
    {"the clock of another job's rank", .job = "other",
     .members = "{\"ranks\":[{\"job\":\"j\",\"rank\":1,\"host\":\"b\",\"clock_ms\":9e4,\"clock_error_ms\":1}]}",
     .state = "ok"},
    {"another job's round", .job = "other", .now = NOW(",\"rounds\":[" ROUND("6200", "push", "1", "[1]") "]"),
     .state = "ok"},
    {"no server", .status = STATUS, .state = "critical", .evidence = "no server is registered", .n = 1},
    {"a server does not answer", .now = "{\"servers\":[{\"server\":\"s1\",\"host\":\"h1\",\"answer\":\"is away\"}]}",
     .state = "critical", .evidence = "server s1 (host h1) does not answer: is away", .n = 1},
    {"memory",
     .now = "{\"servers\":[" S("s1", ",\"memory_in_use_bytes\":950000000,\"memory_limit_bytes\":1000000000") "]}",
     .state = "warning", .evidence = "server s1 uses 95% of its memory limit", .remedy = "server.memory_limit", .n = 1},
    {"a server is barred",
     .members =
         "{\"unreachable\":[{\"job\":\"j\",\"name\":\"s3\",\"rank\":0,\"out_s\":7.2,\"again_s\":12,\"reason\":\"no "
         "frame has come for 5.0 s\"}]," RANKS "}",
     .state = "warning",
     .evidence = "job j has barred server s3 for 7 s: rank 0 cannot reach it: no frame has come for 5.0 s",
     .remedy = "zenpsctl undrain s3", .n = 1},
    {"a job lost a server",
     .jobs =
         "{\"jobs\":[{\"job\":\"j\",\"state\":\"running\",\"servers\":2,\"servers_in\":1,\"lost_servers\":\"s2\"}]}",
     .state = "warning", .evidence = "job j runs on 1 of 2 servers; lost: s2",
     .remedy = "start a server, or mend the link", .n = 1},
    {"a job's server drains", .members = "{\"servers\":[{\"name\":\"s2\",\"state\":\"draining\"}]," RANKS "}",
     .jobs = "{\"jobs\":[{\"job\":\"j\",\"state\":\"running\",\"servers\":2,\"servers_in\":1,\"lost_servers\":\"\"}]}",
     .state = "warning", .evidence = "job j runs on 1 of 2 servers; draining: s2",
     .remedy = "zenpsctl undrain s2 when it may take jobs again", .n = 1},
    {"a job lost a server and another one drains",
     .members = "{\"servers\":[{\"name\":\"s2\",\"state\":\"draining\"}]," RANKS "}",
     .jobs =
         "{\"jobs\":[{\"job\":\"j\",\"state\":\"running\",\"servers\":3,\"servers_in\":1,\"lost_servers\":\"s1\"}]}",
     .state = "warning", .evidence = "job j runs on 1 of 3 servers; lost: s1; draining: s2", .n = 1},
    {"a rank is late in a tensor", .before = LAGS("0", "0", "0", "0"), .now = LAGS("5e6", "800e6", "7e6", "1e6"),
     .state = "warning",
     .evidence =
         "job j: rank 1 (host w1, pid 101) is late: it keeps the others waiting 40% of the time, most at tensor emb",
     .n = 1},
    {"it waits for a processor", .before = LAGS("0", "0", "0", "0"), .now = LATE("700", "250"), .state = "warning",
     .evidence = "emb; its main thread waits for a processor",
     .remedy = "other programs take its processors: see top on its host", .n = 1},
    {"its link is slow", .before = LINKS("0", "0", "0", "0"), .now = LINKS("800e6", "25e6", "1e9", "2e9"),
     .state = "warning",
     .evidence = "rank 1 (host w1, pid 101) is late: it keeps the others waiting 40% of the time, "
                 "most at tensor emb; its link brings 25.0 MB/s, the others' 100.0",
     .remedy = "its link is slow: compare ip -s link", .n = 1},
    {"it had fewer bytes to read", .before = LINKS("0", "0", "0", "0"), .now = LINKS("800e6", "25e6", "100e6", "2e9"),
     .state = "warning", .evidence = "most at tensor emb; its main thread computes", .n = 1},
    {"its link has been slow since the last report", .before = LINKS("0", "25e6", "1e9", "2e9"),
     .now = LINKS("800e6", "25e6", "1e9", "2e9"), .state = "warning", .evidence = "its link brings 25.0 MB/s", .n = 1},
    {"it computes", .before = LAGS("0", "0", "0", "0"), .now = LATE("700", "20"), .state = "warning",
     .evidence = "emb; its main thread computes", .remedy = "compare its batches", .n = 1},
    {"it waits for input", .before = LAGS("0", "0", "0", "0"), .now = LATE("100", "20"), .state = "warning",
     .evidence = "emb; its main thread is idle meanwhile", .remedy = "look at its data loader", .n = 1},
    {"a rank is late at an internal tensor", .before = LAGS("0", "0", "0", "0"),
     .now = LAGS("5e6", "8e6", "7e6", "900e6"), .state = "warning",
     .evidence =
         "rank 0 (host w0, pid 100) is late: it keeps the others waiting 45% of the time, most at tensor @barrier",
     .n = 1},
    {"ranks are late in turns", .before = LAGS("0", "0", "0", "0"), .now = LAGS("500e6", "600e6", "550e6", "1"),
     .state = "ok"},
    {"the ranks of a large world that are not among the latest count", .before = WIDE("0", "0"),
     .now = WIDE("900e6", "700e6"), .state = "warning", .evidence = "rank 1 (host w1, pid 101) is late", .n = 1},
    {"a server is slow", .before = NOW(",\"shards\":[" SHARD("s1", "0", "0") "," SHARD("s2", "0", "0") "]"),
     .now = NOW(",\"shards\":[" SHARD("s1", "100e6", "1e9") "," SHARD("s2", "30e6", "1e9") "]"), .state = "warning",
     .evidence = "server s2 (host hs2) serves sums at 30.0 MB/s, the others at 100.0", .n = 1},
    {"a job failed",
     .jobs = "{\"ended\":[{\"job\":\"night\",\"state\":\"failed\",\"code\":\"ERR_MISSING\",\"ended_at\":\"2024-06-"
             "01T02:50:12Z\","
             "\"failure\":\"step 100: the deadline passed without the push of rank "
             "1\"},{\"job\":\"old\",\"state\":\"failed\","
             "\"ended_at\":\"2024-05-30T02:50:12Z\"},{\"job\":\"fine\",\"state\":\"left\",\"ended_at\":\"2024-06-"
             "01T02:50:12Z\"}]}",
     .state = "warning",
     .evidence = "job night failed 10 min ago: ERR_MISSING: step 100: the deadline passed without the push of rank 1",
     .n = 1},
    {"why of a job that failed long ago", .job = "night",
     .jobs = "{\"ended\":[{\"job\":\"night\",\"state\":\"failed\",\"code\":\"ERR_NOMEM\",\"failure\":\"server 'a' is "
             "full\","
             "\"ended_at\":\"2024-05-30T02:50:12Z\"},{\"job\":\"fine\",\"state\":\"left\"}]}",
     .state = "critical", .evidence = "job night failed at 2024-05-30T02:50:12Z: ERR_NOMEM: server 'a' is full",
     .remedy = "raise server.memory_limit", .n = 1},
    {"a run that was repeated", .job = "night",
     .jobs = "{\"ended\":[{\"job\":\"night\",\"state\":\"failed\",\"code\":\"ERR_NOMEM\",\"ended_at\":"
             "\"2024-06-01T02:50:12Z\"},{\"job\":\"night\",\"state\":\"left\",\"epoch\":3,\"ended_at\":\"2024-06-01T02:"
             "55:12Z\"}]}",
     .state = "ok"},
    {"a repeat that has not begun", .job = "night",
     .jobs = "{\"jobs\":[{\"job\":\"night\",\"state\":\"joining\",\"age_s\":1}],\"ended\":[{\"job\":\"night\","
             "\"state\":\"failed\","
             "\"code\":\"ERR_NOMEM\",\"ended_at\":\"2024-06-01T02:50:12Z\"}]}",
     .state = "critical", .evidence = "job night failed 10 min ago: ERR_NOMEM", .n = 1},
    {"a rank failed, and another one hangs",
     .jobs = "{\"jobs\":[{\"job\":\"j\",\"state\":\"running\",\"world\":4,\"joined\":1,\"code\":\"ERR_MISSING\","
             "\"failure\":\"step 100: the deadline passed without the push of rank 1\"}]}",
     .state = "critical",
     .evidence = "job j fails, and 1 of its 4 ranks are still there: ERR_MISSING: step 100: the deadline passed",
     .remedy = "read the logs of the ranks that the sentence names", .n = 1},
    {"the disk",
     .status = STATUS ",\"state_dir\":\"/var/lib/zenps\",\"state_size_bytes\":1e9,\"state_free_bytes\":30e6",
     .state = "warning", .evidence = "the coordinator's state directory /var/lib/zenps has 29 MiB free, 3.0%", .n = 1},
    {"a certificate", .status = STATUS ",\"certificate_ends\":1718074812", /* in 10 days */
     .state = "warning", .evidence = "the certificate of the coordinator at 10.0.0.1:7077 ends in 10.0 days",
     .remedy = "zenpsctl certs init", .n = 1},
    {"a server's certificate, soon", .members = "{\"servers\":[{\"name\":\"s1\",\"certificate_ends\":1717297212}]}",
     .state = "critical", .evidence = "the certificate of server s1 ends in 1.0 days", .n = 1},
    {"versions", .members = "{\"servers\":[{\"name\":\"s1\",\"version\":\"0.9\",\"certificate_ends\":1800000000}]}",
     .state = "warning", .evidence = "server s1 is version 0.9, the coordinator 1.0", .n = 1},
};

static zps_json *parse(const char *given, const char *otherwise) {
  const char *const text = given ? given : otherwise;
  zps_json *value = NULL;
  struct zps_error error;
  if (zps_json_parse(text, strlen(text), &value, &error)) fail_msg("%s: %s", error.text, text);
  return value;
}

static zps_json *status_of(const struct trouble *trouble) {
  char text[600];
  if (!trouble->status) return parse("{\"coordinator\":[" STATUS "}]}", NULL);
  const bool is_empty = strcmp(trouble->title, "no server") == 0;
  snprintf(text, sizeof text, "{\"coordinator\":[%s}]}",
           is_empty ? "{\"address\":\"10.0.0.1:7077\",\"servers\":0" : trouble->status);
  return parse(text, NULL);
}

static void test_findings(void **state) {
  (void)state;
  for (unsigned i = 0; i < sizeof troubles / sizeof troubles[0]; i++) {
    const struct trouble *const trouble = &troubles[i];
    zps_json *const status = status_of(trouble), *const members = parse(trouble->members, "{" RANKS "}");
    zps_json *const jobs = parse(trouble->jobs, "{\"jobs\":[" JOB "]}");
    zps_json *const before = parse(trouble->before, NOW("")), *const now = parse(trouble->now, NOW(""));
    const struct zps_ctl_why_answers answers = {status, members, jobs, before, now, 2.0, NOW_S};
    zps_json *const result = zps_ctl_why(&answers, trouble->job);
    const zps_json *const findings = zps_json_get(result, "findings"), *const first = zps_json_at(findings, 0);
    char *const text = zps_json_dump(result);
    if (strcmp(zps_json_opt_str(result, "state", ""), trouble->state) != 0 ||
        zps_json_array_len(findings) != trouble->n ||
        (trouble->evidence && !strstr(zps_json_opt_str(first, "evidence", ""), trouble->evidence)) ||
        (trouble->remedy && !strstr(zps_json_opt_str(first, "remedy", ""), trouble->remedy)) ||
        (first && !*zps_json_opt_str(first, "remedy", "")))
      fail_msg("%s: %s", trouble->title, text);
    assert_int_equal(zps_ctl_why_exit(result), trouble->n == 0 ? 0 : strcmp(trouble->state, "warning") == 0 ? 1 : 2);
    free(text);
    zps_json_unref(result);
    zps_json_unref(status);
    zps_json_unref(members);
    zps_json_unref(jobs);
    zps_json_unref(before);
    zps_json_unref(now);
  }
}

/* `stats` and `why` find the same late rank, or none. */
static void test_stats_agrees(void **state) {
  (void)state;
  unsigned n_late = 0;
  for (unsigned i = 0; i < sizeof troubles / sizeof troubles[0]; i++) {
    const struct trouble *const trouble = &troubles[i];
    zps_json *const before = parse(trouble->before, NOW(""));
    zps_json *ranks = zps_json_array(), *now = parse(trouble->now, NOW(""));
    for (unsigned r = 0; r < 3; r++) {
      zps_json *row = zps_json_set_str(zps_json_object(), "job", "j");
      row = zps_json_set_u64(zps_json_set_str(row, "job_id", "0x1"), "rank", r);
      ranks = zps_json_append(ranks, row);
    }
    now = zps_json_set(now, "ranks", ranks);
    zps_json *const derived = zps_ctl_derive(now, before, 2.0);
    for (unsigned r = 0; r < 3; r++) {
      char wanted[60];
      const zps_json *const row = zps_json_at(zps_json_get(derived, "ranks"), r);
      snprintf(wanted, sizeof wanted, "rank %u (host w%u, pid %u) is late", r, r, 100 + r);
      const bool is_late = strcmp(zps_json_opt_str(row, "late", ""), "late") == 0;
      const bool is_found = trouble->evidence && (strstr(trouble->evidence, wanted) || (r == 1 && IS_BUSY(trouble)));
      if (is_late != is_found) fail_msg("%s: rank %u: %s", trouble->title, r, zps_json_opt_str(row, "late", "?"));
      n_late += is_late;
    }
    zps_json_unref(derived);
    zps_json_unref(before);
    zps_json_unref(now);
  }
  assert_true(n_late > 4);
}

/* Rounds that overlap wait for a late rank together. */
static void test_overlapping_rounds(void **state) {
  (void)state;
#define ROW(rank, total) "{\"job\":\"j\",\"job_id\":\"0x1\",\"rank\":" rank ",\"total_ns\":" total "}"
#define OVERLAP(total, lag)                                                                                       \
  "{\"servers\":[" S("s1", "") "],\"ranks\":[" ROW("0", total) "," ROW("1", total) "," ROW(                       \
      "2", total) "],\"lags\":[" LAG("0", "emb", "0", "0") "," LAG("0", "emb", "1", lag) "," LAG("0", "emb", "2", \
                                                                                                 "0") "]}"
  static const struct {
    const char *before, *now, *late;
  } cases[] = {{OVERLAP("5e9", "0"), OVERLAP("7e9", "800e6"), "late"},
               {OVERLAP("5e9", "0"), OVERLAP("45e9", "800e6"), ""}, /* 20 in flight: 2% of the time */
               {OVERLAP("5e9", "0"), OVERLAP("45e9", "16e9"), "late"}};
  for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    zps_json *const before = parse(cases[i].before, NULL), *const now = parse(cases[i].now, NULL);
    zps_json *const derived = zps_ctl_derive(now, before, 2.0);
    const zps_json *const row = zps_json_at(zps_json_get(derived, "ranks"), 1);
    const bool is_late = strcmp(zps_json_opt_str(row, "late", ""), "late") == 0;
    if (is_late != (*cases[i].late != 0)) fail_msg("case %u", i);
    zps_json_unref(derived);
    zps_json_unref(before);
    zps_json_unref(now);
  }
}

/* The worst finding comes first, and ten at most are shown. */
static void test_order(void **state) {
  (void)state;
  char servers[3000] =
      "{\"servers\":[" S("s1", ",\"forged\":1") ",{\"server\":\"s2\",\"host\":\"h\",\"answer\":\"is away\"}";
  for (unsigned i = 0; i < 15; i++) strcat(servers, "," S("x", ",\"corrupt\":1"));
  strcat(servers, "]}");
  zps_json *const status = parse("{\"coordinator\":[" STATUS "}]}", NULL), *const none = parse("{}", NULL);
  zps_json *const now = parse(servers, NULL);
  const struct zps_ctl_why_answers answers = {status, none, none, none, now, 2.0, NOW_S};
  zps_json *const result = zps_ctl_why(&answers, NULL);
  const zps_json *const findings = zps_json_get(result, "findings");
  assert_int_equal(zps_json_array_len(findings), 10);
  assert_int_equal(zps_json_opt_u64(result, "left_out", 0), 7);
  assert_string_equal(zps_json_opt_str(zps_json_at(findings, 0), "grade", ""), "critical");
  assert_string_equal(zps_json_opt_str(zps_json_at(findings, 1), "grade", ""), "warning");
  char *text = NULL;
  size_t len = 0;
  FILE *out = open_memstream(&text, &len);
  zps_ctl_why_print(out, result, true);
  fclose(out);
  assert_string_equal(text,
                      "critical: server s2 (host h) does not answer: is away. look at its process and its log there: "
                      "systemctl status zenpsd; journalctl -u zenpsd\n");
  free(text);
  zps_json_unref(result);
  zps_json_unref(status);
  zps_json_unref(none);
  zps_json_unref(now);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_findings),
      cmocka_unit_test(test_stats_agrees),
      cmocka_unit_test(test_overlapping_rounds),
      cmocka_unit_test(test_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
