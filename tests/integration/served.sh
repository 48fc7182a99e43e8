#!/usr/bin/env bash
# zenps-perf --verify of the schemes over servers that come from other systems: sparse-ps, dense-ps, omnireduce. Results
# to the bit, and bytes by the papers' formulas.
. "$(dirname "$0")/../support/tap.sh"
. "$(dirname "$0")/../support/verified.sh"

for scheme in sparse-ps dense-ps omnireduce; do
  ok "$scheme, 1 rank, nothing" verified 1 2 --scheme $scheme --rows 10007 --density 0
  ok "$scheme, 1 rank" verified 1 1 --scheme $scheme --rows 100003 --density 0.01
  ok "$scheme, 2 ranks, width 64, rows in and out" verified 2 3 --scheme $scheme --rows 2003 --width 64 --density 0.01 --layout rows --out rows --duplicates 2
  ok "$scheme, 3 ranks, density 0.0001" verified 3 2 --scheme $scheme --rows 100003 --density 0.0001 --codec paper
  ok "$scheme, 3 ranks, width 3, f64, rows out" verified 3 2 --scheme $scheme --rows 20011 --width 3 --density 0.02 --dtype f64 --out rows
  ok "$scheme, 4 ranks, rows in" verified 4 3 --scheme $scheme --rows 100003 --density 0.3 --layout rows
  ok "$scheme, 4 ranks, mean, width 300" verified 4 2 --scheme $scheme --rows 501 --width 300 --density 0.1 --op mean
  ok "$scheme, 8 ranks, density 1" verified 8 3 --scheme $scheme --rows 20000 --density 1
  ok "$scheme, 8 ranks, width 64, some of them empty" verified 8 2 --scheme $scheme --rows 2003 --width 64 --density 0.1 --empty 3
  ok "$scheme, one row" verified 3 2 --scheme $scheme --rows 1 --density 1
done
for scheme in sparse-ps dense-ps omnireduce; do
  ok "$scheme of bf16" verified 3 2 --scheme $scheme --rows 20011 --width 3 --density 0.1 --dtype bf16
  ok "$scheme of f16, repeated rows in, rows out" verified 3 2 --scheme $scheme --rows 2003 --width 33 --density 0.1 --layout rows --duplicates 2 --out rows --dtype f16
done
ok "sparse-ps, bf16" verified 3 2 --scheme sparse-ps --rows 20000 --density 0.1 --values bf16

# Dense: every worker sends M bytes and gets M bytes, for any gradient.
for density in 0 0.01 1; do
  ok "dense-ps at density $density" verified 3 2 --scheme dense-ps --rows 50021 --width 3 --density $density --codec paper
  is "push payload" "$(whole payload_out)" $((50021 * 3 * 4))
  is "pull payload" "$(whole payload_in)" $((50021 * 3 * 4))
done
ok "dense-ps from rows" verified 2 2 --scheme dense-ps --rows 50021 --density 0.01 --layout rows
is "push payload" "$(whole payload_out)" $((50021 * 4))

# OmniReduce: 256 values and a number for each block that has something in it; here blocks 0, 1 and the last, which is short.
for i in 1 2 3 4; do echo "0 1 255 256 100000"; done >"$scratch/blocks.ids"
ok "omnireduce of three blocks" verified 2 2 --scheme omnireduce --trace "$scratch/blocks.ids" --batch 1 --codec paper
is "push payload" "$(whole payload_out)" $((3 * (1024 + 4)))
is "pull payload" "$(whole payload_in)" $((3 * (1024 + 4)))
ok "omnireduce of all blocks" verified 3 2 --scheme omnireduce --rows 100001 --density 1 --codec paper
is "push payload" "$(whole payload_out)" $((391 * (1024 + 4)))
is "pull payload" "$(whole payload_in)" $((391 * (1024 + 4)))
ok "omnireduce of all blocks in the smallest code" verified 3 2 --scheme omnireduce --rows 100001 --density 1
is "push payload" "$(whole payload_out)" $((391 * 1024))

# Sparse PS: value and number of each row, in both directions.
ok "sparse-ps of five rows" verified 2 2 --scheme sparse-ps --trace "$scratch/blocks.ids" --batch 1 --codec paper
is "push payload" "$(whole payload_out)" $((5 * 8))
is "pull payload" "$(whole payload_in)" $((5 * 8))

zenpsrun -n 2 --servers 1 -- zenps-perf --rows 1000 --scheme omnireduce --values bf16 >"$scratch/out" 2>&1
said "values of blocks are not narrowed" "with scheme omnireduce of 1000x1 they must be raw"
zenpsrun -n 2 --servers 1 -- zenps-perf --rows 1000 --scheme dense-ps --op max >"$scratch/out" 2>&1
said "zeros that are sent spoil a max" "scheme dense-ps sends zeros"
zenpsrun -n 2 --servers 1 -- zenps-perf --rows 1000 --scheme sparse-ps --partitions 8 >"$scratch/out" 2>&1
said "ranges are not asked for" "scheme sparse-ps lays rows out itself"

done_testing
