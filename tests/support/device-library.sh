# shellcheck shell=bash
# Sourced after tap.sh by scripts that use a GPU: the library that ZENPS_DEVICE_LIBRARY names, a real one, or the emulated
# device of this build; has_device is "no" where there is neither.
has_device=yes
if [ -z "${ZENPS_DEVICE_LIBRARY-}" ]; then
  if [ -e "$build/.libs/libzenps_emu.so" ]; then
    export ZENPS_DEVICE_LIBRARY="$build/.libs/libzenps_emu.so"
  else
    has_device=no
    echo "# no C++17 compiler: only what a host without a device does is tested"
  fi
fi
