/*
 * zenpsrun: one command for a whole run on one machine: a coordinator, servers, and n ranks of a program.
 *
 * Two ways in. With -n it starts everything itself, as mpirun does. Without -n, as the program of torchrun, mpirun or
 * srun, it stands in front of one rank: rank 0 starts coordinator and servers at MASTER_ADDR on a port of its own, and
 * all of them run their program against it.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/config.h"
#include "common/base/descriptors.h"
#include "common/base/exit.h"
#include "common/base/launcher.h"
#include "common/control/addresses.h"
#include "common/control/own_socket.h"
#include "worker/tools/daemons.h"
#include "worker/tools/elastic.h"
#include "worker/tools/folder.h"
#include "worker/tools/launch.h"
#include "worker/tools/master.h"
#include "worker/tools/ranks.h"
#include "worker/tools/secure.h"
#include "worker/tools/strings.h"

struct options {
  uint64_t ranks, servers, port, linger_ms, grace_ms, start_timeout_ms, join_wait_ms;
  char *provider, *interface, *zenpsd, *coordinator, *job, *log_level, *elastic, *token_key;
  bool prefix, encrypt;
  int profile;        /* index into zps_profile_names */
  int on_server_loss; /* enum on_loss */
  int on_rank_loss;   /* enum zps_rank_loss */
};

enum on_loss { ON_LOSS_CONTINUE, ON_LOSS_FAIL };
static const char *const losses[] = {"continue", "fail", NULL};
static const char *const rank_losses[] = {"auto", "continue", "restart", "fail", NULL};

