#!/usr/bin/env bash
# zenps-perf --verify through real daemons: every shape, density and layout that matters, results checked bit by bit.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"

ok "4 ranks, 2 servers, 1%" verified 4 2 --rows 262144 --density 0.01
ok "1 rank" verified 1 1 --rows 65536 --density 0.05
ok "5 ranks, 3 servers, f64" verified 5 3 --rows 50021 --density 0.03 --dtype f64
ok "16 ranks" verified 16 2 --rows 65536 --density 0.02
ok "width 64" verified 3 2 --rows 20000 --width 64 --density 0.01
ok "density 1" verified 3 2 --rows 40000 --density 1
ok "density 0.00001 of a large tensor" verified 3 2 --rows 1000000 --density 0.00001
ok "several stripes, 4 ranks" verified 4 2 --rows 5000003 --density 0.01 --partitions 48
ok "several stripes, most of them" verified 2 2 --rows 2200000 --density 0.6 --partitions 16
ok "several stripes, nearly nothing" verified 2 2 --rows 5000003 --density 0.00001 --partitions 48
ok "several stripes, rows in and out" verified 2 2 --rows 2200000 --density 0.02 --partitions 16 --layout rows --out rows
ok "several stripes, Algorithm 1, rows out" verified 2 2 --scheme balanced:partitioner=hierarchical --rows 2200000 --density 0.02 --partitions 16 --out rows
ok "no rank touches anything" verified 3 2 --rows 10000 --density 0
ok "some ranks touch nothing" verified 4 2 --rows 10000 --density 0.1 --empty 2
ok "more workers than partitions" verified 5 1 --rows 30000 --partitions 2 --density 0.1
ok "more partitions than workers and rows" verified 2 2 --rows 40 --partitions 64 --density 0.5
ok "one row" verified 3 2 --rows 1 --density 1
ok "unsorted repeated rows in, rows out" verified 3 2 --rows 30000 --layout rows --out rows --duplicates 3 --density 0.05
ok "dense in, rows out, width 3, f64" verified 3 2 --rows 30000 --width 3 --out rows --density 0.05 --dtype f64
ok "mean" verified 3 2 --rows 30000 --op mean --density 0.05
ok "blocks of 8 rows" verified 3 2 --scheme balanced:block_bits=3 --rows 100003 --density 0.02
ok "skewed rows" verified 3 2 --rows 100000 --skew 1.1 --density 0.02
for scheme in balanced sparse-ps recursive-doubling split-allgather agsparse hierarchical auto; do
  ok "rows of zeros stay, $scheme" verified 3 2 --rows 30000 --layout rows --out rows --duplicates 2 --density 0.05 --scheme $scheme --keep-zero-rows
done
for scheme in balanced sparse-ps dense-ps omnireduce auto; do
  ok "mean of the ranks that have rows, $scheme" verified 5 2 --rows 30000 --layout rows --density 0.05 --scheme $scheme --op mean-present --empty 2
done
ok "mean of the ranks that have rows, qsgd4" verified 5 2 --rows 30000 --layout rows --density 0.05 --op mean-present --empty 2 --values qsgd4
ok "rows of zeros stay, max as bf16" verified 3 2 --rows 30000 --layout rows --out rows --density 0.05 --op max --values bf16 --keep-zero-rows
for dtype in bf16 f16; do
  ok "$dtype" verified 4 2 --rows 262144 --density 0.01 --dtype $dtype
  ok "$dtype, repeated rows in, rows out" verified 3 2 --rows 30000 --width 3 --layout rows --out rows --duplicates 3 --density 0.05 --dtype $dtype
  ok "$dtype, repeated rows of which some add up to nothing" verified 3 2 --rows 20003 --layout rows --out rows --duplicates 2 --density 0.05 --dtype $dtype
  ok "$dtype, mean, in place, width 64" verified 3 2 --rows 20000 --width 64 --density 0.01 --op mean --out in-place --dtype $dtype
  ok "$dtype, max, several stripes, rows out" verified 2 2 --rows 2200000 --density 0.02 --partitions 16 --op max --out rows --dtype $dtype
  ok "$dtype as qsgd4" verified 3 2 --rows 30000 --density 0.05 --layout rows --duplicates 2 --values qsgd4 --dtype $dtype
