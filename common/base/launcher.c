#include "common/base/launcher.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"

static const struct kind {
  const char *name, *rank, *world, *local_rank, *local_world; /* the last one may be NULL */
  const char *within; /* believed where this one is there as well; NULL: always */
} kinds[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_STEP_ID"},
};

#define OTHERWISE "start it by torchrun, mpirun or srun, or set ZENPS_RANK and ZENPS_WORLD_SIZE"

static const char *variable(const char *name) {
  const char *const text = name ? getenv(name) : NULL;
  return text && *text ? text : NULL;
}

/* Decimal digits alone. */
static bool parse(const char *text, uint64_t *value_p) {
  char *end;
  if (!text || !isdigit((unsigned char)*text)) return false;
  errno = 0;
  *value_p = strtoull(text, &end, 10);
  return errno == 0 && *end == '\0';
}

/* Slurm's list of how many tasks each node has, "2(x3),1": the entry of this node. */
static uint64_t tasks_of_node(const char *list, uint64_t node) {
  while (list && isdigit((unsigned char)*list)) {
    char *end;
    const uint64_t tasks = strtoull(list, &end, 10);
    uint64_t times = 1;
    if (strncmp(end, "(x", 2) == 0) {
      times = strtoull(end + 2, &end, 10);
      if (*end++ != ')') return 0;
    }
    if (node < times) return tasks;
    node -= times;
    list = *end == ',' ? end + 1 : NULL;
  }
  return 0;
}

/* The number only spreads threads and memory: one that makes no sense is left out. */
static uint64_t local_world_of(const struct kind *kind, uint64_t world) {
  uint64_t local = 0, node;
  if (kind->local_world) {
    if (!parse(variable(kind->local_world), &local)) local = 0;
  } else if (parse(variable("SLURM_NODEID"), &node)) {
    local = tasks_of_node(variable("SLURM_STEP_TASKS_PER_NODE"), node);
  }
  return local <= world ? local : 0;
}

/* Left out likewise. */
static int64_t local_rank_of(const struct kind *kind, uint64_t world) {
  uint64_t local;
  return parse(variable(kind->local_rank), &local) && local < world ? (int64_t)local : -1;
}

static zps_err_t read_kind(const struct kind *kind, struct zps_launcher *launcher, struct zps_error *error) {
  const char *const rank = variable(kind->rank), *const world = variable(kind->world);
  if (!rank && strcmp(world, "1") == 0) return ZPS_OK; /* there is but one */
  if (!rank || !world)
    return zps_fail(error, ZPS_ERR_INVALID,
                    "the environment has %s=%.40s, but no %s: which of how many ranks is this? %s sets both; or set "
                    "ZENPS_RANK and ZENPS_WORLD_SIZE",
                    rank ? kind->rank : kind->world, rank ? rank : world, rank ? kind->world : kind->rank, kind->name);
  if (!parse(rank, &launcher->rank) || !parse(world, &launcher->world) || launcher->world < 1 ||
      launcher->world > ZPS_LAUNCHER_WORLD_MAX || launcher->rank >= launcher->world)
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "the environment has %s=%.40s and %s=%.40s: must be whole numbers, the first one below the second one, "
        "which is 1 to %u",
        kind->rank, rank, kind->world, world, ZPS_LAUNCHER_WORLD_MAX);
  launcher->name = kind->name;
  launcher->local_world = local_world_of(kind, launcher->world);
  launcher->local_rank = local_rank_of(kind, launcher->world);
  return ZPS_OK;
}

/* Is the process alone, or one of several without a number? Then each would be rank 0 of a world of its own, and train
 * by itself. */
static zps_err_t check_alone(struct zps_error *error) {
  uint64_t tasks;
  if (parse(variable("SLURM_NTASKS"), &tasks) && tasks > 1)
    return zps_fail(
        error, ZPS_ERR_INVALID,
        "Slurm has %llu tasks for this job (SLURM_NTASKS), but this process is in no step of srun's: " OTHERWISE
        " (0 and 1, if it is to be alone)",
        (unsigned long long)tasks);
  if (variable("PMIX_RANK"))
    return zps_fail(error, ZPS_ERR_INVALID,
                    "PMIx says that this is rank %.40s (PMIX_RANK), but nothing says of how many: " OTHERWISE,
                    variable("PMIX_RANK"));
  return ZPS_OK;
}

zps_err_t zps_launcher_find(struct zps_launcher *launcher, struct zps_error *error) {
  const struct kind *half = NULL;
  *launcher = (struct zps_launcher){.world = 1, .local_rank = -1};
  for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    const bool rank = variable(kinds[i].rank), world = variable(kinds[i].world);
    if (kinds[i].within && !variable(kinds[i].within)) continue;
    if (rank && world) return read_kind(&kinds[i], launcher, error);
    if ((rank || world) && !half) half = &kinds[i];
  }
  return half ? read_kind(half, launcher, error) : check_alone(error);
}

static bool is_loopback(const char *host) {
  return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static const char *this_host(char *buffer, size_t size) {
  const char *const given = variable("ZENPS_HOST");
  if (given) return given;
  if (gethostname(buffer, size) != 0) return "";
  buffer[size - 1] = '\0';
  return buffer;
}

/* A job's name has no more than ZPS_LAUNCHER_JOB_MAX bytes: the end of a longer one becomes a hash of all of it. */
static void shorten(char *name) {
  uint64_t hash = 0;
  if (strlen(name) <= ZPS_LAUNCHER_JOB_MAX) return;
  for (const char *at = name; *at; at++) hash = zps_hash_mix64(hash ^ (unsigned char)*at);
  snprintf(name + ZPS_LAUNCHER_JOB_MAX - 17, 18, "-%016llx", (unsigned long long)hash);
}

bool zps_launcher_job(char name[ZPS_LAUNCHER_JOB_SIZE]) {
  char buffer[256];
  const char *const run = variable("TORCHELASTIC_RUN_ID"), *const host = variable("MASTER_ADDR"),
                    *const port = variable("MASTER_PORT"), *const pmix = variable("PMIX_NAMESPACE"),
                    *const slurm = variable("SLURM_JOB_ID"), *const step = variable("SLURM_STEP_ID"),
                    *const set = variable("JOBSET_NAME");
  if (run && strcmp(run, "none") != 0) {
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "%s", run);
  } else if (host && port && is_loopback(host)) { /* Another host may have a run with the same address. */
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "%s:%s", this_host(buffer, sizeof buffer), port);
  } else if (host && port) {
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "%s:%s", host, port);
  } else if (pmix) {
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "%s", pmix);
  } else if (slurm && step) {
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "slurm-%s.%s", slurm, step);
  } else if (set) {
    snprintf(name, ZPS_LAUNCHER_JOB_SIZE, "%s", set);
  } else {
    return false;
  }
  shorten(name);
  return true;
}
