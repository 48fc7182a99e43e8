#!/usr/bin/env bash
# Every scheme between workers through real processes, results checked bit by bit; and what must come out when ranks
# fail. A selection by default, every number of ranks with every width and density with the argument "all".
. "$(dirname "$0")/../support/tap.sh"

lossless="recursive-doubling split-allgather dsar agsparse ring rabenseifner two-level blueconnect"

verified() { # RANKS SCHEME zenps-perf arguments...
  local n=$1 scheme=$2
  shift 2
  timeout 120 zenpsrun -n "$n" --servers 1 --prefix=no -- zenps-perf --scheme "$scheme" --steps 2 --warmup 0 --verify --json "$@" >"$scratch/json" 2>"$scratch/err" || {
    cat "$scratch/json" "$scratch/err"
    return 1
  }
  grep -q '"verified": *true' "$scratch/json" && grep -q "\"scheme\": *\"$scheme\"" "$scratch/json"
}

# All ranks touch the same rows; no two ranks touch the same row.
seq -s ' ' 3 7 2000 >"$scratch/same"
for sample in $(seq 0 15); do seq -s ' ' $((sample * 100)) $((sample * 100 + 60)); done >"$scratch/disjoint"

densities=(0 0.0001 0.01 0.3 1)
if [ "${1:-}" = all ]; then
  for scheme in $lossless; do
    for n in 1 2 3 4 5 7 8 12 16; do
      for density in "${densities[@]}"; do
        ok "$scheme, $n ranks, density $density" verified "$n" "$scheme" --rows 20011 --density "$density"
        ok "$scheme, $n ranks, width 64, density $density" verified "$n" "$scheme" --rows 1003 --width 64 --density "$density"
      done
    done
  done
else
  i=0
  for scheme in $lossless; do
    ((i % 2)) && ranks="2 5 7" || ranks="1 3 8"
    for n in $ranks; do # densities and widths go round
      density=${densities[$((i++ % 5))]}
      if ((i % 2)); then
        ok "$scheme, $n ranks, density $density" verified "$n" "$scheme" --rows 20011 --density "$density"
      else
        ok "$scheme, $n ranks, width 64, density $density" verified "$n" "$scheme" --rows 1003 --width 64 --density "$density"
      fi
    done
    i=$((i + 1))
  done
  ok "split-allgather, 16 ranks" verified 16 split-allgather --rows 20011 --density 0.01
  ok "blueconnect, 12 ranks in levels" verified 12 blueconnect --rows 20011 --density 0.01 --levels 2x3x2
fi
for scheme in $lossless; do
  ok "$scheme, the same rows" verified 4 "$scheme" --rows 2001 --trace "$scratch/same" --batch 1 --out rows
  ok "$scheme, no row twice" verified 3 "$scheme" --rows 2001 --trace "$scratch/disjoint" --batch 1 --layout rows
done
ok "megabytes, in pieces" verified 3 ring --rows 1000003 --density 0.2 --chunks 3
ok "megabytes, sparse, mean, f64, rows out" verified 3 split-allgather --rows 400009 --density 0.2 --op mean --dtype f64 --out rows
ok "repeated rows" verified 3 recursive-doubling --rows 30000 --layout rows --out rows --duplicates 3 --density 0.05
ZENPS_MEMORY_LIMIT=16777216 ok "in 16 MiB" verified 4 ring --rows 1000003 --density 0.2

refused() { # zenps-perf arguments...
  ! timeout 60 zenpsrun -n 2 --servers 1 --prefix=no -- zenps-perf "$@"
}
ok "a scheme that there is not" refused --scheme rings
said "names those that there are" recursive-doubling
ok "levels that do not multiply to the ranks" refused --scheme blueconnect --levels 3x5
said "says so" "product of the levels"

if [ -x "$build/tests/integration/api_test" ]; then
  export ZENPSD="$build/zenpsd" ZENPS_TEST_DIR="$scratch" ZENPS_SCHEME=split-allgather
  for test in killed_rank hung_rank missing_rank cancel rank_leaves free_in_flight truncated in_place several_tensors; do
    ok "API between workers: $test" "$build/tests/integration/api_test" "test_$test"
  done
  export ZENPS_PROVIDER="fault+${ZENPS_PROVIDER:-auto}" ZENPS_FABRIC_FAULT="seed=3,again=0.1,delay=0.05:3ms"
  for test in killed_rank hung_rank missing_rank cancel several_tensors; do
    ok "the same over a fabric that pushes back and dawdles: $test" "$build/tests/integration/api_test" "test_$test"
  done
fi
done_testing