done
ok "26 dense parts" verified 3 2 --rows 100003 --width 4 --density 0.02 --parts 26
ok "26 lists of repeated rows" verified 3 2 --rows 100003 --width 4 --density 0.02 --layout rows --out rows --duplicates 2 --parts 26
ok "parts of several stripes, in place" verified 2 2 --rows 2200000 --density 0.02 --partitions 16 --out in-place --parts 7
ok "more parts than rows, pushed and pulled" verified 2 2 --rows 20 --density 0.5 --collective push-pull --out rows --parts 64
ok "parts of halves, max" verified 3 2 --rows 30000 --density 0.05 --op max --dtype bf16 --layout rows --out rows --parts 5
ok "parts between ranks" verified 4 2 --rows 30000 --density 0.05 --scheme recursive-doubling --layout rows --out rows --parts 5
ok "Algorithm 1 instead of the ordered walk" verified 3 2 --scheme balanced:partitioner=hierarchical --rows 100000 --density 0.02
# Each way to deal rows, with each way to code them: dense, lists with repeats, few rows, wide rows, nearly all.
for partitioner in stratified murmur hierarchical; do
  for codec in auto paper coo; do
    ok "$partitioner, $codec" verified 3 2 --scheme balanced:partitioner=$partitioner --rows 100003 --density 0.02 --codec $codec
    is "the report says so" "$(sed -n 's/.*"partitioner": *"\([a-z]*\)".*"partitioned_on": *"\([a-z]*\)".*/\1 \2/p' "$scratch/json")" "$partitioner host"
  done
  ok "$partitioner, lists" verified 3 2 --scheme balanced:partitioner=$partitioner --rows 100003 --density 0.02 --codec paper --layout rows --out rows --duplicates 2
  ok "$partitioner, few rows" verified 3 2 --scheme balanced:partitioner=$partitioner --rows 50 --density 0.5 --codec paper
  ok "$partitioner, wide rows as bf16" verified 3 2 --scheme balanced:partitioner=$partitioner --rows 20000 --width 33 --density 0.05 --codec paper --values bf16
  ok "$partitioner, values that share a scale" verified 3 2 --scheme balanced:partitioner=$partitioner --rows 100003 --density 0.02 --codec paper --values qsgd4
  ok "$partitioner, all rows, max" verified 2 2 --scheme balanced:partitioner=$partitioner --rows 30000 --density 1 --codec paper --op max
  ok "$partitioner between hosts" env ZENPS_TEST_HOSTS=2 timeout 1800 zenpsrun -n 4 --servers 2 -- zenps-perf --rows 50000 --density 0.05 --steps 2 --verify --scheme hierarchical:partitioner=$partitioner