#define OPT(type, member, ...) ZPS_OPT_ROW(struct options, type, member, .flags = ZPS_OPT_FLAG_ONLY, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_UINT, ranks, .name = "ranks", .short_flag = 'n', .arg = "N", .min = 0, .max = 4096,
        .help = "number of ranks to start; without it, this process is one rank of torchrun, mpirun or srun"),
    OPT(ZPS_OPT_UINT, servers, .name = "servers", .short_flag = 's', .arg = "S", .def = "1", .min = 1, .max = 256,
        .help = "number of server processes to start"),
    OPT(ZPS_OPT_ENUM, on_server_loss, .name = "on-server-loss", .arg = "WHAT", .def = "continue", .values = losses,
        .help = "when a server ends: continue: the job goes on with the remaining servers, and zenpsrun starts another "
                "in its place; fail: the run fails"),
    OPT(ZPS_OPT_STRING, elastic, .name = "elastic", .arg = "MIN:MAX",
        .help = "make the job elastic, with at least MIN and at most MAX ranks; -n is between them"),
    OPT(ZPS_OPT_ENUM, on_rank_loss, .name = "on-rank-loss", .arg = "WHAT", .def = "auto", .values = rank_losses,
        .help = "when a rank of an elastic run is killed or fails: continue: the job goes on if at least MIN ranks of "
                "--elastic remain; restart: zenpsrun also starts another in its place; fail: the run fails; auto: "
                "continue with --elastic, else fail"),
    OPT(ZPS_OPT_DURATION, join_wait_ms, .name = "join-wait", .arg = "TIME", .min = 1, .max = 3600000,
        .help = "time that the ranks of an elastic job wait for more ranks (ZENPS_JOIN_WAIT)"),
    OPT(ZPS_OPT_STRING, coordinator, .name = "coordinator", .arg = "ADDRESS,...",
        .help = "use the running coordinator at HOST:PORT or unix:PATH, and its servers; several, separated by commas: "
                "the one that leads"),
    OPT(ZPS_OPT_STRING, token_key, .name = "token-key", .arg = "FILE",
        .help = "let in only ranks with a token made from a key in this file (zenpsctl token); ranks started here get "
                "one (default with -n: a key of the run's own)"),
    OPT(ZPS_OPT_STRING, provider, .name = "provider", .short_flag = 'p', .arg = "NAME",
        .help = "fabric provider of servers and ranks (default: ZENPS_PROVIDER, else auto)"),
    OPT(ZPS_OPT_ENUM, profile, .name = "profile", .arg = "NAME", .def = "none", .values = zps_profile_names,
        .env_fallback = "ZENPS_PROFILE",
        .help = "defaults of ranks and servers for one kind of network (ZENPS_PROFILE). internet: links that are slow, "
                "lose packets, or lead through NAT"),
    OPT(ZPS_OPT_BOOL, encrypt, .name = "encrypt", .internet = "yes", .env_fallback = "ZENPS_FABRIC_ENCRYPT",
        .help = "encrypt gradients (ZENPS_FABRIC_ENCRYPT), as --provider=tls does. With -n the run makes its own "
                "certificates"),
    OPT(ZPS_OPT_STRING, interface, .name = "interface", .short_flag = 'i', .arg = "NAMES",
        .help = "network interfaces for the fabric, for example eth0,ib0 or ^docker0 (default: ZENPS_INTERFACE)"),
    OPT(ZPS_OPT_STRING, job, .name = "job", .arg = "NAME",
        .help = "name of the job (default: ZENPS_JOB; else with -n and --coordinator zenpsrun-HOST-PID; else the "
                "launcher's name of the run; else zenpsrun)"),
    OPT(ZPS_OPT_UINT, port, .name = "port", .arg = "PORT", .def = "7077", .min = 1, .max = 65535,
        .help = "coordinator's port at MASTER_ADDR without -n; if all ranks are on one host, it names a Unix socket"),
    OPT(ZPS_OPT_BOOL, prefix, .name = "prefix", .def = "yes", .help = "begin every line of output with its rank"),
    OPT(ZPS_OPT_STRING, log_level, .name = "log-level", .arg = "LEVEL", .def = "warn",
        .help = "log level of the daemons"),
    OPT(ZPS_OPT_DURATION, linger_ms, .name = "linger", .arg = "TIME", .def = "2s", .max = 3600000,
        .help = "time for the other ranks, after one has failed, to report why and end by themselves; 0: none"),
    OPT(ZPS_OPT_DURATION, grace_ms, .name = "grace", .arg = "TIME", .def = "5s",
        .help = "time between the request to stop (SIGTERM) and the kill"),
    OPT(ZPS_OPT_DURATION, start_timeout_ms, .name = "start-timeout", .arg = "TIME", .def = "60s",
        .help = "time for the daemons to start"),
    OPT(ZPS_OPT_STRING, zenpsd, .name = "zenpsd", .arg = "PATH",
        .help = "path of the daemon (default: beside zenpsrun, else in PATH)"),
    {0},
};

