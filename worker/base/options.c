#include "worker/base/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/config.h"
#include "common/base/launcher.h"
#include "common/base/machine.h"
#include "common/base/text.h"
#include "common/codec/values.h"

#define NAME_MAX_BYTES 127u /* of a job's, a host's and a rack's name, as the coordinator takes them */
#define WORLD_MAX (int)ZPS_LAUNCHER_WORLD_MAX

#define DEVICE_MAX 1023
#define SERVER_PLACES_MAX 1024 /* the coordinator's limit */
#define DAY_MS (24ull * 3600 * 1000)
#define REFUSED_TIMEOUT_MS 30000u

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace", NULL};

static const char *const codec_names[] = {"auto", "paper", "coo", NULL};
static const char *const values_names[] = {ZPS_VALUES_NAME_LIST, NULL};

#define OPT(type, member, ...) ZPS_OPT_ROW(struct zps_worker_options, type, member, __VA_ARGS__)
static const struct zps_opt opts[] = {
    OPT(ZPS_OPT_STRING, coordinator, .name = "coordinator", .def = "127.0.0.1:7077", .arg = "ADDRESS,...",
        .help = "Address of the coordinator; of several, with commas in between, the one that leads is taken."),
    OPT(ZPS_OPT_STRING, job, .name = "job", .def = "default", .arg = "NAME",
        .help = "Name of the training run; else as the launcher names it."),
    OPT(ZPS_OPT_ENUM, profile, .name = "profile", .def = "none", .arg = "NAME", .values = zps_profile_names,
        .help = "Defaults for one kind of network."),
    OPT(ZPS_OPT_UINT, rank, .name = "rank", .def = "0", .arg = "N", .max = WORLD_MAX - 1,
        .help = "Rank of this process; else as the launcher says."),
    OPT(ZPS_OPT_UINT, world, .name = "world-size", .def = "1", .arg = "N", .min = 1, .max = WORLD_MAX,
        .help = "Number of ranks; else as the launcher says."),
    OPT(ZPS_OPT_UINT, min_world, .name = "min-world-size", .arg = "N", .max = WORLD_MAX,
        .help = "Makes the job elastic: the number of ranks below which it does not go on; 0: as max-world-size says."),
    OPT(ZPS_OPT_UINT, max_world, .name = "max-world-size", .arg = "N", .max = WORLD_MAX,
        .help = "Makes the job elastic: the number of ranks beyond which none is let in; 0: as min-world-size says."),
    OPT(ZPS_OPT_DURATION, join_wait_ms, .name = "join-wait", .def = "5s", .arg = "TIME",
        .help = "How long the ranks of an elastic job that are there wait for more."),
    OPT(ZPS_OPT_UINT, server_places, .name = "server-places", .arg = "N", .max = SERVER_PLACES_MAX,
        .help = "How many servers the job has room for, at least; 0: as the coordinator's job.server_places says."),
    OPT(ZPS_OPT_UINT, local_world, .name = "local-world-size", .def = "1", .arg = "N", .min = 1, .max = WORLD_MAX,
        .help = "Number of ranks on this host; else as the launcher says."),
    OPT(ZPS_OPT_UINT, local_rank, .name = "local-rank", .def = "0", .arg = "N", .max = WORLD_MAX - 1,
        .help = "Number of this rank among those of its host, from 0; else as the launcher says. Ranks of a host take "
                "different network cards by it."),
    OPT(ZPS_OPT_STRING, provider, .name = "provider", .def = "auto", .arg = "NAME", .help = "Fabric provider."),
    OPT(ZPS_OPT_STRING, interface, .name = "interface", .arg = "LIST",
        .help =
            "Network interfaces or cards to use: the ranks of a host take them in this order. With ^ in front: not to "
            "use. Without it and without a subnet, the interface on the way to the coordinator comes first, and ranks "
            "share out equal cards."),
    OPT(ZPS_OPT_STRING, subnet, .name = "subnet", .arg = "LIST",
        .help = "Networks that the fabric address must be in."),
    OPT(ZPS_OPT_UINT, rails, .name = "fabric.rails", .def = "1", .arg = "N", .min = 1, .max = 4,
        .help = "Network cards that gradients come over at once, where peers have as many."),
    OPT(ZPS_OPT_DURATION, keepalive_ms, .name = "fabric.keepalive", .def = "2s", .internet = "10s", .arg = "TIME",
        .max = 3600000,
        .help =
            "A TCP connection for gradients that carries nothing for so long carries an empty packet: no firewall "
            "forgets it, and a connection whose other end is gone is found, which keeps its peer out until then; 0: "
            "none does. With several cards (fabric.rails) it is 2 s at most."),
    OPT(ZPS_OPT_BOOL, encrypt, .name = "fabric.encrypt", .internet = "yes",
        .help = "Encrypt gradients: provider auto takes tls, which needs the three files of TLS; others are refused."),
    OPT(ZPS_OPT_BOOL, bbr, .name = "fabric.bbr", .internet = "yes",
        .help =
            "TCP's congestion control bbr for gradients, with provider tls, where the kernel has it. Rounds over long "
            "links that lose packets are several times faster."),
    OPT(ZPS_OPT_UINT, connections, .name = "fabric.connections", .def = "1", .internet = "8", .arg = "N", .min = 1,
        .max = 32,
        .help =
            "TCP connections to each server, and to each rank that this one connects to, with provider tls. Gradients "
            "and sums come over all of them, so that a lost packet holds up one part. A server takes as many."),
    OPT(ZPS_OPT_STRING, auth_key_file, .name = "fabric.auth_key", .arg = "FILE",
        .help =
            "File with the fabric's authorization key, in hexadecimal digits; for cxi and gni, where no launcher gives "
            "the process a key."),
    OPT(ZPS_OPT_STRING, fault, .name = "fabric.fault", .arg = "RULES",
        .help = "For tests, with provider fault+NAME: faults to inject."),
    OPT(ZPS_OPT_DURATION, join_timeout_ms, .name = "join-timeout", .def = "60s", .internet = "10m", .arg = "TIME",
        .help = "How long to wait for all ranks and servers."),
    OPT(ZPS_OPT_DURATION, refused_timeout_ms, .name = "refused-timeout", .arg = "TIME",
        .help =
            "How long to try an address of this host at which no coordinator listens; 0: join-timeout if it was set, "
            "else 30s."),
    OPT(ZPS_OPT_DURATION, round_timeout_ms, .name = "round-timeout", .def = "60s", .internet = "10m", .arg = "TIME",
        .help = "Deadline of every operation."),
    OPT(ZPS_OPT_DURATION, telemetry_ms, .name = "telemetry", .def = "5s", .arg = "TIME",
        .help = "How often the coordinator is told of this rank's rounds, for zenpsctl stats; 0: never."),
    OPT(ZPS_OPT_UINT, threads, .name = "threads", .arg = "N", .max = 1024,
        .help = "Threads that encode and decode; 0: cores that may be used, divided by ranks on this host."),
    OPT(ZPS_OPT_BYTES, memory_limit_bytes, .name = "memory-limit", .arg = "BYTES",
        .help = "Limit of registered buffers; 0: half of the memory that may be used, divided by ranks on this host."),
    OPT(ZPS_OPT_BYTES, replay_memory_bytes, .name = "replay-memory", .def = "256M", .arg = "BYTES",
        .help =
            "Registered memory in which pushes are kept, to push them once more when a server is lost; 0: none is."),
    OPT(ZPS_OPT_BOOL, shared_memory, .name = "shared-memory", .def = "yes",
        .help = "Whether ranks of one host hand each other what is large in shared memory; the same on all of them."),
    OPT(ZPS_OPT_ENUM, codec, .name = "codec", .def = "auto", .arg = "CODEC", .values = codec_names,
        .help = "How row numbers are coded: as small as can be, as in the paper, or COO both ways."),
    OPT(ZPS_OPT_ENUM, values, .name = "values", .def = "raw", .arg = "CODEC", .values = values_names,
        .help = "What values travel as: as they are, or rounded to 16 bits or to QSGD levels."),
    OPT(ZPS_OPT_STRING, scheme, .name = "scheme", .def = "balanced", .arg = "NAME",
        .help = "How rounds are carried out: balanced or another scheme over servers, one between ranks, auto or "
                "auto:any."),
    OPT(ZPS_OPT_STRING, host, .name = "host", .arg = "NAME",
        .help = "Name of the host that this rank is on, for schemes that follow the topology; its own by default."),
    OPT(ZPS_OPT_STRING, rack, .name = "rack", .arg = "NAME",
        .help = "Label that ranks near each other share, for schemes that follow the topology."),
    OPT(ZPS_OPT_STRING, token_file, .name = "token-file", .arg = "FILE",
        .help = "File with the token that lets this rank into the job, where the coordinator asks for one."),
    OPT(ZPS_OPT_STRING, tls_ca, .name = "tls.ca", .arg = "FILE",
        .help = "Certificates of the authorities that make the cluster's: with the next two TLS is spoken."),
    OPT(ZPS_OPT_STRING, tls_cert, .name = "tls.cert", .arg = "FILE", .help = "This rank's certificate, of a worker."),
    OPT(ZPS_OPT_STRING, tls_key, .name = "tls.key", .arg = "FILE",
        .help = "The private key of that certificate, in a file of mode 0640 at most."),
    OPT(ZPS_OPT_STRING, tls_crl, .name = "tls.crl", .arg = "FILE",
        .help = "Revocation lists of the authorities: a coordinator whose certificate is in one is refused."),
    OPT(ZPS_OPT_STRING, device_name, .name = "device", .arg = "N",
        .help = "Number of the GPU that gradients are on; none: it is opened with the first gradient in its memory."),
    OPT(ZPS_OPT_STRING, device_library, .name = "device.library", .arg = "PATH",
        .help = "Library that drives GPUs, instead of libzenps_cuda.so.0."),
    OPT(ZPS_OPT_ENUM, log_level, .name = "log-level", .def = "warn", .arg = "LEVEL", .values = level_names,
        .help = "Least important level that is logged."),
    {0},
};

