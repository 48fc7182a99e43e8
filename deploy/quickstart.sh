#!/usr/bin/env bash
# From a fresh Debian 12 checkout to real training through real daemons, in a few minutes:
# installs what is missing, builds, trains word vectors on a text with 4 workers and 2 servers, then an LSTM with PyTorch, and
# says what it cost.
#
#   deploy/quickstart.sh [TEXT]      TEXT: any plain text (or .xz), a sentence a line; default: the glosses of WordNet
#
# env: BUILD_DIR (default build/quickstart), WORKERS (4), SERVERS (2), EPOCHS (3), NO_INSTALL=1 (apt is left alone)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD_DIR:-$top/build/quickstart}
workers=${WORKERS:-4} servers=${SERVERS:-2} epochs=${EPOCHS:-3}
text=${1:-} given=""
start=$SECONDS

say() { printf '\n== %s\n' "$*"; }
die() { echo "quickstart: $*" >&2; exit 1; }

[ -z "$text" ] || [ -r "$text" ] || die "cannot read $text: give a plain text file, or none at all for WordNet's glosses"
[ -z "$text" ] || { text=$(realpath "$text"); given=$text; }

say "installing packages"
if [ "${NO_INSTALL:-0}" = 1 ]; then
  echo "left alone (NO_INSTALL=1)"
else
  "$top/deploy/install-deps.sh" build
  "$top/deploy/install-deps.sh" quickstart
fi

say "building in $build"
mkdir -p "$build"
[ -x "$top/configure" ] || (cd "$top" && autoreconf -fi >"$build/autoreconf.log" 2>&1) || die "autoreconf failed, see $build/autoreconf.log"
cd "$build"
[ -f Makefile ] || "$top/configure" CFLAGS="-O2 -g" >configure.log 2>&1 || { tail -5 configure.log >&2; die "configure failed, see $build/configure.log"; }
make -j"$(nproc)" >make.log 2>&1 || { tail -20 make.log >&2; die "the build failed, see $build/make.log"; }
echo "done: zenpsd, libzenps, zenpsctl, zenpsrun, zenps-perf, zenps-embed, zenps-linear"

show=""
if [ -z "$text" ]; then
  # WordNet's data files hold one meaning a line; the gloss, in English, stands behind the bar.
  text=$build/wordnet-glosses.txt
  sed -n 's/^[0-9].*| *//p' /usr/share/wordnet/data.noun /usr/share/wordnet/data.verb /usr/share/wordnet/data.adj \
    /usr/share/wordnet/data.adv >"$text" || die "no WordNet under /usr/share/wordnet: install wordnet-base or give a text"
  show="--show water,music,red,doctor"
fi

say "training word vectors on $(basename "$text"): $workers workers, $servers servers, one coordinator, over libfabric"
# shellcheck disable=SC2086
./zenpsrun -n "$workers" --servers "$servers" -- ./zenps-embed --epochs "$epochs" $show "$text" | tee training.log
grep -q 'epoch' training.log || die "no epoch was finished"

# The same tensors, sent whole: what a step costs when sparsity is not used.
words=$(sed -n 's/.* \([0-9]*\) different ones.*/\1/p' training.log | head -1)
say "for comparison: the same two tensors sent dense, 5 steps through the same daemons"
dense_ms=$(./zenpsrun -n "$workers" --servers "$servers" --prefix=no -- ./zenps-perf --rows "$words" --width 64 --density 1 \
  --steps 5 --warmup 1 --json | sed -n 's/.*"median_ms": *\([0-9.]*\).*/\1/p')
dense_ms=$(printf %.1f "$dense_ms")
echo "$dense_ms ms per tensor and step"

# One LSTM in PyTorch, its gradients summed by zenps.torch, and by DistributedDataParallel over Gloo: same samples, same losses.
say "PyTorch: an LSTM language model, 25 steps by zenps.torch, and as many by DDP over Gloo"
python=/usr/bin/python3
lstm() { # HOW
  PYTHONPATH=$top/worker/python PYTHONDONTWRITEBYTECODE=1 ZENPS_LIBRARY=$build/.libs/libzenps.so.0 ./zenpsrun -n "$workers" --servers "$servers" \
    --prefix=no -- "$python" "$top/worker/examples/python/lm.py" --how "$1" --steps 25 --batch 16 ${given:+--data "$given"} --json >"lstm-$1.json" ||
    die "training with PyTorch by $1 failed"
}
lstm zenps
lstm gloo-dense

say "what happened"
awk -v words="$words" -v dense_ms="$dense_ms" -v workers="$workers" '
  /held-out ranking/ && /computing/ {
    for (i = 1; i <= NF; i++) {
      if ($i == "epoch") epoch = $(i + 1)
      if ($i == "loss") loss = $(i + 1)
      if ($i == "ranking") rank = $(i + 1)
      if ($i == "computing") compute += $(i + 1)
      if ($i == "synchronising") sync += $(i + 1)
      if ($i == "moved") moved += $(i + 1)
      if ($i == "of" && $(i - 1) == "instead") dense += $(i + 1)
    }
    printf "  epoch %d: loss %.4f, true neighbours ranked above random words in %.1f%% of held-out pairs\n", epoch, loss, 100 * rank
    n++
  }
  /words of text/ { split($0, part, " words of text"); sub(/.* /, "", part[1]); tokens = part[1]; held = $0; sub(/.*\(/, "", held); sub(/ .*/, "", held) }
  END {
    steps = n * int((tokens - held + 4095) / 4096)
    printf "  bytes:   %.0f MB moved by all workers, where dense ring allreduce moves %.0f MB: %.1f times less\n", moved, dense, dense / moved
    printf "  seconds: %.1f s computing, %.1f s synchronising (%.1f ms a step; sent dense it took %.1f ms a step)\n", compute, sync, 1000 * sync / steps, 2 * dense_ms
  }' training.log
"$python" - lstm-zenps.json lstm-gloo-dense.json <<'EOF'
import json, sys
zenps, gloo = (json.load(open(name)) for name in sys.argv[1:])
dense = 2 * (gloo["world"] - 1) / gloo["world"] * 4 * gloo["parameters"] / 1e6
print(f"  PyTorch: LSTM of {zenps['parameters'] / 1e6:.1f} M parameters: loss {zenps['loss'][-1]:.4f}, over Gloo {gloo['loss'][-1]:.4f}\n"
      f"           {zenps['steps_per_s']:.1f} steps a second, over Gloo {gloo['steps_per_s']:.1f}: {zenps['steps_per_s'] / gloo['steps_per_s']:.1f} times faster\n"
      f"           {zenps['mb_per_step']:.2f} MB sent a step and rank, where a dense ring sends {dense:.0f}")
EOF
cat <<EOF
  total time: $((SECONDS - start)) s

Where to look next
  README.md                     what zenps is, and how to use it from your trainer
  worker/examples/embed.c       the trainer you have just run; python/lm.py beside it: the one in PyTorch
  worker/python/README.md       zenps.torch: three lines in a training script
  worker/include/zenps/zenps.h  the whole client API
  $build/zenpsrun --help        other programs, other numbers of workers and servers
  tests/run.sh                  every test
EOF