static const struct zps_opt_table table = {
    .program = "zenpsrun",
    .summary = "run N ranks of a program with a local zenps coordinator and servers",
    .args = "-- PROGRAM [ARG...]",
    .description =
        "The ranks get the job in ZENPS_COORDINATOR, ZENPS_JOB, ZENPS_RANK, ZENPS_WORLD_SIZE, ZENPS_LOCAL_RANK and "
        "ZENPS_LOCAL_WORLD_SIZE. zenpsrun also sets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE, and MASTER_ADDR "
        "and MASTER_PORT unless they are set already. torch.distributed.init_process_group() reads these. MASTER_PORT "
        "is a free port with -n, else --port plus 1.\n"
        "zenpsrun forwards a part of a line after '\\r' or after 200 ms, so that progress bars move. When the reader "
        "of the output stops, ranks that write wait for it. Nothing else waits, and nothing is lost.\n"
        "Without -n the coordinator is at MASTER_ADDR, for ranks on other hosts. It listens at that address if it is a "
        "numeric address of its host, else at every address. It speaks TLS: on every host, set ZENPS_TLS_CA, "
        "ZENPS_TLS_CERT and ZENPS_TLS_KEY to the files of a run (zenpsctl certs init DIR --runs=NAME). On a network "
        "without strangers, ZENPS_CONTROL_INSECURE=yes allows it without TLS. If all ranks are on one host, neither is "
        "needed.\n"
        "With -n, or if all ranks are on one host, ranks reach the coordinator by a Unix socket. Only this user and "
        "root can use it. Key, token and state, and with -n the socket, are in a folder below TMPDIR, or /tmp. The "
        "folder is removed with the run. The next run removes the folder of a killed run.\n"
        "The first rank that fails stops the others, which have the time of --linger to end by themselves. zenpsrun "
        "reports that rank, and exits with its code (128 plus the number of a signal).\n"
        "When a server ends, zenpsrun reports in one line what happened to the job and what it started in place of the "
        "server. It does the same for a killed coordinator: rounds go on until another one, at the same address, has "
        "its state. The job fails if no server is left of those it began with. With --on-server-loss=fail it fails "
        "when a server or the coordinator ends. Then zenpsrun reports this, waits the time of --grace for the ranks, "
        "and stops them. It exits with 1, or with the code of a rank that failed by itself before.\n"
        "With --elastic the ranks get MIN and MAX in ZENPS_MIN_WORLD_SIZE and ZENPS_MAX_WORLD_SIZE, and ZENPS_RANK is "
        "only a wish. zenpsrun reports a lost rank in one line, and the run succeeds if all remaining ranks end with "
        "0. With fewer than MIN ranks it fails like a run that is not elastic, with the code of the rank lost last. "
        "With --on-rank-loss=restart another process takes the place of a lost rank: rank 2-2 that of rank 2. This "
        "stops after 5 in a row there have ended within 10 s of their start. If the job fails for want of servers, it "
        "goes on with the servers started in their place. When a rank has ended with 0, the job is done. Ranks lost "
        "later are not replaced, and the run fails when the others have ended.",
    .opts = opts,
    .config_size = sizeof(struct options),
    .min_args = 1,
    .max_args = UINT_MAX,
    .stop_at_first_arg = true,
    .exits = ZPS_EXITS_LOCAL,
};

/* Everything of one run. */
struct run {
  const struct options *options;
  struct zps_launch *launch;
  struct zps_daemons *daemons; /* NULL: others started them */
  struct zps_ranks *ranks;
  char **program;
  struct zps_elastic elastic;
  const char *coordinator; /* its address, or several; NULL: it is ours to find a port for */
  char own[300];           /* its address, where rank 0 starts it */
  char listen[300];        /* where it listens, then; empty: in the run's folder */
  char job[ZPS_LAUNCHER_JOB_SIZE];
  unsigned world, first_rank, local_ranks;
  struct zps_launcher launcher; /* without -n: what has started us */
  const char *master; /* where the ranks' own programs may meet; NULL: not known here, and MASTER_ADDR unset */
  unsigned master_port;
  struct zps_tls *tls;     /* NULL: none */
  struct zps_folder certs; /* of the run's own certificates; path "": it has none */
  bool starts_daemons;
  int asked_to_stop;
};

/* What the environment has already is the launcher's, or the user's, and stays. */
static const char *variable(const char *name) {
  const char *const text = getenv(name);
  return text && *text ? text : NULL;
}

static const char *provider_of(const struct run *run) {
  const char *const known = variable("ZENPS_PROVIDER");
  return run->options->provider ? run->options->provider : known ? known : "auto";
}

/* Two runs at one coordinator must not meet in one job. */
static void name_job(struct run *run) {
  const struct options *const options = run->options;
  const char *const given = options->job ? options->job : variable("ZENPS_JOB");
  char host[64] = "";
  if (given) {
    snprintf(run->job, sizeof run->job, "%s", given);
  } else if (options->ranks > 0 && options->coordinator) {
    if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    snprintf(run->job, sizeof run->job, "zenpsrun-%s-%ld", host, (long)getpid());
  } else if (options->ranks > 0 || !zps_launcher_job(run->job)) {
    snprintf(run->job, sizeof run->job, "zenpsrun");
  }
}