static const struct zps_opt_table table = {
    .program = "libzenps",
    .summary = "client library",
    .opts = opts,
    .config_size = sizeof(struct zps_worker_options),
};

void zenps_options_init(zenps_options_t *options, size_t struct_size) {
  memset(options, 0, struct_size);
  options->struct_size = struct_size;
  if (struct_size >= offsetof(zenps_options_t, rank) + sizeof options->rank) options->rank = -1;
  if (struct_size >= offsetof(zenps_options_t, device) + sizeof options->device) options->device = -1;
}

zps_err_t zps_worker_struct_copy(void *to, size_t to_size, const void *from, const char *what,
                                 struct zps_error *error) {
  size_t from_size;
  memcpy(&from_size, from, sizeof from_size);
  if (from_size < 2 * sizeof from_size || from_size > 4096) {
    return zps_fail(error, ZPS_ERR_INVALID, "%s: struct_size is %zu; initialise the struct with its ZENPS_*_INIT()",
                    what, from_size);
  }
  const unsigned char *bytes = from;
  for (size_t i = to_size; i < from_size; i++) {
    if (bytes[i] != 0) {
      return zps_fail(error, ZPS_ERR_UNSUPPORTED, "%s: a member is set that this library (%s) does not know", what,
                      zenps_version());
    }
  }
  memcpy(to, from, from_size < to_size ? from_size : to_size);
  memcpy(to, &to_size, sizeof to_size);
  return ZPS_OK;
}

