# Sourced after tap.sh: runs zenpsd.service's process as its unit says, by tests/support/confined, and listens to what it
# tells systemd.
#   unit_needs: what is missing here, or nothing.   unit_prepare UNIT: folders, and the listener.
#   unit NAME ARGUMENTS of confined...: in the background; $pid.   told TEXT: the listener has heard it.
#   unit_rendered VARIABLE=VALUE of make...: the unit as make install writes it for another prefix.
# As root the unit's own paths are $unit_run (/run/zenps) and $unit_etc (its %E), seen from here as $scratch/run and
# $scratch/etc. Without root nothing is mounted, and they are the same.
unit_python=/usr/bin/python3 # Debian's modules are for Debian's python
if [ "$(id -u)" -eq 0 ]; then
  unit_run=/run/zenps unit_etc=/run/etc
  unit_places=(--runtime "$scratch/run" --bind "$scratch/etc:/run/etc" --bind "$scratch/notify:/run/systemd/notify")
  unit_socket=/run/systemd/notify
else
  unit_run=$scratch/run unit_etc=$scratch/etc unit_socket=$scratch/notify
  unit_places=()
fi

unit_needs() {
  command -v systemd-analyze >/dev/null || { echo "systemd-analyze is not installed"; return; }
  "$unit_python" -c 'import seccomp' 2>/dev/null || echo "python3-seccomp is not installed"
}

# The unit as make install writes it, with the build tree's program.
unit_written() {
  sed -e "s#@sbindir@/zenpsd#$build/zenpsd#; /^Documentation/d" "$top/deploy/systemd/zenpsd.service.in"
}

# make only prints the commands of its rule, so the build tree stays as it is.
unit_rendered() {
  mkdir -p "$scratch/rendered" && rm -rf "$scratch/rendered/deploy" &&
    make -s -n -C "$build" -W "$top/deploy/systemd/zenpsd.service.in" srcdir="$top" VPATH="$top" "$@" deploy/systemd/zenpsd.service >"$scratch/rendered/rule" &&
    (cd "$scratch/rendered" && sh -eu rule) >&2 && cat "$scratch/rendered/deploy/systemd/zenpsd.service"
}

unit_prepare() {
  unit_file=$1
  chmod 0711 "$scratch"
  mkdir -p "$scratch/run" "$scratch/etc/zenps" "$scratch/etc/default"
  : >"$scratch/told"
  "$unit_python" -c '
import os, socket, sys
heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
heard.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
while True:
    print(heard.recv(4096).decode(), flush=True)' "$scratch/notify" >"$scratch/told" &
  until_true test -w "$scratch/notify"
}

unit() {
  local name=$1
  shift
  : >"$scratch/told"
  NOTIFY_SOCKET=$unit_socket "$unit_python" "$top/tests/support/confined" "$unit_file" --etc "$unit_etc" ${unit_places[@]+"${unit_places[@]}"} "$@" >"$scratch/$name.out" 2>"$scratch/$name.log" &
  pid=$!
}
told() { grep -q -- "$1" "$scratch/told"; }
