#!/usr/bin/env bash
# Every scheme through real processes, results checked bit by bit or against their definition; bytes by the papers'
# formulas; and the errors when ranks fail. A selection of shapes by default; with the argument "all" every scheme with
# every number of ranks, width, density and overlap, or those for the numbers of ranks named after it.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"
. "$(dirname "$0")/../support/cases.sh"

shapes() { # of every WIDTH, density and overlap
  local width density overlap
  for width in 1 64; do
    for density in 0 0.0001 0.01 0.3 1; do
      for overlap in random same disjoint; do echo "--rows $((width == 1 ? 20011 : 1003)) --width $width --density $density --overlap $overlap"; done
    done
  done
}

if [ "${1:-}" = all ]; then
  shift
  for n in ${*:-1 2 3 4 5 7 8 12 16}; do
    shapes | while IFS= read -r shape; do for_all_schemes "$n" "$shape"; done >"$scratch/cases"
    run_cases "$n"
  done
  done_testing
  exit
fi

i=0
for n in 1 2 3 5 8; do # shapes go round
  for shape in $((i++ * 7 % 30)) $((i++ * 7 % 30)) $((i++ * 7 % 30)); do
    for_all_schemes "$n" "$(shapes | sed -n "$((shape + 1))p")"
  done >"$scratch/cases"
  run_cases "$n"
done

# Results over the gradients: no gradient is written over before all ranks that need it have it.
{
  for_all_schemes 4 --rows 300007 --density 0.3 --steps 3 --out in-place
  for_all_schemes 4 --rows 5003 --width 64 --density 0.05 --steps 3 --out in-place
} >"$scratch/cases"
run_cases 4

# Halves: rounded once, by every scheme; also results over the gradients, and repeated rows whose sums are no halves.
{
  for_all_schemes 4 --rows 20011 --density 0.05 --dtype bf16
  for_all_schemes 4 --rows 2003 --width 5 --density 0.5 --dtype f16 --op mean --out in-place
  for_all_schemes 4 --rows 1003 --width 33 --density 0.3 --dtype bf16 --layout rows --duplicates 2 --out rows
} >"$scratch/cases"
run_cases 4

# All ranks touch the same rows; no two ranks touch the same row.
seq -s ' ' 3 7 2000 >"$scratch/same"
for sample in $(seq 0 15); do seq -s ' ' $((sample * 100)) $((sample * 100 + 60)); done >"$scratch/disjoint"
for scheme in $lossless; do
  echo "--scheme $scheme --rows 2001 --trace $scratch/same --batch 1 --out rows"
  echo "--scheme $scheme --rows 2001 --trace $scratch/disjoint --batch 1 --layout rows"
