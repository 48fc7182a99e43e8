#!/usr/bin/env bash
# Signals are the program's: neither libzenps, however it is loaded, nor the fabric's libraries below it take any over; the
# daemon catches its own alone.
. "$(dirname "$0")/../support/tap.sh"
library=$build/.libs/libzenps.so
# Where sanitizers are built in, these would take signals over.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}handle_segv=0:handle_abort=0:handle_sigbus=0:handle_sigill=0:handle_sigfpe=0"
cd "$scratch" || exit 1
if nm -D "$library" | grep -q __tsan_; then
  skip "signals stay the program's" "the thread sanitizer puts handlers of its own in front of all others"
  done_testing
  exit
fi

address_file=$scratch/address
zenpsd --control-listen=127.0.0.1:0 --control-address-file="$address_file" --log-level=warn >"$scratch/log" 2>&1 &
daemon=$!
until_true test -s "$address_file"
export ZENPS_COORDINATOR
ZENPS_COORDINATOR=$(cat "$address_file")
# HUP, INT and TERM; 32 and 33 are libc's own.
caught() { printf '%x' $((0x$(awk '$1 == "SigCgt:" { print $2 }' "/proc/$1/status") & ~0x180000000)); }
is "zenpsd catches what it handles and no more" "$(caught "$daemon")" 4003
quiet="ok loaded
ok open
ok closed"
is "a trainer linked with the library" "$("$build/tests/integration/signals_linked")" "$quiet"
is "one that loads it, with handlers of its own" "$("$build/tests/integration/signals_loading" "$library")" "$quiet
ok unloaded"
is "one that it is preloaded into" "$(LD_PRELOAD=$library "$build/tests/integration/signals_loading" "$library")" "$quiet
ok unloaded"
is "one with shared memory as its fabric" "$(zenpsrun -n 1 -p shm --prefix=no -- "$build/tests/integration/signals_linked")" "$quiet"
zenpsrun -n 1 -- sh -c 'echo $PPID >tool; until [ -e seen ]; do sleep 0.1; done' &
tool=$!
until_true test -s tool
is "zenpsrun catches nothing" "$(caught "$(cat tool)")" 0
touch seen
wait "$tool"
python="Python, with faulthandler"
if nm -D "$library" | grep -qE '__(asan|tsan)_'; then
  skip "$python" "it cannot load a library with sanitizers"
elif command -v python3 >/dev/null && python3 -c 'import ctypes' 2>/dev/null; then
  is "$python" "$(python3 "$top/tests/integration/signals.py" "$library" open 2>&1)" "$quiet"
  python3 "$top/tests/integration/signals.py" "$library" wait >"$scratch/out" 2>&1 &
  trainer=$!
  until_true grep -q interrupted "$scratch/out"
  kill -TERM "$trainer"
  wait "$trainer"
  is "$python: SIGTERM ends it, by that signal" $? 143
  is "$python: SIGINT interrupts it as ever" "$(cat "$scratch/out")" "ok loaded
ok interrupted"
else
  skip "$python" "no python3 with ctypes"
fi
is "no file is left in the working directory" "$(ls "$scratch" | grep -c 'btr$')" 0
kill -TERM "$daemon"
wait "$daemon"
is "SIGTERM ends the daemon with status 0" $? 0
done_testing
