#!/usr/bin/env bash
# gpu/truth.sh, as far as it goes without a GPU; and what it says of a library that is none, and of options.
. "$(dirname "$0")/../support/tap.sh"

if [ -e "$build/.libs/libzenps_emu_sealed.so" ]; then
  ok "all that needs no GPU" "$top/gpu/truth.sh" --emulated --parts all --build "$build" --work "$scratch/work"
  said "its last line counts" '^[0-9]+ passed, 0 failed, [0-9]+ skipped$'
  said "Algorithm 1 is swept" '^passed: kernels: Algorithm 1 by memory and hash functions'
  said "what needs one is named" '^skipped: times of the kernels: there is no GPU'
  ok "one part" "$top/gpu/truth.sh" --emulated --parts hashing --build "$build" --work "$scratch/work"
  said "runs no other" '^1 passed, 0 failed, 1 skipped$'
else
  skip "all that needs no GPU" "no C++17 compiler: kernels are not emulated"
fi
"$top/gpu/truth.sh" --emulated --build "$build" --work "$scratch/work" --library "$scratch/none.so" >"$scratch/out" 2>&1
is "without a device it fails" $? 1
said "step by step" '^FAILED: kernels: select'
said "to the end, which says why" "^  kernels: random gradients.*: gpu-check: no support for GPUs here: $scratch/none.so: cannot open"
"$top/gpu/truth.sh" --emulate >"$scratch/out" 2>&1
is "a wrong option: exit status" $? 2
said "a wrong option is named" "'--emulate' is no option"
"$top/gpu/truth.sh" --parts compare,figures >"$scratch/out" 2>&1
is "a part that is none: exit status" $? 2
said "a part that is none is named, and the parts" "'figures' is no part; parts are build,compare,rounds,times,hashing,sanitizers, or all"
for list in '' , ' ' 'compare times' 'compare, times' compare, ,compare compare,,times; do
  "$top/gpu/truth.sh" --emulated --parts "$list" --build "$scratch" --work "$scratch/empty" >"$scratch/out" 2>&1
  is "--parts '$list': exit status" $? 2
  said "--parts '$list' is told the parts" "--parts: '.*' is no part; parts are build,compare,rounds,times,hashing,sanitizers, or all"
done
"$top/gpu/truth.sh" --emulated --parts rounds --work "$scratch/empty" >"$scratch/out" 2>&1
is "without programs nothing is begun: exit status" $? 2
said "without programs a part is skipped" '^skipped: rounds: zenps is not built'
"$top/gpu/truth.sh" --emulated --parts compare --work "$scratch/empty" >"$scratch/out" 2>&1
is "without programs and a benchmark nothing is begun: exit status" $? 2
said "a benchmark that is missing is skipped" "^skipped: kernels: the benchmark's comparison: there is no GPU, or no benchmark"
said "and counted" '^0 passed, 0 failed, 2 skipped$'
"$top/gpu/truth.sh" --minutes none >"$scratch/out" 2>&1
is "a time that is none: exit status" $? 2
said "a time that is none is named" "--minutes none; must be 1 to 99"
"$top/gpu/truth.sh" --bench "$scratch/none" >"$scratch/out" 2>&1
is "a benchmark that is not there: exit status" $? 2
said "a benchmark that is not there is named" "--bench $scratch/none: no such program"
if PATH=$PATH:/usr/local/cuda/bin command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  skip "without a GPU it begins nothing" "there is one"
else
  "$top/gpu/truth.sh" --work "$scratch/work" >"$scratch/out" 2>&1
  is "without a GPU it begins nothing" $? 2
  said "and says what is missing" 'a GPU: nvidia-smi lists none \(--emulated does what needs none\)'
fi
done_testing
