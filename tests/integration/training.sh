#!/usr/bin/env bash
# The example trainers: n ranks with batch B/n follow the loss curve of one rank with batch B, and training works.
. "$(dirname "$0")/../support/tap.sh"

# Two overlapping topics, 40 words a document out of 3000 with a power law: linearly separable for the most part.
perl -e 'srand 3; for (1 .. 3000) { my $y = rand() < 0.5 ? 1 : -1; my %s;
  for (1 .. 40) { my $f = 1 + int(3000 * rand() ** 2.5); $f = 1 + ($f * ($y > 0 ? 7 : 11)) % 3000 if rand() < 0.3; $s{$f} = 1 }
  print join(" ", $y, map { "$_:0.2" } sort { $a <=> $b } keys %s), "\n" }' >"$scratch/docs.libsvm"
# Sentences of ten words, each sentence on one of thirty topics of twenty words: neighbours tell each other's topic.
perl -e 'srand 5; for (1 .. 6000) { my $t = int(rand() ** 1.5 * 30);
  print join(" ", map { chr(97 + $t % 26) . "topic" . chr(97 + $t / 26) . chr(97 + int(rand(20))) } 1 .. 10), "\n" }' >"$scratch/text"

curve() { # RANKS SERVERS PROGRAM arguments... -> "loss metric" of every epoch
  local n=$1 servers=$2
  shift 2
  timeout 1800 zenpsrun -n "$n" --servers "$servers" --prefix=no -- "$@" --json 2>"$scratch/err" >"$scratch/json" || { cat "$scratch/err"; return 1; }
  sed -n 's/.*"loss": \([^,]*\), "[a-z]*": \([^,]*\),.*/\1 \2/p' "$scratch/json"
}
same_curve() { # A B TOLERANCE [METRIC]: losses within the relative tolerance, held-out metrics within METRIC or 0.01
  paste "$1" "$2" | awk -v tol="$3" -v most="${4:-0.01}" '
    { d = ($1 - $3) / $1; if (d < 0) d = -d; m = $2 - $4; if (m < 0) m = -m; if (d > tol || m > most) { print "epoch " NR ": " $0; bad = 1 } n++ }
    END { exit bad || n == 0 }'
}

for loss in logistic hinge; do
  ok "linear, $loss: one rank" eval "curve 1 1 zenps-linear --loss $loss --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/one"
  ok "linear, $loss: three ranks" eval "curve 3 2 zenps-linear --loss $loss --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/three"
  ok "linear, $loss: the curves agree" same_curve "$scratch/one" "$scratch/three" 0.0005
done
for values in bf16 qsgd8; do
  ok "linear, values as $values: three ranks" eval "curve 3 2 zenps-linear --values $values --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/narrow"
  ok "linear, values as $values: the curves agree" same_curve "$scratch/three" "$scratch/narrow" 0.005 0.02 # 0.0033 is one document
done
for scheme in recursive-doubling ring auto; do
  ok "linear, scheme $scheme: three ranks" eval "curve 3 2 zenps-linear --scheme $scheme --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/between"
  ok "linear, scheme $scheme: the curves agree" same_curve "$scratch/three" "$scratch/between" 0.0005
done
for how in "--threads 3" "--schedule sqrt"; do
  # shellcheck disable=SC2086
  ok "linear, $how: three ranks" eval "curve 3 2 zenps-linear $how --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/also"
  ok "linear, $how: the curves agree" same_curve "$scratch/three" "$scratch/also" 0.0005
done
xz -k "$scratch/docs.libsvm"
ok "linear, a compressed file, which no rank can enter in the middle" eval "curve 3 2 zenps-linear --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm.xz >$scratch/also"
ok "linear, a compressed file: the curves agree" same_curve "$scratch/three" "$scratch/also" 0.0005
gzip -k "$scratch/docs.libsvm"
ok "linear, one by gzip" eval "curve 3 2 zenps-linear --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm.gz >$scratch/gzipped"
ok "linear, one by gzip: the curves agree" same_curve "$scratch/three" "$scratch/gzipped" 0.0005
ok "linear, two steps on their way: three ranks" eval "curve 3 2 zenps-linear --delay 2 --loss hinge --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/late"
ok "linear, two steps on their way: other steps, and it learns" awk 'NR == FNR { same[NR] = $1; next } { d = same[FNR] - $1; if (d < 0) d = -d; if (d > 1e-4 * $1) differs = 1; if (FNR == 1) first = $1; last = $1 }
  END { exit !(differs && last < 0.8 * first) }' "$scratch/three" "$scratch/late"