static zps_err_t replace(char **string_p, const char *given) {
  if (!given || !*given) return ZPS_OK;
  char *copy = strdup(given);
  if (!copy) return ZPS_ERR_NOMEM;
  free(*string_p);
  *string_p = copy;
  return ZPS_OK;
}

static bool is_set(const char *variable) {
  const char *const text = getenv(variable);
  return text && *text;
}

static zps_err_t apply(struct zps_worker_options *options, const zenps_options_t *given, struct zps_error *error) {
  const struct {
    char **to;
    const char *from;
  } strings[] = {{&options->coordinator, given->coordinator},
                 {&options->job, given->job},
                 {&options->provider, given->provider},
                 {&options->interface, given->interface},
                 {&options->subnet, given->subnet}};
  for (unsigned i = 0; i < sizeof strings / sizeof strings[0]; i++) {
    if (replace(strings[i].to, strings[i].from) != ZPS_OK) return zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
  }
  if (given->rank < -1) return zps_fail(error, ZPS_ERR_INVALID, "rank is %d; it must be 0 or more, or -1", given->rank);
  if (given->world < 0 || given->world > WORLD_MAX) {
    return zps_fail(error, ZPS_ERR_INVALID, "world is %d; it must be 1 to %d, or 0", given->world, WORLD_MAX);
  }
  if (given->threads < 0 || given->threads > 1024) {
    return zps_fail(error, ZPS_ERR_INVALID, "threads is %d; it must be 1 to 1024, or 0", given->threads);
  }
  if (given->min_world < 0 || given->min_world > WORLD_MAX || given->max_world < 0 || given->max_world > WORLD_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "min_world is %d, max_world %d; both must be 1 to %d, or 0",
                    given->min_world, given->max_world, WORLD_MAX);
  if (given->server_places < 0 || given->server_places > SERVER_PLACES_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "server_places is %d; it must be 1 to %d, or 0", given->server_places,
                    SERVER_PLACES_MAX);
  if (given->server_places > 0) options->server_places = (uint64_t)given->server_places;
  if (given->rank >= 0) options->rank = (uint64_t)given->rank;
  if (given->min_world > 0) options->min_world = (uint64_t)given->min_world;
  if (given->max_world > 0) options->max_world = (uint64_t)given->max_world;
  if (given->join_wait_ms) options->join_wait_ms = given->join_wait_ms;
  if (given->world > 0) options->world = (uint64_t)given->world;
  if (given->threads > 0) options->threads = (uint64_t)given->threads;
  if (given->join_timeout_ms) options->join_timeout_ms = given->join_timeout_ms;
  if (given->round_timeout_ms) options->round_timeout_ms = given->round_timeout_ms;
  if (given->refused_timeout_ms) options->refused_timeout_ms = given->refused_timeout_ms;
  if (options->refused_timeout_ms == 0)
    options->refused_timeout_ms =
        given->join_timeout_ms || is_set("ZENPS_JOIN_TIMEOUT") ? options->join_timeout_ms : REFUSED_TIMEOUT_MS;
  options->log = given->log;
  options->log_ctx = given->log_ctx;
  return ZPS_OK;
}

