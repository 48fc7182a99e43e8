# Sourced after tap.sh by scripts that run zenps-perf through real daemons.
# verified RANKS SERVERS zenps-perf arguments...: passes when the run ends well and says that its results are right;
# field NAME: the number of that name in its report; whole NAME: the same, rounded.
verified() {
  local n=$1 servers=$2
  shift 2
  timeout 300 zenpsrun -n "$n" --servers "$servers" --prefix=no -- zenps-perf --steps 2 --warmup 1 --verify --json "$@" >"$scratch/json" 2>"$scratch/err" || {
    cat "$scratch/json" "$scratch/err"
    return 1
  }
  cat "$scratch/json"
  grep -q '"verified": *true' "$scratch/json"
}
field() { sed -n "s/.*\"$1\": *\([-0-9.e+]*\).*/\1/p" "$scratch/json"; }
whole() { printf '%.0f' "$(field "$1")"; }