done >"$scratch/cases"
cat >>"$scratch/cases" <<END
--scheme ring:chunks=3 --rows 1000003 --density 0.2
--scheme split-allgather --rows 400009 --density 0.2 --op mean --dtype f64 --out rows
--scheme recursive-doubling --rows 30000 --layout rows --out rows --duplicates 3 --density 0.05
--scheme recursive-doubling --rows 30000 --op max --density 0.05 --width 3
--scheme split-allgather --rows 30000 --op min --density 0.05 --dtype f64
--scheme dsar:bits=2 --rows 30000 --width 3 --density 0.3
--scheme dsar:bits=4 --rows 30000 --density 0.3 --op mean --out rows
--scheme dsar:bits=8 --rows 30000 --density 0.01 --dtype f64
--scheme topkdsa:bits=4,density=0.1 --rows 30000 --density 0.3
--scheme split-allgather:allgather=doubling --rows 30000 --density 0.2 --out rows
--scheme split-allgather:allgather=doubling --rows 30000 --density 0.2 --op max
--scheme dsar:allgather=doubling --rows 300000 --density 0.3 --op mean
--scheme topkdsa:density=0.1,allgather=doubling --rows 30000 --density 0.3
--scheme split-allgather:allgather=doubling --rows 30000 --density 0.05 --values qsgd4
--scheme agsparse --rows 30000 --width 3 --density 0.05 --values bf16 --dtype f64
--scheme dsar:bits=4 --rows 30000 --density 0.3 --values qsgd8
--scheme recursive-doubling:delta=0.3 --rows 30000 --density 0.2
--scheme split-allgather:delta=0.1 --rows 30000 --density 0.2 --out rows
--scheme topkdsa:density=0.02 --rows 30000 --width 4 --density 0.1 --op mean --layout rows
--scheme topka:k=100 --rows 30000 --width 4 --density 0.1 --out rows --dtype f64
--scheme gaussiank:density=0.05 --rows 30000 --density 0.2 --layout rows --duplicates 2
--scheme gtopk:density=0.05 --rows 30000 --density 0.2 --skew 1.2 --out rows
--scheme oktopk:density=0.02 --rows 10000 --density 0.2 --steps 70 --overlap same
--scheme oktopk:density=0.02 --rows 10000 --width 3 --density 0.1 --steps 40 --skew 1.1 --out rows
--scheme oktopk:density=0.02,tau=5,tau_threshold=7,chunks=4 --rows 10000 --density 0.2 --steps 20
--scheme oktopk:density=0.02,tau_threshold=128,without=steering --rows 10000 --density 0.2 --steps 140 --overlap same
--scheme oktopk:density=0.02,without=rotation+bucketing+repartition+balancing,chunks=3 --rows 10000 --density 0.2 --steps 5 --skew 1.1
--scheme gaussiank:density=0.05,without=correction --rows 30000 --density 0.2
END
run_cases 3
ZENPS_MEMORY_LIMIT=16777216 ok "in 16 MiB" verified 4 1 --scheme ring --rows 1000003 --density 0.2

