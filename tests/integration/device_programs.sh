#!/usr/bin/env bash
# zenps-perf and the trainers with --memory device, against real daemons: the memory of an emulated GPU, or of a real one
# where ZENPS_DEVICE_LIBRARY names its library. With the argument "quick" a part of it.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"
. "$(dirname "$0")/../support/cases.sh"
. "$(dirname "$0")/../support/device-library.sh"

refused_by=
# What a host without a GPU says.
refused() { # NAME STATUS PATTERN PROGRAM arguments...
  local name=$1 status=$2 pattern=$3
  shift 3
  ZENPS_DEVICE_LIBRARY=${refused_by:-libzenps_no_such_thing.so} timeout 1800 zenpsrun -n 1 --servers 1 -- "$@" >"$scratch/out" 2>&1
  is "$name: exit status" $? "$status"
  said "$name" "$pattern"
}
echo "1 1:0.5" >"$scratch/docs.libsvm"
echo "some words and some words" >"$scratch/text"
none='no support for GPUs here: libzenps_no_such_thing.so: .*; build zenps with --with-cuda, or use host memory'
refused "perf without the library" 1 "$none" zenps-perf --rows 100 --memory device
refused "linear without the library" 1 "$none" zenps-linear --memory device "$scratch/docs.libsvm"
refused "embed without the library" 1 "$none" zenps-embed --memory device "$scratch/text"
refused "perf, a number without the memory" 2 "--device 1 needs --memory device" zenps-perf --device 1
refused "linear, a number without the memory" 2 "--device 1 needs --memory device" zenps-linear --device 1 "$scratch/docs.libsvm"
refused "perf, no number" 2 "--device is 'first'; it must be the number of a GPU" zenps-perf --memory device --device first
ZENPS_DEVICE=one refused "embed, no number in the environment" 2 "ZENPS_DEVICE is 'one'; it must be" zenps-embed --memory device "$scratch/text"
echo "--memory device" >"$scratch/cases"
refused "perf, one case alone" 1 "--memory, --device.*are not for single cases" zenps-perf --cases "$scratch/cases"

if [ "$has_device" = no ]; then
  skip "gradients in device memory" "this build has no emulated device"
  done_testing
  exit
fi
refused_by=$ZENPS_DEVICE_LIBRARY refused "a GPU that is not there" 1 "there is no GPU 1000: this host has" zenps-perf --memory device --device 1000

# Every scheme, in every layout.
layouts=("" "--layout rows --out rows --duplicates 3" "--out in-place" "--layout rows" "--out rows")
worlds="3 4"
[ "${1-}" != quick ] || worlds=4
for n in $worlds; do # layouts go round
  i=$n
  for_all_schemes $n --rows $((20011 + n)) --density 0.02 | while IFS= read -r case; do
    echo "$case ${layouts[i % ${#layouts[@]}]}"
    i=$((i + 1))
  done >"$scratch/cases"
  run_cases $n --memory device
  is "$n ranks: all of it in device memory" "$(grep -c '"memory": *"device"' "$scratch/json")" "$(wc -l <"$scratch/cases")"
done
for partitioner in murmur hierarchical; do
  for codec in paper auto; do
    echo "--scheme balanced:partitioner=$partitioner --rows 20011 --density 0.03 --codec $codec"
    echo "--scheme balanced:partitioner=$partitioner --rows 5003 --width 5 --density 0.2 --codec $codec --dtype f64 --out rows"
  done
done >"$scratch/cases"
for dtype in bf16 f16; do
  echo "--scheme balanced --rows 20011 --density 0.03 --dtype $dtype"
  echo "--scheme balanced --rows 5003 --width 5 --density 0.2 --dtype $dtype --layout rows --duplicates 3 --out rows"
  echo "--scheme balanced --rows 5003 --width 3 --density 0.2 --dtype $dtype --values qsgd8"
done >>"$scratch/cases"
for list in "--layout rows --duplicates 3" "--layout rows --out rows --codec auto --width 3"; do
  echo "--scheme balanced:partitioner=hierarchical --rows 20011 --density 0.04 --codec paper $list"
done >>"$scratch/cases"
echo "--scheme balanced:partitioner=hierarchical,hash_k=1,hash_r1=1,hash_r2=1 --rows 20011 --density 0.3 --codec paper" >>"$scratch/cases"
echo "--scheme balanced:partitioner=hierarchical --rows 20011 --density 0.05 --codec paper --values qsgd4" >>"$scratch/cases"
run_cases 3 --memory device
is "rows dealt on the device" "$(grep -c '"partitioned_on": *"device"' "$scratch/json")" "$(wc -l <"$scratch/cases")"
is "by Algorithm 1, where it is asked for" "$(grep -c '"partitioner": *"hierarchical".*"hash_parallel": *[1-9]' "$scratch/json")" 8
for scheme in sparse-ps dense-ps omnireduce; do
  refused_by=$ZENPS_DEVICE_LIBRARY refused "$scheme lays rows out itself" 2 "not for scheme $scheme" \
    zenps-perf --rows 100 --memory device --scheme $scheme:partitioner=hierarchical