# Sums are applied when they come, so no run is another one to the bit; each is applied once, so all come to where the synchronous one does.
# At this rate that holds however late they are: the bound is that of the fixed delay, with room.
ok "linear, a low rate: three ranks" eval "curve 3 2 zenps-linear --rate 0.5 --loss hinge --epochs 8 --batch 128 $scratch/docs.libsvm >$scratch/low"
for how in balanced ring; do
  ok "linear, sums up to 4 steps late over $how: three ranks" eval "curve 3 2 zenps-linear --scheme $how --staleness 4 --rate 0.5 --loss hinge --epochs 8 --batch 128 $scratch/docs.libsvm >$scratch/late"
  ok "linear, sums up to 4 steps late over $how: the objective of the synchronous run" same_curve "$scratch/low" "$scratch/late" 0.01 0.05
done
ok "linear, a rate that falls to zero: nothing is learned after the first epoch" eval "curve 3 2 zenps-linear --schedule exponential --decay 0 --epochs 3 --batch 128 $scratch/docs.libsvm >$scratch/still" &&
  ok "linear, a rate that falls to zero: the loss stays" awk 'NR == 2 { second = $1 } NR == 3 { d = (second - $1) / $1; exit !(d < 1e-6 && d > -1e-6) }' "$scratch/still"

# Coordinate descent: the ranks' coordinates are disjoint rows, so all exact schemes give the same bits.
for how in balanced agsparse ring; do
  ok "linear, coordinate descent over $how: three ranks" eval "curve 3 2 zenps-linear --method scd --scheme $how --epochs 4 --schedule constant $scratch/docs.libsvm >$scratch/scd.$how"
done
ok "linear, coordinate descent: all schemes alike" eval "cmp $scratch/scd.balanced $scratch/scd.agsparse && cmp $scratch/scd.balanced $scratch/scd.ring"
ok "linear, coordinate descent: it learns" awk 'NR == 1 { first = $1 } { last = $1; accuracy = $2 } END { exit !(first < 0.6 && last < 0.7 * first && accuracy > 0.75) }' "$scratch/scd.balanced"
refused() { # NAME TEXT arguments...
  local name=$1 text=$2
  shift 2
  zenpsrun -n 1 -- zenps-linear "$@" "$scratch/docs.libsvm" >"$scratch/out" 2>&1
  said "linear: $name is refused" "$text"
}
refused "coordinate descent of a hinge" "--method scd needs --loss logistic" --method scd --loss hinge
refused "a staleness of coordinates" "--staleness is for --method sgd" --method scd --staleness 1
refused "a delay with a staleness" "--delay and --staleness" --delay 1 --staleness 1
refused "a delay of selected values" "--delay cannot be had with --sparsify" --delay 1 --sparsify topk
refused "bits that no code has" "bits is '3'; want 0, 2, 4 or 8" --scheme dsar:bits=3

ok "linear: it learns" awk 'NR == 1 { first = $1 } { last = $1; accuracy = $2 } END { exit !(last < 0.8 * first && accuracy > 0.75) }' "$scratch/three"