/* The launcher's variables fill in what neither the caller nor zenps's own variables say. They are not read otherwise,
 * so nothing that they hold is an error. */
static zps_err_t find_place(struct zps_worker_options *options, const zenps_options_t *given, struct zps_error *error) {
  const bool has_rank = given->rank >= 0 || is_set("ZENPS_RANK");
  const bool has_world = given->world > 0 || is_set("ZENPS_WORLD_SIZE");
  struct zps_launcher launcher;
  struct zps_error why;
  const zps_err_t err = zps_launcher_find(&launcher, &why);
  if (err != ZPS_OK && !has_rank && !has_world) return zps_fail(error, err, "%s", why.text);
  if (err == ZPS_OK && launcher.name) {
    if (!has_rank) options->rank = launcher.rank;
    if (!has_world) options->world = launcher.world;
    if (!is_set("ZENPS_LOCAL_WORLD_SIZE") && launcher.local_world > 0) options->local_world = launcher.local_world;
    if (!is_set("ZENPS_LOCAL_RANK") && launcher.local_rank >= 0) options->local_rank = (uint64_t)launcher.local_rank;
  }
  char job[ZPS_LAUNCHER_JOB_SIZE];
  if (is_set("ZENPS_JOB") || (given->job && *given->job) || !zps_launcher_job(job)) return ZPS_OK;
  return replace(&options->job, job) == ZPS_OK ? ZPS_OK : zps_fail(error, ZPS_ERR_NOMEM, "out of memory");
}

static zps_err_t apply_device(struct zps_worker_options *options, int given, struct zps_error *error) {
  options->device = given;
  if (given < -1 || given > DEVICE_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "device is %d; it must be 0 to %d, or -1", given, DEVICE_MAX);
  if (given >= 0 || !options->device_name || !*options->device_name || strcmp(options->device_name, "none") == 0)
    return ZPS_OK;
  char *end;
  const unsigned long number = strtoul(options->device_name, &end, 10);
  if (*end != '\0' || options->device_name[0] < '0' || options->device_name[0] > '9' || number > DEVICE_MAX)
    return zps_fail(error, ZPS_ERR_INVALID, "ZENPS_DEVICE is '%.40s'; it must be the number of a GPU, or none",
                    options->device_name);
  options->device = (int)number;
  return ZPS_OK;
}

/* Where a time came from. */
static const char *named(uint64_t given_ms, const char *member, const char *variable) {
  return given_ms ? member : variable;
}

static zps_err_t check_elastic(struct zps_worker_options *options, const zenps_options_t *given,
                               struct zps_error *error) {
  if (options->min_world == 0 && options->max_world == 0) return ZPS_OK;
  if (options->min_world == 0) options->min_world = 1;
  if (options->max_world == 0)
    options->max_world = options->world > options->min_world ? options->world : options->min_world;
  if (options->min_world > options->max_world)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "an elastic job of at least %llu and at most %llu ranks: min_world (ZENPS_MIN_WORLD_SIZE) is more "
                    "than max_world (ZENPS_MAX_WORLD_SIZE)",
                    (unsigned long long)options->min_world, (unsigned long long)options->max_world);
  if (options->join_wait_ms > DAY_MS)
    return zps_fail(error, ZPS_ERR_INVALID, "%s is %llu ms: it must be at most 24 h",
                    named(given->join_wait_ms, "join_wait_ms", "ZENPS_JOIN_WAIT"),
                    (unsigned long long)options->join_wait_ms);
  return ZPS_OK;
}