done
nnz=$((100003 * 2 / 100))
ok "Algorithm 1 in little memory" verified 2 2 --scheme balanced:partitioner=hierarchical,hash_k=1,hash_r1=1,hash_r2=1 --rows 100003 --density 0.02 --partitions 8 --codec paper
is "what it hashed" $(($(whole hash_parallel) + $(whole hash_serial))) $nnz
is "one a partition found a slot" "$(whole hash_parallel)" 8
is "push payload is 8 bytes per non-zero, in any order" "$(whole payload_out)" $((8 * nnz))
refused() {
  local says=$1
  shift
  ! timeout 1800 zenpsrun -n 2 --servers 1 --prefix=no -- zenps-perf --rows 1000 --steps 1 "$@" >"$scratch/refused" 2>&1 || return 1
  grep -q -- "$says" "$scratch/refused" || { cat "$scratch/refused"; return 1; }
}
ok "rows of zeros of a dense array" refused "needs --layout rows" --keep-zero-rows
ok "mean of those present between ranks" refused "over servers alone" --op mean-present --scheme agsparse
ok "rows of zeros in a dense scheme" refused "do not tell which rows ranks sent" --keep-zero-rows --layout rows --scheme ring
ok "hash_k over the most" refused "hash_k is '17'; want 0 to 16" --scheme balanced:partitioner=hierarchical,hash_k=17
ok "hash_r1 over the most" refused "hash_r1 9000 for each of" --scheme balanced:partitioner=hierarchical,hash_r1=9000
ok "options of Algorithm 1 without it" refused "hash_r2 5: these are of Algorithm 1" --scheme balanced:partitioner=murmur,hash_r2=5
ok "blocks of hashed rows" refused "block_bits 3: partitioner murmur hashes each row by itself" --scheme balanced:partitioner=murmur,block_bits=3
for scheme in sparse-ps dense-ps omnireduce ring dsar; do
  ok "$scheme has no partitions to hash" refused "partitioner is for balanced, hierarchical, not for scheme $scheme" --scheme $scheme:partitioner=murmur
done
for scheme in auto: hierarchical:ring,; do
  ok "$scheme has no partitions to hash" refused "leave the option partitioner=murmur out" --scheme ${scheme}partitioner=murmur
done
for values in bf16 f16 qsgd2 qsgd4 qsgd8; do
  ok "values as $values" verified 3 2 --rows 100003 --density 0.05 --values $values
done
ok "values as bf16, width 64, in one partition a server" verified 3 2 --rows 20000 --width 64 --density 0.01 --partitions 2 --values bf16
ok "values as f16, f64, mean" verified 3 2 --rows 30000 --width 5 --density 0.05 --dtype f64 --op mean --values f16
ok "values as qsgd4, repeated rows in, rows out" verified 3 2 --rows 30000 --width 3 --layout rows --out rows --duplicates 3 --density 0.05 --values qsgd4
ok "values as qsgd8, f64, some ranks empty" verified 4 2 --rows 30000 --density 0.2 --dtype f64 --empty 2 --values qsgd8
ZENPS_VALUES=qsgd2 ok "what says raw stays raw, and so do barriers and gathered figures" verified 3 2 --rows 1000 --density 0.1
for provider in "tcp;ofi_rxm" shm sockets; do
  ok "provider $provider" timeout 1800 zenpsrun -n 2 --servers 1 --provider "$provider" -- zenps-perf --rows 200000 --density 0.05 --steps 2 --verify
done

