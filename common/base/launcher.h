/*
 * The launcher that started this process, and among how many: variables that torchrun, mpirun and srun leave in the
 * environment.
 *
 *   torchrun, and launchers that do the same   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
 *   Open MPI's mpirun                       OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
 *   MPICH's and Intel MPI's mpirun          PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
 *   srun                                    SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID,
 *                                           SLURM_STEP_TASKS_PER_NODE
 *
 * The first one whose rank and size are both there counts, as a whole: mpirun under Slurm leaves both its own variables
 * and those of the step that its daemons run in. A batch script has SLURM_PROCID, too, without being one of several
 * tasks: srun's are believed inside a step (SLURM_STEP_ID). A variable that is empty counts as unset.
 */
#ifndef ZPS_BASE_LAUNCHER_H
#define ZPS_BASE_LAUNCHER_H

#include <stdint.h>

#include "common/base/err.h"

#define ZPS_LAUNCHER_WORLD_MAX 4096u
#define ZPS_LAUNCHER_JOB_MAX 127u   /* bytes of a job's name */
#define ZPS_LAUNCHER_JOB_SIZE 1024u /* where the name is made */

struct zps_launcher {
  const char *name; /* "torchrun", "mpirun", "srun"; NULL: no launcher that is known */
  uint64_t rank, world;
  uint64_t local_world; /* on this host; 0: it does not say */
  int64_t local_rank;   /* among those; -1: it does not say */
};

/* ZPS_ERR_INVALID, naming the variables and what would be right: the variables make no sense, half of them are missing,
 * or this process is one of several tasks and no variable says which. */
zps_err_t zps_launcher_find(struct zps_launcher *launcher, struct zps_error *error) ZPS_MUSTCHECK;
/* A name for the run: the same on all its ranks, and another one for each run. The first of: TORCHELASTIC_RUN_ID, if it
 * is not "none", torchrun's default. MASTER_ADDR with MASTER_PORT; this host's name stands for a loopback address.
 * PMIX_NAMESPACE. Slurm's job and step. JOBSET_NAME. An overlong name ends in a hash. False: the run has no name. */
bool zps_launcher_job(char name[ZPS_LAUNCHER_JOB_SIZE]);

#endif
