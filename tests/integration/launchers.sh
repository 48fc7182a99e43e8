#!/usr/bin/env bash
# Processes that a launcher starts know their rank: Open MPI's mpirun, Slurm's srun and sbatch, and torchrun's
# variables.
. "$(dirname "$0")/../support/tap.sh"

zenpsd --fabric-interface=lo --control-listen=127.0.0.1:0 --control-address-file="$scratch/address" --log-level=warn &
until_true test -s "$scratch/address"
export ZENPS_COORDINATOR ZENPS_INTERFACE=lo
ZENPS_COORDINATOR=$(cat "$scratch/address")
perf="zenps-perf --rows 20000 --density 0.05 --steps 3 --verify"
of() { said "$1: one job of $2 ranks" "^(\[[0-9]+\] )?ranks $2,"; said "$1: verified" "bit for bit"; }

# ---- torchrun's variables ---- Two runs without a name, at one coordinator: each would be "none" for torchrun.
torchrun_rank() { # PORT RANK
  TORCHELASTIC_RUN_ID=none RANK=$2 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 $perf >"$scratch/torchrun.$1.$2" 2>&1
}
pids=""
for port in 29500 29501; do
  for rank in 0 1; do
    torchrun_rank $port $rank &
    pids="$pids $!"
  done
done
failed=0
for pid in $pids; do wait "$pid" || failed=$((failed + 1)); done
cat "$scratch"/torchrun.* >"$scratch/out"
is "two runs of torchrun without an id are two jobs" "$failed" 0
RANK=0 $perf >"$scratch/out" 2>&1
[ $? -ne 0 ]
tap_result $? "a rank of nobody knows how many is refused"
said "with what is missing, and what would be right" 'RANK=0, but no WORLD_SIZE.*torchrun sets both; or set ZENPS_RANK and ZENPS_WORLD_SIZE'

# ---- Open MPI ----
if command -v mpirun >/dev/null; then
  mpirun="mpirun --allow-run-as-root --oversubscribe --mca btl_tcp_if_include lo --mca oob_tcp_if_include lo"
  ok "mpirun: ranks run" timeout 1800 $mpirun -n 4 $perf
  of mpirun 4
  ok "mpirun: zenpsrun in front of each rank" timeout 1800 env -u ZENPS_COORDINATOR $mpirun -n 2 zenpsrun --port $((20000 + RANDOM % 12000)) -- $perf
  of "mpirun, zenpsrun" 2
else
  skip "mpirun" "mpirun is not installed"
fi

# ---- Slurm: its real daemons, on this machine ----
slurm_start() {
  local name=vm
  name=$(hostname -s)
  mkdir "$scratch/slurm" "$scratch/slurm/state" "$scratch/slurm/spool" || return 1
  (umask 077 && head -c 128 /dev/urandom >"$scratch/slurm/key")
  cat >"$scratch/slurm/slurm.conf" <<CONF
ClusterName=zenps
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=$((32000 + RANDOM % 300))
SlurmdPort=$((32400 + RANDOM % 300))
AuthInfo=socket=$scratch/slurm/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$scratch/slurm/state
SlurmdSpoolDir=$scratch/slurm/spool
SlurmctldPidFile=$scratch/slurm/slurmctld.pid
SlurmdPidFile=$scratch/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SchedulerType=sched/builtin
MpiDefault=none
NodeName=$name NodeAddr=127.0.0.1 CPUs=$(nproc)
PartitionName=main Nodes=$name Default=YES
CONF
  export SLURM_CONF=$scratch/slurm/slurm.conf
  munged --foreground --force --key-file="$scratch/slurm/key" --socket="$scratch/slurm/munge" --pid-file="$scratch/slurm/munged.pid" \
    --log-file="$scratch/slurm/munged.log" --seed-file="$scratch/slurm/seed" >"$scratch/slurm/munged.out" 2>&1 &
  until_true test -S "$scratch/slurm/munge" || return 1
  slurmctld -D >"$scratch/slurm/slurmctld.out" 2>&1 &
  slurmd -D >"$scratch/slurm/slurmd.out" 2>&1 &
  until_true eval 'sinfo --noheader --format=%T | grep -q idle'
}
batch_is_over() { [ -z "$(squeue --noheader)" ]; }
if [ "$(id -u)" -ne 0 ] || ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
  skip "srun, sbatch" "slurmctld, slurmd or munged is not installed, or this is not root"
elif ! slurm_start; then
  skip "srun, sbatch" "Slurm does not start here: $(tail -qn 1 "$scratch"/slurm/*.out | tr '\n' ' ')"
else
  ok "srun: tasks run" timeout 1800 srun --overcommit -n 4 $perf
  of srun 4
  printf '#!/bin/sh\n%s\necho "status $?"\n' "$perf" >"$scratch/batch"
  ok "sbatch: two tasks" sbatch --overcommit --ntasks=2 --output="$scratch/batch.out" "$scratch/batch"
  ok "sbatch: it runs to its end" until_true batch_is_over
  cp "$scratch/batch.out" "$scratch/out"
  said "sbatch: a program that srun has not started is not rank 0 of 1" 'status [1-9]'
  said "sbatch: it says how to start it" '2 tasks for this job \(SLURM_NTASKS\).* no step of srun.*start it by torchrun, mpirun or srun'
fi

done_testing