ZPS_PRINTF(3, 4) static void add_unless_set(struct zps_strings *env, const char *name, const char *fmt, ...) {
  char value[300];
  va_list args;
  va_start(args, fmt);
  vsnprintf(value, sizeof value, fmt, args);
  va_end(args);
  if (!variable(name)) zps_strings_add(env, "%s=%s", name, value);
}

/* What torch.distributed and programs like it look for. */
static void add_torch(const struct run *run, struct zps_strings *env, unsigned rank, unsigned index) {
  if (run->options->ranks > 0) {
    zps_strings_add(env, "RANK=%u", rank);
    zps_strings_add(env, "WORLD_SIZE=%u", run->world);
    zps_strings_add(env, "LOCAL_RANK=%u", index);
    zps_strings_add(env, "LOCAL_WORLD_SIZE=%u", run->local_ranks);
  } else {
    const struct zps_launcher *launcher = &run->launcher;
    add_unless_set(env, "RANK", "%u", rank);
    add_unless_set(env, "WORLD_SIZE", "%u", run->world);
    if (launcher->local_rank >= 0) add_unless_set(env, "LOCAL_RANK", "%u", (unsigned)launcher->local_rank);
    if (launcher->local_world > 0) add_unless_set(env, "LOCAL_WORLD_SIZE", "%u", (unsigned)launcher->local_world);
  }
  if (!run->master) return;
  add_unless_set(env, "MASTER_ADDR", "%s", run->master);
  add_unless_set(env, "MASTER_PORT", "%u", run->master_port);
}

static zps_err_t start_rank(void *ctx, unsigned index, const char *label, const struct zps_child **child_p,
                            struct zps_error *error) {
  struct run *const run = ctx;
  struct zps_strings env = {.n = 0};
  const unsigned rank = run->first_rank + index;
  zps_strings_add(&env, "ZENPS_COORDINATOR=%s", run->daemons ? zps_daemons_address(run->daemons) : run->coordinator);
  if (run->daemons && zps_daemons_token_file(run->daemons))
    zps_strings_add(&env, "ZENPS_TOKEN_FILE=%s", zps_daemons_token_file(run->daemons));
  zps_strings_add(&env, "ZENPS_JOB=%s", run->job);
  zps_strings_add(&env, "ZENPS_RANK=%u", rank);
  zps_strings_add(&env, "ZENPS_WORLD_SIZE=%u", run->world);
  zps_strings_add(&env, "ZENPS_PROVIDER=%s", provider_of(run));
  if (run->options->interface) zps_strings_add(&env, "ZENPS_INTERFACE=%s", run->options->interface);
  if (run->options->ranks > 0) { /* under torchrun these are there already */
    zps_strings_add(&env, "ZENPS_LOCAL_RANK=%u", index);
    zps_strings_add(&env, "ZENPS_LOCAL_WORLD_SIZE=%u", run->local_ranks);
  }
  if (run->elastic.max > 0) {
    zps_strings_add(&env, "ZENPS_MIN_WORLD_SIZE=%u", run->elastic.min);
    zps_strings_add(&env, "ZENPS_MAX_WORLD_SIZE=%u", run->elastic.max);
  }
  if (run->options->join_wait_ms > 0)
    zps_strings_add(&env, "ZENPS_JOIN_WAIT=%llums", (unsigned long long)run->options->join_wait_ms);
  add_torch(run, &env, rank, index);
  const zps_err_t code = env.failed ? zps_fail(error, ZPS_ERR_NOMEM, "out of memory starting rank %s", label)
                                    : zps_launch_start(run->launch, ZPS_CHILD_RANK, rank, label, run->program,
                                                       (const char *const *)env.items, child_p, error);
  zps_strings_fini(&env);
  return code;
}

