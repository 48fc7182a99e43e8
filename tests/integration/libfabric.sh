#!/usr/bin/env bash
# The fabric over libfabric 2.x, which hosts with cards have, built with its headers: those of this host may be of 1.17.
# make-libfabric builds the release in Debian 13 once, and keeps it. Without its source the script says why nothing ran.
. "$(dirname "$0")/../support/tap.sh"
lf=$scratch/libfabric over=$scratch/build
"$top/worker/python/make-libfabric" --headers "$lf" >"$scratch/out" 2>&1 ||
  { echo "1..0 # SKIP the libfabric of Debian 13 cannot be made here: $(tail -n 1 "$scratch/out")"; exit 0; }

programs="tests/conform/conform_net tests/conform/conform_tcp_rxm tests/conform/conform_shm tests/conform/conform_efa tests/conform/conform_cxi tests/conform/conform_gni tests/conform/conform_efa_unlucky tests/conform/conform_cxi_unlucky tests/conform/conform_gni_unlucky tests/unit/net/test_ofi_offers tests/unit/net/test_ofi_select"
# shellcheck disable=SC2086
build_over() (
  mkdir "$over" && cd "$over" &&
    "$top/configure" --enable-werror CFLAGS="-O1 -g1" CPPFLAGS="-I$lf/include" LIBFABRIC_CFLAGS="-I$lf/include" \
      LIBFABRIC_LIBS="-L$lf -lfabric" &&
    make -j"$(nproc)" LIBTOOL="$top/tests/support/libtool-quick ${CONFIG_SHELL:-/bin/sh} $over/libtool" $programs
)
is "the headers are of 2.x" "$(sed -n 's/^#define FI_MAJOR_VERSION //p' "$lf/include/rdma/fabric.h")" 2
ok "the fabric builds with them, without a warning" build_over || { done_testing; exit; }
export LD_LIBRARY_PATH=$lf
# tests/run.sh ends this script after 900 s, without a word of the program at fault. Each one ends before that.
within() { # SECONDS COMMAND...
  local left=$((840 - SECONDS)) most=$1
  shift
  timeout $((left < 1 ? 1 : left < most ? left : most)) "$@"
}
for program in $programs; do
  ok "${program##*/} over 2.x" within 150 "$over/$program"
done
within 60 "$over/tests/unit/net/test_ofi_offers" >"$scratch/out" 2>&1
said "device memory by dmabuf was among them" 'OK \] device_memory_is_registered'

# Programs built with this host's headers.
for provider in tcp "tcp;ofi_rxm" shm; do
  ok "a verified job over $provider of 2.x" within 120 zenpsrun -n 2 --servers 2 --provider "$provider" -- \
    zenps-perf --rows 100000 --width 4 --density 0.01 --steps 5 --verify
done
done_testing