# Sizes on the wire: COO in push is 4 + 4 bytes per non-zero; the hash bitmap in pull is ceil(m / 32) words a partition.
rows=1048576 parts=16
ok "a million rows of 5%" verified 2 4 --rows $rows --density 0.05 --partitions $parts --steps 4 --codec paper
nnz=52429
is "push payload is 8 bytes per non-zero" "$(whole payload_out)" $((8 * nnz))
union=$(awk -v d="$(field union_density)" -v r=$rows 'BEGIN { printf "%.0f", d * r }')
# Partitions of 65536 rows each: every group of 16 rows deals one to each.
is "pull payload is the bitmap and 4 bytes per row of the union" "$(whole payload_in)" $((rows / 8 + 4 * union))
ok "the same with COO both ways" verified 2 4 --rows $rows --density 0.05 --partitions $parts --steps 4 --codec coo
union=$(awk -v d="$(field union_density)" -v r=$rows 'BEGIN { printf "%.0f", d * r }')
is "pull payload is 8 bytes per row of the union" "$(whole payload_in)" $((8 * union))
ok "the same in the smallest codes" verified 2 4 --rows $rows --density 0.05 --partitions $parts --steps 4
over=$(awk -v r="$(field bytes_over_bound)" 'BEGIN { print (r >= 0.99 && r <= 1.02 ? "yes" : r) }')
is "within 2% of the values and the rows' entropy" "$over" yes
export ZENPS_PROVIDER=fault+auto ZENPS_FABRIC_FAULT=gbit=100
ok "a million rows of 10%, over cards of 100 Gbit/s" verified 2 4 --rows $rows --density 0.1 --partitions $parts --steps 4
unset ZENPS_PROVIDER ZENPS_FABRIC_FAULT
ok "push payload is in Rice codes, less than the bitmap and 4 bytes per non-zero" [ "$(whole payload_out)" -lt $((rows / 8 + 4 * 104858)) ]
pulled=$(awk -v d="$(field union_density)" -v r=$rows 'BEGIN { printf "%.0f", r / 8 + 4 * d * r }')
is "pull payload is the bitmap and 4 bytes per row of the union" "$(whole payload_in)" "$pulled"
for dtype in bf16 f16; do # a half of the values' bytes
  ok "a million rows of 5% as $dtype" verified 2 4 --rows $rows --density 0.05 --partitions $parts --steps 4 --codec coo --dtype $dtype
  union=$(awk -v d="$(field union_density)" -v r=$rows 'BEGIN { printf "%.0f", d * r }')
  within=$(awk -v out="$(field payload_out)" -v in_="$(field payload_in)" -v z=$nnz -v u="$union" -v p=$parts 'BEGIN { out -= 6 * z; in_ -= 6 * u; print (out >= 0 && out <= 2 * p && in_ >= 0 && in_ <= 2 * p ? "yes" : out " and " in_) }')
  is "6 bytes a row, but for padding" "$within" yes
done
# All rows: no byte for the index, and no bit more than the values' formula in either direction.
for sizes in bf16:2097152 f16:2097152 qsgd2:266240 qsgd4:528384 qsgd8:1052672; do
  ok "a million rows as ${sizes%:*}" verified 2 4 --rows $rows --density 1 --partitions $parts --values "${sizes%:*}"
  is "push payload" "$(whole payload_out)" "${sizes#*:}"
  is "pull payload" "$(whole payload_in)" "${sizes#*:}"
  over=$(awk -v r="$(field bytes_over_bound)" 'BEGIN { print (r >= 1 && r <= 1.02 ? "yes" : r) }')
  is "within 2% of the bound" "$over" yes
done
for density in 0.0001 0.001; do # where frames would be what is sent
  ok "density $density of a million rows, 4 ranks" verified 4 1 --rows $rows --density $density --partitions 4 --steps 20
  over=$(awk -v r="$(field bytes_over_bound)" 'BEGIN { print (r >= 0.99 && r <= 1.02 ? "yes" : r) }')
  is "within 2% of the bound at density $density" "$over" yes
done
for density in 0.2 0.5 0.95 1; do
  ok "density $density, 3 ranks" verified 3 2 --rows 300000 --density $density
  over=$(awk -v r="$(field bytes_over_bound)" 'BEGIN { print (r >= 0.99 && r <= 1.02 ? "yes" : r) }')
  is "within 2% of the bound at density $density" "$over" yes
done
ok "frames cost under 0.1% at a million non-zeros" verified 1 4 --rows 4000000 --density 0.25 --steps 2
over=$(awk -v o="$(field bytes_out)" -v p="$(field payload_out)" 'BEGIN { print (o - p) / p < 0.001 ? "yes" : (o - p) / p }')
is "overhead of push" "$over" yes