# Selecting values with a residual: held out within 1% of the dense run's; counts of reused thresholds about k.
dense=$(tail -n 1 "$scratch/three" | cut -d ' ' -f 2)
kept_up() { # MOST-OFF zenps-linear arguments...: the last metric, and the mean counts where a bound is given
  local off=$1
  shift
  curve 3 2 zenps-linear --loss hinge --epochs 8 --batch 32 --density 0.05 "$@" "$scratch/docs.libsvm" >"$scratch/kept" || return 1
  awk -v d="$dense" '{ m = $2 } END { if (m < 0.99 * d) { print m " instead of " d; exit 1 } }' "$scratch/kept" || return 1
  [ "$off" = 0 ] || awk -v off="$off" '
    function field(name) { return match($0, "\"" name "\": *[-0-9.e+]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : 0 }
    { s += field("selected_over_k"); k += field("kept_over_k"); n++ }
    END { if (s < (1 - off) * n || s > (1 + off) * n || k < (1 - off) * n || k > (1 + off) * n) { print "selected " s / n ", in the sum " k / n; exit 1 } }' "$scratch/json"
}
for select in topk sampled reused gaussian buckets; do
  ok "linear, values selected by $select: three ranks" kept_up 0 --sparsify $select
done
ok "linear, values selected over Ok-Topk: three ranks" kept_up 0.11 --sparsify topk --scheme oktopk
ok "linear, by reused thresholds over Ok-Topk: three ranks" kept_up 0.11 --sparsify reused --scheme oktopk
# Dense accumulators go in, the scheme selects [Ok-Topk algorithm 2].
for scheme in oktopk gtopk topkdsa gaussiank; do
  ok "linear, $scheme selects itself: three ranks" kept_up 0 --sparsify scheme --scheme $scheme
done
ok "linear, Ok-Topk with periods of the caller's: three ranks" kept_up 0 --sparsify scheme --scheme oktopk:tau=128,tau_threshold=8,without=steering
# xi of Ok-Topk's assumption 1: below the number of ranks, and 0 where nothing is dropped.
measured_xi() { # LEAST MOST zenps-linear arguments...: in every epoch
  local least=$1 most=$2
  shift 2
  curve 3 2 zenps-linear --loss hinge --epochs 3 --batch 32 --scheme oktopk --sparsify scheme --xi 5 "$@" "$scratch/docs.libsvm" >/dev/null || return 1
  awk -v least="$least" -v most="$most" 'match($0, "\"xi\": *[-0-9.e+]+") { xi = substr($0, RSTART + 6, RLENGTH - 6) + 0; n++; if (xi < least || xi > most) { print "epoch " n ": " xi; bad = 1 } }
    END { exit bad || n != 3 }' "$scratch/json"
}
ok "linear, xi of 5% of the values" measured_xi 0.1 3 --density 0.05
ok "linear, xi of all values" measured_xi 0 0 --density 1
refused() { # zenps-linear arguments...
  ! zenpsrun -n 1 -- zenps-linear "$@" "$scratch/docs.libsvm"
}
ok "linear: --sparsify scheme over one that keeps all is refused" refused --sparsify scheme --scheme ring
said "and says which it takes" "such as oktopk"
ok "linear: a selection that has no paper's threshold is refused" refused --sparsify topk --unrefined
said "and says which have" "needs --sparsify reused or gaussian"
ok "linear: a period of no threshold is refused" refused --sparsify topk --period 8
said "and says what has one" "needs --sparsify reused"
ok "linear: xi without a selection is refused" refused --xi 4
said "and says why" "needs --sparsify"

# What waits in the residual was multiplied with the rate of its step: it is still applied when the rate is 0.
ok "linear, a residual at rate zero: three ranks" eval "curve 3 2 zenps-linear --schedule exponential --decay 0 --epochs 3 --batch 128 --sparsify topk --density 0.01 $scratch/docs.libsvm >$scratch/rest"
ok "linear, a residual at rate zero: it is applied" awk 'NR == 2 { second = $1 } NR == 3 { exit !($1 < 0.999 * second) }' "$scratch/rest"
# SparCML's recipe: top-k with a residual, a sum that grows dense, 4 bits on its dense half.
ok "linear, top-k, dsar and 4 bits: three ranks" kept_up 0 --sparsify topk --scheme dsar:bits=4

for mode in skipgram cbow; do
  ok "embed, $mode: one rank" eval "curve 1 1 zenps-embed --mode $mode --epochs 2 --dim 16 --batch 512 $scratch/text >$scratch/one"
  ok "embed, $mode: four ranks" eval "curve 4 2 zenps-embed --mode $mode --epochs 2 --dim 16 --batch 512 $scratch/text >$scratch/four"
  ok "embed, $mode: the curves agree" same_curve "$scratch/one" "$scratch/four" 0.002
done
ok "embed, values as f16: four ranks" eval "curve 4 2 zenps-embed --values f16 --mode cbow --epochs 2 --dim 16 --batch 512 $scratch/text >$scratch/narrow"
ok "embed, values as f16: the curves agree" same_curve "$scratch/four" "$scratch/narrow" 0.01
ok "embed: it learns" awk 'NR == 1 { first = $1 } { last = $1; ranking = $2 } END { exit !(last < first && ranking > 0.7) }' "$scratch/four"

echo "1 3:x" >"$scratch/bad.libsvm"
zenpsrun -n 1 -- zenps-linear "$scratch/bad.libsvm" >"$scratch/out" 2>&1
said "a bad feature is refused with file and line" "bad.libsvm, line 1: feature 3 has no finite value"
zenpsrun -n 1 -- zenps-embed "$scratch/missing" >"$scratch/out" 2>&1
said "a missing text is refused by name" "cannot open $scratch/missing: No such file"

done_testing