/* Where rank 0 is, as the others reach it: MASTER_ADDR, or this host, if all ranks are here. NULL: not known. */
static const char *find_master(const struct zps_launcher *launcher) {
  const char *const master = variable("MASTER_ADDR");
  const bool elsewhere = launcher->local_world > 0 && launcher->local_world < launcher->world;
  return master ? master : elsewhere ? NULL : "127.0.0.1";
}

/* A coordinator that no other host reaches is for this user: ranks find its Unix socket by the address. */
static zps_err_t keep_to_user(struct run *run, struct zps_error *error) {
  struct zps_address address;
  char own[ZPS_OWN_SOCKET_MAX];
  if (zps_address_parse(run->own, &address, NULL) != ZPS_OK || !zps_address_is_loopback(&address)) return ZPS_OK;
  const zps_err_t err = run->starts_daemons
                            ? zps_own_socket_make(run->own, own, error)
                            : zps_own_socket_await(run->own, run->options->start_timeout_ms, own, error);
  if (err) return err;
  snprintf(run->own, sizeof run->own, "%s", own);
  snprintf(run->listen, sizeof run->listen, "%s", own);
  return ZPS_OK;
}

/* Finds the ranks to run: -n of our own, or the one that torchrun's environment names. */
static zps_err_t find_place(struct run *run, struct zps_error *error) {
  const struct options *options = run->options;
  struct zps_launcher *const launcher = &run->launcher;
  run->starts_daemons = options->coordinator == NULL;
  struct zps_addresses addresses;
  struct zps_error why;
  if (options->coordinator && options->token_key)
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "--token-key is for the coordinator that zenpsrun starts; for one that runs already (--coordinator) "
        "a rank's token is in the file that ZENPS_TOKEN_FILE names");
  if (options->coordinator && zps_addresses_parse(options->coordinator, &addresses, &why))
    return zps_fail(error, ZPS_ERR_INVALID, "--coordinator: %.450s", why.text);
  run->coordinator = options->coordinator;
  name_job(run);
  if (options->ranks > 0) {
    run->world = run->local_ranks = (unsigned)options->ranks;
    run->master = "127.0.0.1";
    return variable("MASTER_PORT") ? ZPS_OK : zps_tools_port_free(&run->master_port, error);
  }
  const zps_err_t err = zps_launcher_find(launcher, error);
  if (err) return err;
  if (!launcher->name)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "how many ranks? give -n N, or start zenpsrun by torchrun, mpirun or srun, as each rank's program");
  run->world = (unsigned)launcher->world;
  run->first_rank = (unsigned)launcher->rank;
  run->local_ranks = 1;
  run->master = find_master(launcher);
  run->master_port = (unsigned)(options->port < 65535 ? options->port + 1 : options->port - 1);
  if (options->coordinator) return ZPS_OK;
  if (!run->master)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "%llu of %llu ranks are on this host, so others must be told where rank 0 starts the coordinator: "
                    "set MASTER_ADDR to its host, or give --coordinator",
                    (unsigned long long)launcher->local_world, (unsigned long long)launcher->world);
  run->starts_daemons = launcher->rank == 0;
  /* No other host is to reach it where all ranks are on this one, which torchrun may have named by its address. */
  const bool are_here = launcher->local_world == launcher->world,
             are_elsewhere = launcher->local_world > 0 && !are_here;
  const char *const at = are_here ? "127.0.0.1" : run->master;
  zps_err_t code = are_elsewhere ? zps_master_check(at, error) : ZPS_OK;
  if (code == ZPS_OK && run->starts_daemons)
    code = zps_master_listen(at, (unsigned)options->port, are_elsewhere, run->listen, sizeof run->listen, error);
  if (code != ZPS_OK) return code;
  snprintf(run->own, sizeof run->own, strchr(at, ':') ? "[%s]:%llu" : "%s:%llu", at, (unsigned long long)options->port);
  run->coordinator = run->own;
  return keep_to_user(run, error);
}