done
# Ranks of a host whose devices reach each other add up there; with one whose gradient is in host memory, all do.
by_host() { # RANKS-A-HOST MERGED-ON PARTITIONED-ON zenps-perf arguments...
  local h=$1 merged=$2 partitioned=$3
  shift 3
  ZENPS_HERE=$h timeout 1800 zenpsrun -n 4 --servers 2 --prefix=no -- bash -c 'export ZENPS_HOST=host$((ZENPS_RANK / ZENPS_HERE))
    [ "$ZENPS_RANK" != "${ON_HOST-}" ] || set -- "$@" --memory host; exec "$@"' . \
    zenps-perf --steps 3 --warmup 0 --verify --json --rows 20011 --density 0.05 --memory device "$@" >"$scratch/json" 2>"$scratch/out"
  is "4 ranks, $h a host${ON_HOST:+, rank $ON_HOST in host memory}, $*: added up on" \
    "$(sed -n 's/.*"partitioned_on": *"\([a-z]*\)".*"merged_on": *"\([a-z]*\)".*"verified": *true.*/\2 \1/p' "$scratch/json")" "$merged $partitioned"
}
by_host 4 device host --scheme hierarchical
by_host 2 device device --scheme hierarchical:partitioner=hierarchical --codec paper
by_host 2 device device --scheme hierarchical:balanced --layout rows --duplicates 3 --out rows --dtype f64 --width 3
by_host 1 device device --scheme hierarchical:partitioner=hierarchical --codec paper
ON_HOST=1 by_host 4 host host --scheme hierarchical
ON_HOST=0 by_host 4 host host --scheme hierarchical
ZENPS_SHARED_MEMORY=no by_host 2 host host --scheme hierarchical
ok "auto's candidates, by Algorithm 1" verified 2 2 --memory device --scheme auto:balanced,hierarchical,partitioner=hierarchical --codec paper --rows 20011 --density 0.05 --steps 8
ok "large enough that servers read it, two in a row in place" verified 2 2 --memory device --rows 300007 --width 8 --density 0.1 --out in-place
ok "f64, paper's codes" verified 2 2 --memory device --rows 30000 --width 3 --density 0.05 --dtype f64 --codec paper
ok "values as qsgd4" verified 2 2 --memory device --rows 30000 --density 0.05 --values qsgd4
ok "no rank touches anything" verified 2 1 --memory device --rows 1000 --density 0 --layout rows --out rows

# Trainers: bit for bit the curve of gradients in host memory.
perl -e 'srand 3; for (1 .. 600) { my $y = rand() < 0.5 ? 1 : -1; my %s;
  for (1 .. 20) { $s{1 + ($y > 0 ? 3 : 5) * int(300 * rand() ** 2) % 1500} = 1 }
  print join(" ", $y, map { "$_:0.2" } sort { $a <=> $b } keys %s), "\n" }' >"$scratch/docs.libsvm"
perl -e 'srand 5; for (1 .. 400) { my $t = int(rand() * 10); print join(" ", map { "t" . $t . chr(97 + int(rand(9))) } 1 .. 10), "\n" }' >"$scratch/text"
trained() { # FILE MEMORY PROGRAM arguments...
  local file=$1 memory=$2
  shift 2
  timeout 1800 zenpsrun -n 2 --servers 2 --prefix=no -- "$@" --json --memory "$memory" >"$scratch/json" 2>"$scratch/err" || { cat "$scratch/err"; return 1; }
  grep -q "\"memory\": \"$memory\"" "$scratch/json" && sed -n 's/.*"loss": \([^,]*\), "[a-z]*": \([^,]*\),.*/\1 \2/p' "$scratch/json" >"$file" && [ -s "$file" ]
}
alike() { # NAME PROGRAM arguments...
  local name=$1
  shift
  ok "$name, host memory" trained "$scratch/host" host "$@"
  ok "$name, device memory" trained "$scratch/device" device "$@"
  ok "$name: the same curve" cmp "$scratch/host" "$scratch/device"
}
alike "linear" zenps-linear --epochs 2 --batch 64 "$scratch/docs.libsvm"
alike "linear, selected values" zenps-linear --epochs 2 --batch 64 --sparsify topk --density 0.05 "$scratch/docs.libsvm"
alike "embed, a scheme between ranks" zenps-embed --epochs 1 --dim 8 --batch 512 --scheme recursive-doubling "$scratch/text"
done_testing
