#!/usr/bin/env bash
# torch.distributed under zenpsrun: ranks find each other by what zenpsrun tells them. Debian's python3-torch.
. "$(dirname "$0")/../support/tap.sh"

unset MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
if [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import torch.distributed as d; assert d.is_available()' 2>/dev/null; then
  export GLOO_SOCKET_IFNAME=lo # whatever the host's name resolves to
  group=(/usr/bin/python3 "$top/tests/integration/process_group.py")
  zenpsrun -n 2 -- "${group[@]}" >"$scratch/out" 2>&1
  is "init_process_group and all_reduce of 2 ranks" $? 0
  said "rank 0 has the sum" '^\[0\] rank 0 of 2 at 127.0.0.1, local 0: sum 3'
  said "rank 1 has the sum" '^\[1\] rank 1 of 2 at 127.0.0.1, local 1: sum 3'

  # Two at once have ports of their own.
  zenpsrun -n 2 -- "${group[@]}" >"$scratch/first" 2>&1 &
  first=$!
  zenpsrun -n 2 -- "${group[@]}" >"$scratch/out" 2>&1
  is "two runs at once: one" $? 0
  wait "$first"
  is "two runs at once: the other" $? 0

  # In front of each rank, as mpirun would start it.
  port=$((20000 + RANDOM % 12000))
  in_front() { OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$1 OMPI_COMM_WORLD_LOCAL_SIZE=2 zenpsrun --port "$port" -- "${group[@]}"; }
  in_front 1 >"$scratch/rank1" 2>&1 &
  other=$!
  in_front 0 >"$scratch/out" 2>&1
  is "in front of a rank: rank 0" $? 0
  wait "$other"
  is "in front of a rank: rank 1" $? 0
  said "in front of a rank: the sum" 'rank 0 of 2 at 127.0.0.1, local 0: sum 3'
else
  skip "torch.distributed under zenpsrun" "/usr/bin/python3 has no torch.distributed (Debian: python3-torch)"
fi

done_testing
