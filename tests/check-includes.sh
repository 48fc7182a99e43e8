#!/usr/bin/env bash
# The include rules: the folders whose headers each folder may include, and the foreign headers that only one place may
# include. TAP.
set -u
cd "${ZPS_TOP_SRCDIR:-$(dirname "$0")/..}" || exit 1
n=0 bad=0
result() { # NAME OFFENDERS: passes when there are none
  n=$((n + 1))
  if [ -z "$2" ]; then
    echo "ok $n - $1"
  else
    bad=$((bad + 1))
    echo "not ok $n - $1"
    printf '%s\n' "$2" | sed 's/^/# /'
  fi
}
sources() { find "$@" \( -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu*' \) ! -name '*.pb-c.*' 2>/dev/null; }

# may FOLDER ALLOWED...: headers of ours that FOLDER includes lie in FOLDER itself, in the folder around it or in ALLOWED.
ours='^ *# *include *"(common|proto|gpu|server|worker|tests)/'
folders=()
may() {
  local allowed
  folders+=("$@")
  allowed=$(printf '|%s' "$@" "$(dirname "$1")")
  result "$1 includes only what its line allows" "$(sources "$1" -maxdepth 1 |
    xargs -r grep -HnE "$ours" | grep -vE "include *\"(${allowed:1})/[^/\"]*\"")"
}
# shellcheck disable=SC1091
. tests/support/floors.sh
result "every folder of a line is there" "$(for folder in "${folders[@]}"; do [ -d "$folder" ] || echo "$folder"; done)"
result "every folder has a line" "$(sources common proto gpu server worker | sed 's#/[^/]*$##' | sort -u |
  grep -vxF "$(printf '%s\n' "${folders[@]}")")"

# only PATTERN-OF-FILES HEADER-PATTERN NAME: a foreign header is seen by those files alone.
only() {
  result "$3" "$(sources common proto gpu server worker | grep -vE "$1" | xargs -r grep -HnE "^ *# *include *[<\"]$2")"
}
only '^common/net/ofi/' 'rdma/' "libfabric is seen by common/net/ofi alone"
only '^(common/control|server)/' 'uv\.h' "libuv is seen by common/control and the daemon's loop alone"
only '^common/control/json\.c$' 'jansson' "jansson is seen by common/control/json.c alone"
only '^(common/(token/|tls/|session/mac\.c$)|server/state/etcd_wire\.c$)' 'openssl/' "OpenSSL is seen by common/token, common/tls, common/session/mac.c and server/state/etcd_wire.c alone"
only '^common/session/mac\.c$' 'sodium' "libsodium is seen by common/session/mac.c alone"
only '^proto/' '(protobuf-c/|[a-z/]*zenps\.pb-c)' "protobuf-c is seen by proto alone"
only '^common/base/config' '(ini\.h|getopt\.h)' "option files and flags are parsed by common/base/config* alone"
only '^gpu/cuda/' 'cuda' "CUDA is seen by gpu/cuda alone"
only '^server/(shard|daemon)/' 'server/shard/' "the data plane is seen by the daemon alone"
only '^server/state/etcd_http\.c$' 'curl/' "libcurl is seen by server/state/etcd_http.c alone"
only '^server/ctl/export_http\.c$' '(microhttpd\.h|gnutls/)' "libmicrohttpd and GnuTLS are seen by server/ctl/export_http.c alone"
only '^server/daemon/systemd\.c$' 'systemd/' "libsystemd is seen by server/daemon/systemd.c alone"

# The public headers stand alone.
result "public headers include only standard headers and each other" \
  "$(grep -Hn '^ *# *include' worker/include/zenps/*.h | grep -vE '<(stddef\.h|stdint\.h|stdbool\.h|zenps/[a-z_]+\.h)>')"

# Cycles between headers would make the order of includes matter.
result "every header has a guard" "$(for f in $(find common proto gpu server worker -name '*.h' ! -name '*.pb-c.h'); do
  grep -qE '^#ifndef (ZPS|ZENPS)_[A-Z0-9_]+_H$' "$f" || echo "$f"; done)"

echo "1..$n"
[ "$bad" -eq 0 ]
