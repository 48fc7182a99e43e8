#!/usr/bin/env bash
# A stranger with the guide alone (deploy/guide): its pages in their order, each command on the host that the page names
# (tests/support/guide). Pages: those in arguments, else all.
. "$(dirname "$0")/../support/tap.sh"
lab=$top/tests/cluster/lab python=/usr/bin/python3 # Debian's modules are for Debian's python
why=$("$lab" allowed) || true
for module in seccomp torch; do
  "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$module'))" || why="python3-$module is not installed"
done
for tool in cc curl pkg-config pkill; do command -v $tool >/dev/null || why="$tool is not installed"; done
[ -z "$why" ] || { echo "1..0 # SKIP $why"; exit 0; }
export LAB_NAME=g$(($$ % 1000000)) LAB_OWNER=$$
trap '"$lab" down; tap_end' EXIT

# What the pages' installations bring (zenps, its Python package), and the parts that stand in for systemd and for other hosts' ssh.
image=$scratch/image modules=usr/local/lib/$("$python" -c 'import sys; print("python3.%d" % sys.version_info.minor)')/dist-packages
make -s -C "$build" install-binPROGRAMS install-sbinPROGRAMS install-libLTLIBRARIES install-data DESTDIR="$image" prefix=/usr/local >"$scratch/out" 2>&1 ||
  { sed 's/^/# /' "$scratch/out"; echo "Bail out! make install fails"; exit 1; }
mkdir -p "$image/usr/local/lib/zenps-test" "$image/usr/local/bin" "$image/$modules"
cp "$top"/tests/support/{confined,sandbox.py,unit_filter.py,systemctl} "$image/usr/local/lib/zenps-test/"
sed 's#^ExecStart=.*#ExecStart=/usr/local/sbin/zenpsd#; /^Documentation/d' "$top/deploy/systemd/zenpsd.service.in" >"$image/usr/local/lib/zenps-test/zenpsd.service"
for name in systemctl journalctl scp; do ln -s ../lib/zenps-test/systemctl "$image/usr/local/bin/$name"; done
cp -r "$top/worker/python/zenps" "$image/$modules/"
chmod -R u+w "$image"

"$lab" up 6 none || exit 1
pages=("$@")
[ $# -gt 0 ] || pages=(tutorial.md concepts.md trainers.md pytorch.md operating.md metrics.md troubleshooting.md security.md sizing.md tuning.md tcp.md internet.md)
TMPDIR=$scratch "$python" "$top/tests/support/guide" "$LAB_NAME" "$image" c1,s1,s2,w1,w2,s3 "${pages[@]/#/$top/deploy/guide/}"
