# shellcheck shell=bash
# Sourced after verified.sh by scripts that run many cases of zenps-perf in one job: the names of schemes, and run_cases.
served="balanced sparse-ps dense-ps omnireduce"
lossless="recursive-doubling split-allgather dsar agsparse ring rabenseifner two-level blueconnect hierarchical dense-split bitmap-split"
lossy="oktopk gtopk topka topkdsa gaussiank"

# Runs the lines of $scratch/cases as one job of that many ranks; each is one test.
run_cases() { # RANKS zenps-perf arguments for all of them...
  local n=$1 case line
  shift
  timeout 500 zenpsrun -n "$n" --servers 2 --prefix=no -- zenps-perf --steps 2 --warmup 0 --verify --json "$@" --cases "$scratch/cases" >"$scratch/json" 2>"$scratch/out"
  while IFS= read -r case <&3; do
    IFS= read -r line <&4 || line=
    grep -q "\"scheme\": *\"$(sed 's/--scheme \([a-z-]*\).*/\1/' <<<"$case")[\":].*\"verified\": *true" <<<"$line"
    tap_result $? "$n ranks, $case"
  done 3<"$scratch/cases" 4<"$scratch/json"
}
# Options that scheme $1 cannot do without.
needs() {
  case " $lossy " in *" $1 "*) echo ":density=0.01" ;; esac
}
# A line for each scheme; what levels change, with some.
for_all_schemes() { # RANKS zenps-perf arguments...
  local n=$1 scheme
  shift
  for scheme in $served $lossless $lossy auto; do
    echo "--scheme $scheme$(needs "$scheme") $* $([ "$scheme" != auto ] || echo "--steps 6")"
  done
  case $n in 4) levels="2x2" ;; 8) levels="2x4 2x2x2" ;; 12) levels="3x4 2x3x2" ;; 16) levels="4x4 2x2x4" ;; *) levels= ;; esac
  for level in $levels; do
    for scheme in two-level blueconnect hierarchical; do
      case $scheme-$level in *-*x*x*) [ "$scheme" = blueconnect ] || continue ;; esac
      echo "--scheme $scheme:levels=$level $*"
    done
  done
}