static zps_err_t find_elastic(struct run *run, struct zps_error *error) {
  const struct zps_elastic_options options = {.range = run->options->elastic,
                                              .ranks = run->options->ranks,
                                              .join_wait_ms = run->options->join_wait_ms,
                                              .loss = (enum zps_rank_loss)run->options->on_rank_loss};
  return zps_elastic_find(&options, &run->elastic, error);
}

static zps_err_t start_ranks(struct run *run, struct zps_error *error) {
  const struct zps_ranks_config config = {.launch = run->launch,
                                          .n = run->local_ranks,
                                          .first = run->first_rank,
                                          .elastic = run->elastic,
                                          .start = start_rank,
                                          .ctx = run};
  return zps_ranks_start(&config, &run->ranks, error);
}

static zps_err_t start_daemons(struct run *run, struct zps_error *error) {
  const struct options *options = run->options;
  if (!run->starts_daemons) return ZPS_OK;
  const struct zps_daemons_config config = {
      .zenpsd = options->zenpsd,
      .listen = run->listen[0] ? run->listen : NULL,
      .reach = run->coordinator,
      .provider = provider_of(run),
      .interface = options->interface ? options->interface : variable("ZENPS_INTERFACE"),
      .token_key = options->token_key,
      .tls = run->tls,
      .log_level = options->log_level,
      .n_servers = (unsigned)options->servers,
      .start_timeout_ms = options->start_timeout_ms,
      .goes_on = options->on_server_loss == ON_LOSS_CONTINUE,
      .elastic = run->elastic.max > 0};
  return zps_daemons_start(run->launch, &config, &run->daemons, &run->asked_to_stop, error);
}

/* Ranks that are left mostly fail because of the first failure, and name the rank that they miss, and the step. */
static void linger(struct run *run) {
  const uint64_t deadline_ns = zps_clock_ns() + run->options->linger_ms * ZPS_NS_PER_MS;
  while (zps_launch_running(run->launch, ZPS_CHILD_RANK) > 0 && !run->asked_to_stop) {
    const uint64_t now_ns = zps_clock_ns();
    if (now_ns >= deadline_ns) return;
    run->asked_to_stop = zps_launch_pump(run->launch, (int)((deadline_ns - now_ns) / ZPS_NS_PER_MS) + 1);
  }
}

static void say_lost(const struct run *run, zps_err_t code, const struct zps_error *error) {
  zps_launch_say(run->launch, "zenpsrun: %s: %s\n", zps_err_name(code), error->text);
}

/* Waits until every rank has ended, one is lost that the others cannot go on without, a daemon has failed, or a signal
 * asks for a stop; then stops what is left. */
static int supervise(struct run *run) {
  struct zps_error error;
  const struct zps_child *failed;
  bool over = false;
  zps_err_t lost = ZPS_OK;
  while (zps_launch_running(run->launch, ZPS_CHILD_RANK) > 0 && !over && lost == ZPS_OK && !run->asked_to_stop) {
    run->asked_to_stop = zps_launch_pump(run->launch, -1);
    over = zps_ranks_check(run->ranks);
    lost = zps_daemons_check(run->daemons, &error);
  }
  failed = zps_ranks_failure(run->ranks);
  if (lost != ZPS_OK) say_lost(run, lost, &error);
  if (lost != ZPS_OK && !failed) {
    /* The ranks learn of it themselves, with a better error than ours. */
    zps_launch_stop(run->launch, ZPS_CHILD_RANK, (unsigned)run->options->grace_ms);
    return EXIT_FAILURE;
  }
  if (failed) linger(run);
  if (failed || run->asked_to_stop) {
    zps_launch_signal(run->launch, ZPS_CHILD_RANK, SIGTERM);
    zps_launch_stop(run->launch, ZPS_CHILD_RANK, (unsigned)run->options->grace_ms);
  }
  if (failed) {
    if (lost == ZPS_OK && (lost = zps_daemons_await(run->daemons, &error)) != ZPS_OK) say_lost(run, lost, &error);
    failed = zps_ranks_failure(run->ranks); /* more ends are known now */
    zps_ranks_tell_failure(run->ranks, failed);
    return WIFSIGNALED(failed->status) ? 128 + WTERMSIG(failed->status) : WEXITSTATUS(failed->status);
  }
  if (run->asked_to_stop) {
    zps_launch_say(run->launch, "zenpsrun: stopped by signal %d (%s)\n", run->asked_to_stop,
                   strsignal(run->asked_to_stop));
    return 128 + run->asked_to_stop;
  }
  return EXIT_SUCCESS;
}