# A trace: samples of row ids, dealt out to ranks and steps.
awk 'BEGIN { srand(7); for (i = 0; i < 2000; i++) { n = 5 + int(rand() * 40); for (k = 0; k < n; k++) printf "%d ", int(5000 * rand() ^ 3); print "" } }' >"$scratch/small.ids"
ok "a trace, width 64" verified 4 2 --trace "$scratch/small.ids" --batch 32 --width 64
xz -k "$scratch/small.ids"
ok "the same trace, compressed" verified 4 2 --trace "$scratch/small.ids.xz" --batch 32
echo "1 2 x" >"$scratch/bad.ids"
zenpsrun -n 1 -- zenps-perf --trace "$scratch/bad.ids" >"$scratch/out" 2>&1
said "a bad trace is refused with file and line" "bad.ids, line 1: 'x' is no row id"

# The parts of an allreduce: what comes back of a reduce-scatter is one rank's share.
ok "push and pull" verified 3 2 --rows 100003 --density 0.05 --collective push-pull
ok "push and pull, lists, f64, dense-ps" verified 3 2 --rows 30000 --width 3 --dtype f64 --layout rows --duplicates 3 --out rows --density 0.05 --collective push-pull --scheme dense-ps
ok "push and pull of qsgd4" verified 3 2 --rows 30000 --density 0.05 --collective push-pull --values qsgd4
ok "allreduce, to compare" verified 4 2 --rows 400000 --density 0.05
all_in=$(whole bytes_in)
ok "reduce-scatter" verified 4 2 --rows 400000 --density 0.05 --collective reduce-scatter
is "a rank of four gets a quarter of the bytes" "$(awk -v all="$all_in" -v own="$(whole bytes_in)" 'BEGIN { print (own > 0.24 * all && own < 0.27 * all ? "yes" : own " of " all) }')" yes
ok "reduce-scatter of lists, sparse-ps, bf16" verified 3 2 --rows 30000 --width 5 --layout rows --out rows --duplicates 2 --density 0.05 --collective reduce-scatter --scheme sparse-ps --values bf16
ok "reduce-scatter in several stripes" verified 3 2 --rows 4194304 --density 0.02 --collective reduce-scatter
ok "allgather" verified 3 2 --rows 100003 --width 4 --density 0.05 --collective allgather --layout rows --overlap disjoint --out rows
ok "allgather beside a tensor between ranks" verified 3 2 --rows 30000 --density 0.05 --collective allgather --layout rows --overlap disjoint --scheme ring
zenps-perf --collective allgather >"$scratch/out" 2>&1
said "an allgather of rows that several ranks have is refused" "needs --layout rows --overlap disjoint"

# Schemes that the planner tries out are not measured; one rank at a time makes the reference, and one rank's wrong
# result is not the others'.
ok "auto until it stays with a scheme, ranks take turns" verified 3 2 --rows 30000 --density 0.05 --scheme auto --settle 2000 --verify-by turns --steps 4
is "all measured steps ran under one" "$(grep -c '"ran": *"' "$scratch/json")" 1
is "after trying" "$(awk -v w="$(whole warmup)" 'BEGIN { print (w > 28 && w < 2001 ? "yes" : w) }')" yes
zenpsrun -n 2 --servers 1 --prefix=no -- sh -c 'exec zenps-perf --rows 5000 --steps 2 --warmup 0 --verify --verify-by turns --seed $((1 + ZENPS_RANK))' >"$scratch/out" 2>&1
said "a rank with another gradient than it should have is found out" "rows differ from the reference sum"

# Two builds in turns: here the build with itself.
turns=$ZPS_TOP_SRCDIR/tests/bench/turns
python3 "$turns" -n 2 "$ZPS_TOP_BUILDDIR" "$ZPS_TOP_BUILDDIR,ZENPS_SHARED_MEMORY=no" small-1000 >"$scratch/out" 2>&1
is "two builds in turns: a row of medians, ratios and noise" "$(grep -cE '^small-1000 +[0-9.]+ +[0-9.]+ +[0-9.]+ .*%$' "$scratch/out")" 1
python3 "$turns" "$ZPS_TOP_BUILDDIR" "$ZPS_TOP_BUILDDIR" nothing >"$scratch/out" 2>&1
said "a row that is none is refused" "no row is called nothing"

done_testing