# Bytes that a rank takes in and sends out in a step, on average over the ranks, without frames, against the papers'
# formulas. An entry is a value and a row number of 4 bytes each; M = 4 rows; k rows of each rank.
rows=55440 k=1109 keep=0.02
want() { # LEAST MOST scheme and zenps-perf arguments...
  echo "$1 $2" >>"$scratch/wanted"
  shift 2
  echo "--scheme $* --rows $rows --codec paper" >>"$scratch/cases"
}
exactly() { # EXPRESSION ...: in bytes, for bc
  local bytes
  bytes=$(awk -v M=$((4 * rows)) -v k="$k" -v P="$n" "BEGIN { printf \"%.2f\", $1 }")
  shift
  want "$bytes" "$bytes" "$@"
}
about() { # the same to 2%, where it hangs on which ranges random rows fall into
  local bytes
  bytes=$(awk -v M=$((4 * rows)) -v k="$k" -v P="$n" "BEGIN { printf \"%.2f\", $1 }")
  shift
  want "$(awk -v b="$bytes" 'BEGIN { print b * 0.98 }')" "$(awk -v b="$bytes" 'BEGIN { print b * 1.02 }')" "$@"
}
check_bytes() { # in $scratch/json, line by line
  local case line least most
  while IFS= read -r case <&3 && IFS= read -r line <&4 && read -r least most <&5; do
    awk -v least="$least" -v most="$most" -v n="$n" -v line="$line" '
      function field(name) { return match(line, "\"" name "\": *[-0-9.e+]+") ? substr(line, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : -1 }
      BEGIN { in_ = field("payload_in"); out = field("payload_out"); bad = in_ < least - 0.5 || in_ > most + 0.5 || in_ - out > 0.5 || out - in_ > 0.5
        frames = (field("bytes_in") - in_) / (most + 1); if (frames < 0 || frames > 0.05 + 8000 / (most + 1)) bad = 1
        if (bad) print "in " in_ ", out " out ", wanted " least " to " most ", frames " frames; exit bad }' >"$scratch/out"
    tap_result $? "$n ranks, bytes of $case"
  done 3<"$scratch/cases" 4<"$scratch/json" 5<"$scratch/wanted"
}
for n in 2 4 5 8; do
  : >"$scratch/cases"
  : >"$scratch/wanted"
  few="--density $keep"
  for scheme in ring rabenseifner blueconnect dense-split; do
    [ $scheme-$n = rabenseifner-5 ] || exactly "2 * M * (P - 1) / P" $scheme $few # not where P is no power of two
  done
  [ $n -lt 4 ] || [ $n = 5 ] || exactly "2 * M * (P - 1) / P" blueconnect:levels=2x$((n / 2)) $few
  [ $n = 5 ] || exactly "(P / 2 * (2 * M) + 2 * M * (P / 2 - 1)) / P" two-level:levels=2x$((n / 2)) $few
  exactly "8 * k * (P - 1) / P + M * (P - 1) / P" dsar $few --overlap same
  about "(4 * k + M / 32) * 2 * (P - 1) / P" bitmap-split $few --overlap same
  exactly "8 * k * (P - 1)" agsparse $few
  exactly "8 * 2 * k * (P - 1) / P" split-allgather $few --overlap same
  about "8 * k * (P - 1) * (P + 1) / P" split-allgather $few --overlap disjoint
  if [ $n != 5 ]; then # U of 2^t ranks in stage t
    exactly "8 * k * log(P) / log(2)" recursive-doubling $few --overlap same
    exactly "8 * k * (P - 1)" recursive-doubling $few --overlap disjoint
    exactly "8 * 2 * k * (P - 1) / P" split-allgather:allgather=doubling $few --overlap same
    exactly "8 * (P / 2 * k + P / 2 * (k + 2 * k * (P / 2 - 1) / (P / 2))) / P" hierarchical:split-allgather,levels=2x$((n / 2)) $few --overlap same
  fi
  exactly "8 * k * (P - 1)" topka:density=$keep --density 0.3
  exactly "8 * 2 * k * (P - 1) / P" gtopk:density=$keep --density 0.3
  exactly "8 * 2 * k * (P - 1) / P" topkdsa:allgather=direct,density=$keep --density $keep --overlap same # table 1's interval, from here
  about "(8 * k + 8 * M / 4 * (1 - (1 - k / (M / 4)) ^ P)) * (P - 1) / P" topkdsa:allgather=direct,density=$keep --density 0.3
  about "(8 * 0.8 * M / 4 / P + M) * (P - 1) / P" topkdsa:allgather=direct,density="$(awk -v n=$n 'BEGIN { print 0.8 / n }')" --density 1 --overlap disjoint # to here
  for overlap in same random disjoint; do # 2k(P-1)/P to 6k(P-1)/P words, what is agreed and counts, as thresholds are reused
    want "$(awk -v k=$k -v P=$n 'BEGIN { print 4 * 2 * k * (P - 1) / P * 0.89 }')" "$(awk -v k=$k -v P=$n 'BEGIN { print 4 * 6 * k * (P - 1) / P + 24 * (P - 1) }')" \
      oktopk:density=$keep --density 0.1 --overlap $overlap --warmup 1 --steps 20
  done
  # All over the fabric, as between hosts.
  ZENPS_SHARED_MEMORY=no timeout 1800 zenpsrun -n $n --servers 1 --prefix=no -- zenps-perf --steps 2 --verify --json --cases "$scratch/cases" >"$scratch/json" 2>"$scratch/out"
  is "$n ranks: all are verified" "$(grep -c '"verified": *true' "$scratch/json")" "$(wc -l <"$scratch/cases")"
  check_bytes
done

# BlueConnect's levels one by one: bytes between ranks of a host go through its memory, the rest over the fabric. Bytes
# in, of a rank on average, of level i: 2M(p_i - 1) / (p_0 ... p_i).
by_level() { # RANKS RANKS-PER-HOST EXPRESSION-ON-HOST EXPRESSION-BETWEEN scheme and zenps-perf arguments...
  local n=$1 h=$2 wanted got
  wanted=$(awk -v M=$((4 * rows)) -v k=$k -v h="$h" -v H=$((n / h)) "BEGIN { printf \"%d and %d\", $3, $4 }")
  shift 4
  ZENPS_HERE=$h ZENPS_WHERE=${where:-"ZENPS_HOST=host\$((ZENPS_RANK / ZENPS_HERE))"} timeout 1800 \
    zenpsrun -n "$n" --servers 1 --prefix=no -- bash -c 'eval "export $ZENPS_WHERE"; exec "$@"' . \
    zenps-perf --steps 2 --verify --json --rows $rows --codec paper --density $keep --scheme "$@" >"$scratch/json" 2>"$scratch/out"
  got=$(awk 'function field(name) { return match($0, "\"" name "\": *[-0-9.e+]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : -1 }
    field("shared_in") == field("shared_out") { printf "%d and %d", field("shared_in"), field("payload_in") - field("shared_in") }' "$scratch/json")
  is "$n ranks, $h on each host: bytes on it and between hosts, $*" "$got" "$wanted"
}
for shape in 4:2 8:2 8:4 6:3; do
  n=${shape%:*} h=${shape#*:}
  by_level "$n" "$h" "2 * M * (h - 1) / h" "2 * M * (H - 1) / (h * H)" blueconnect
  by_level "$n" "$h" "2 * M * (h - 1) / h" "2 * M * (H - 1) / (h * H)" blueconnect:levels="${h}x$((n / h))"
  [ "$shape" = 8:2 ] || # whose pieces are so small that they travel in frames
    by_level "$n" "$h" "8 * 2 * k * (h - 1) / h" "8 * 2 * k * (H - 1) / (h * H)" hierarchical:split-allgather --overlap same
done
by_level 8 4 "2 * M * (1 / 2 + 1 / 4)" "2 * M * (1 / 8)" blueconnect:levels=2x2x2
by_level 8 2 "2 * M * (1 / 2)" "2 * M * (1 / 4 + 1 / 8)" blueconnect:levels=2x2x2
by_level 8 4 "2 * M * (3 / 4)" "2 * M * (1 / 8)" blueconnect:levels=4rx2d
# Hosts and racks that ranks go round: two racks of two hosts of two ranks.
where='ZENPS_HOST=host$((ZENPS_RANK % 4)) ZENPS_RACK=rack$((ZENPS_RANK % 2))' \
  by_level 8 2 "2 * M * (1 / 2)" "2 * M * (1 / 4 + 1 / 8)" blueconnect
# Levels that are given, too: the first is of ranks that share a host.
where='ZENPS_HOST=host$((ZENPS_RANK % 2))' \
  by_level 8 4 "8 * 2 * k * (h - 1) / h" "8 * 2 * k * (H - 1) / (h * H)" hierarchical:split-allgather,levels=4x2 --overlap same

# Rows that a rank sent, as a share of all rows: the rows that a scheme finds, or all rows where it does not look for
# them.
for case in split-allgather:0.25 bitmap-split:0.25 dense-split:1.00; do
  timeout 1800 zenpsrun -n 3 --servers 1 --prefix=no -- zenps-perf --scheme "${case%:*}" --rows 20000 --density 0.25 --steps 2 --json >"$scratch/json" 2>"$scratch/out"
  is "${case%:*} counts the rows that it sends" "$(printf '%.2f' "$(sed 's/.*"density": *\([0-9.e-]*\).*/\1/' "$scratch/json")")" "${case#*:}"
done

refused() { # zenps-perf arguments...
  ! timeout 1800 zenpsrun -n 2 --servers 1 --prefix=no -- zenps-perf "$@"
}
ok "levels of a scheme that has none" refused --scheme agsparse:levels=2
said "names those that have" "levels is for two-level, blueconnect, hierarchical, not for scheme agsparse"
ok "an algorithm that a level cannot take" refused --scheme blueconnect:levels=2rx1z
said "shows one that can be" "4rx2d"
ok "a way round for a scheme without a second half" refused --scheme agsparse:allgather=doubling
said "names the option" "allgather is for split-allgather, dsar, topkdsa, not for scheme agsparse"
ok "a scheme that there is not" refused --scheme rings
said "names those that there are" recursive-doubling
ok "levels that do not multiply to the ranks" refused --scheme blueconnect:levels=3x5
said "says so" "product of the levels"
ok "a period of Ok-Topk's for another scheme" refused --scheme ring:tau=5
said "says which it is for" "tau is for oktopk, not for scheme ring"
ok "a part that the scheme does not have" refused --scheme gaussiank:density=0.1,without=steering
said "says which it has" "scheme gaussiank can do without no more than correction"
ok "a part that there is not" refused --scheme oktopk:density=0.1,without=balance
said "names the one that was meant" "did you mean 'balancing'"
ok "an option that there is not" refused --scheme oktopk:density=0.1,tua=5
said "names the one that was meant" "scheme oktopk has no option 'tua'; .*did you mean 'tau'?"
ZENPS_SCHEME=oktopk ok "the environment names the scheme, the flag an option" verified 2 1 --scheme :density=0.1,tau=2 --rows 1000 --density 0.2
echo "--density 0.1 --scheme" >"$scratch/cases"
ok "a case that cannot be" refused --cases "$scratch/cases"
said "is named by file and line" "cases, line 1: .*scheme"

if [ -x "$build/tests/integration/api_test" ]; then
  export ZENPSD="$build/zenpsd" ZENPS_TEST_DIR="$scratch" ZENPS_SCHEME=split-allgather
  for test in killed_rank hung_rank missing_rank cancel rank_leaves free_in_flight truncated in_place several_tensors recovery extremes halves; do
    ok "API between ranks: $test" "$build/tests/integration/api_test" "test_$test"
  done
  ZENPS_SHARED_MEMORY=no ok "without shared memory: several_tensors" "$build/tests/integration/api_test" test_several_tensors
  for test in killed_rank hung_rank missing_rank cancel rank_leaves free_in_flight in_place several_tensors; do
    ZENPS_SCHEME=dense-split ZENPS_SHARED_MEMORY=no ok "gradients that are lent: $test" "$build/tests/integration/api_test" "test_$test"
  done
  for test in killed_rank hung_rank missing_rank cancel rank_leaves free_in_flight truncated in_place several_tensors; do
    ZENPS_SCHEME=bitmap-split ZENPS_SHARED_MEMORY=no ok "bits of rows: $test" "$build/tests/integration/api_test" "test_$test"
  done
  for hosts in 1 2 3; do
    export ZENPS_SCHEME=hierarchical ZENPS_TEST_HOSTS=$hosts
    for test in killed_rank hung_rank missing_rank cancel rank_leaves free_in_flight truncated in_place several_tensors recovery extremes; do
      ok "API by host, $hosts of them: $test" "$build/tests/integration/api_test" "test_$test"
    done
  done
  for test in killed_server hung_server; do
    ok "API by host: $test" "$build/tests/integration/api_test" "test_$test"
  done
  unset ZENPS_TEST_HOSTS
  export ZENPS_SCHEME=split-allgather
  export ZENPS_PROVIDER="fault+${ZENPS_PROVIDER:-auto}" ZENPS_FABRIC_FAULT="seed=3,again=0.1,delay=0.05:3ms"
  for test in killed_rank hung_rank missing_rank cancel several_tensors recovery recovery_oktopk_all; do
    ok "the same over a fabric that pushes back and dawdles: $test" "$build/tests/integration/api_test" "test_$test"
  done
fi
done_testing