static void clean_up(struct run *run) {
  for (int kind = ZPS_CHILD_SERVER; kind <= ZPS_CHILD_COORDINATOR; kind++) {
    zps_launch_signal(run->launch, (enum zps_child_kind)kind, SIGTERM);
    zps_launch_stop(run->launch, (enum zps_child_kind)kind, (unsigned)run->options->grace_ms);
  }
  zps_launch_destroy(run->launch);
  free(run->ranks);
  zps_daemons_destroy(run->daemons);
  zps_tls_unref(run->tls);
}

/* What nobody said is left to the processes themselves: a file or a program of theirs may say it. */
static bool hand_on(const char *variable, const char *value, bool is_said) {
  return (!is_said && !getenv(variable)) || setenv(variable, value, 1) == 0;
}

/* Certificates of the run's own are for processes that it starts itself. */
static zps_err_t secure(struct run *run, struct zps_error *error) {
  const char *const provider = provider_of(run), *const plain =
                                                     strncmp(provider, "fault+", 6) == 0 ? provider + 6 : provider;
  const bool encrypts = run->options->encrypt || strcmp(plain, "tls") == 0;
  const bool has_profile = run->options->profile != 0;
  if (!hand_on("ZENPS_PROFILE", zps_profile_names[run->options->profile], has_profile) ||
      !hand_on("ZENPS_FABRIC_ENCRYPT", run->options->encrypt ? "yes" : "no", has_profile || run->options->encrypt))
    return zps_fail(error, ZPS_ERR_NOMEM, "no memory for the environment");
  if (run->options->coordinator) return ZPS_OK;
  if (!encrypts || run->options->ranks == 0) return zps_secure_run(run->coordinator, encrypts, &run->tls, error);
  const zps_err_t err = zps_folder_make(&run->certs, error);
  return err ? err : zps_secure_own(run->certs.path, &run->tls, error);
}

int main(int argc, char **argv) {
  struct options options;
  struct zps_config_rest rest;
  struct zps_error error;
  struct run run = {.options = &options};
  zps_descriptors_fill();
  if (zps_config_load(&table, argc, argv, NULL, &options, &rest, &error) != ZPS_OK) {
    fprintf(stderr, "zenpsrun: %s\n", error.text);
    return ZPS_EXIT_USAGE;
  }
  if (rest.exit_now) return ZPS_EXIT_OK;
  int status = ZPS_EXIT_FAILED;
  zps_descriptors_raise(); /* for the ranks, too: each may have a connection to each of the others */
  run.program = rest.argv;
  zps_err_t code = find_elastic(&run, &error);
  if (code == ZPS_OK) code = find_place(&run, &error);
  if (code == ZPS_OK) code = secure(&run, &error);
  if (code == ZPS_OK) code = zps_launch_create(options.prefix, &run.launch, &error);
  if (code == ZPS_OK) {
    code = start_daemons(&run, &error);
    if (code == ZPS_OK) code = start_ranks(&run, &error);
    if (code == ZPS_OK) status = supervise(&run);
    clean_up(&run);
  }
  if (code != ZPS_OK) {
    fprintf(stderr, "zenpsrun: %s\n", error.text);
    status = code == ZPS_ERR_INVALID ? ZPS_EXIT_USAGE : ZPS_EXIT_FAILED;
  }
  zps_folder_remove(&run.certs);
  zps_config_fini(&table, &options);
  return status;
}