/* Checks that concern several options at once. */
static zps_err_t check(const struct zps_worker_options *options, const zenps_options_t *given,
                       struct zps_error *error) {
  const uint64_t day_ms = DAY_MS;
  if (options->max_world == 0 && options->rank >= options->world) {
    return zps_fail(error, ZPS_ERR_INVALID,
                    "rank %llu of a world of %llu: ranks are 0 to world - 1 (ZENPS_RANK, ZENPS_WORLD_SIZE)",
                    (unsigned long long)options->rank, (unsigned long long)options->world);
  }
  zps_err_t err = zps_text_check_name("ZENPS_JOB: job", options->job ? options->job : "", NAME_MAX_BYTES, error);
  if (err == ZPS_OK && options->host && options->host[0])
    err = zps_text_check_name("ZENPS_HOST: host", options->host, NAME_MAX_BYTES, error);
  if (err == ZPS_OK && options->rack && options->rack[0])
    err = zps_text_check_name("ZENPS_RACK: rack", options->rack, NAME_MAX_BYTES, error);
  if (err != ZPS_OK) return err;
  if (options->join_timeout_ms < 1 || options->join_timeout_ms > day_ms || options->round_timeout_ms < 1 ||
      options->round_timeout_ms > day_ms) {
    return zps_fail(error, ZPS_ERR_INVALID, "%s is %llu ms and %s %llu ms: both must be 1 ms to 24 h",
                    named(given->join_timeout_ms, "join_timeout_ms", "ZENPS_JOIN_TIMEOUT"),
                    (unsigned long long)options->join_timeout_ms,
                    named(given->round_timeout_ms, "round_timeout_ms", "ZENPS_ROUND_TIMEOUT"),
                    (unsigned long long)options->round_timeout_ms);
  }
  return ZPS_OK;
}

/* Ranks of a host share its memory: each may register its part of one half. Where that is little, a rank may have 1
 * GiB, as ranks seldom take all that they may; but never more than half of what there is. */
static uint64_t default_memory_limit(uint64_t local_world) {
  const uint64_t bytes = zps_machine_memory_bytes(), half = bytes / 2, share = half / local_world, least = 1ull << 30;
  if (bytes == 0 || share >= least) return bytes == 0 ? least : share;
  return half < least ? half : least;
}

static void fill_defaults(struct zps_worker_options *options) {
  if (options->threads == 0) options->threads = zps_machine_cores_each(options->local_world);
  if (options->memory_limit_bytes == 0) options->memory_limit_bytes = default_memory_limit(options->local_world);
}

zps_err_t zps_worker_options_load(const zenps_options_t *given, struct zps_worker_options *options,
                                  struct zps_error *error) {
  zenps_options_t copy;
  zenps_options_init(&copy, sizeof copy);
  zps_err_t err = ZPS_OK;
  if (given) err = zps_worker_struct_copy(&copy, sizeof copy, given, "zenps_options_t", error);
  if (err != ZPS_OK) return err;
  err = zps_config_load(&table, 0, NULL, NULL, options, NULL, error);
  if (err != ZPS_OK) return err;
  err = find_place(options, &copy, error);
  if (err == ZPS_OK) err = apply(options, &copy, error);
  if (err == ZPS_OK) err = apply_device(options, copy.device, error);
  if (err == ZPS_OK) err = check_elastic(options, &copy, error);
  if (err == ZPS_OK) err = check(options, &copy, error);
  if (err != ZPS_OK) {
    zps_worker_options_fini(options);
    return err;
  }
  fill_defaults(options);
  return ZPS_OK;
}

bool zps_worker_options_profile(const struct zps_worker_options *options, char *text, size_t size) {
  return zps_config_profile_text(&table, options, text, size);
}

void zps_worker_options_move(struct zps_worker_options *to, struct zps_worker_options *from) {
  *to = *from;
  *from = (struct zps_worker_options){.device = -1};
}

void zps_worker_options_fini(struct zps_worker_options *options) {
  zps_config_fini(&table, options);
}
