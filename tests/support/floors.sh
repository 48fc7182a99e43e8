# shellcheck shell=bash
# The floors of zenps: its folders, from the lowest up. check-rooms.sh and check-includes.sh source this file, each with a
# may() of its own.
#   may FOLDER ALLOWED...   files of FOLDER call and include what lies in FOLDER itself and in ALLOWED, and nothing else
# ALLOWED are folders of lines above; only gpu/cuda and tests/gpu/emu, one source of kernels for two machines, see each other.
# A sub-folder has a line of its own: it may include headers of the folder around it, and calls nothing there.

may common/base
may common/token common/base
may common/tls common/base
may common/net/ofi common/base
may common/net/tls common/base common/tls common/net/ofi
may common/net common/base common/net/ofi common/net/tls
may common/control common/base common/tls
may common/codec/simd common/base
may common/codec common/base common/codec/simd
may common/plan common/base common/codec
# Messages of the control plane are JSON, and speak of tensors, fabrics and schemes.
may proto common/base common/codec common/control common/net common/plan
may common/session common/base common/net proto
may gpu common/base common/codec
may gpu/cuda common/base common/codec gpu tests/gpu/emu
may tests/gpu/emu common/base gpu/cuda
may tests/gpu/bench common/base common/codec gpu gpu/cuda tests/support worker/select

may server/shard common/base common/codec common/net common/session proto
may server/state common/base common/control
may server/membership common/base common/codec common/plan proto
may server/coordinator common/token common/tls common/base common/codec common/control common/plan proto server/state server/membership
may server/daemon common/token common/tls common/base common/codec common/control common/net proto server/shard server/state server/coordinator server/membership
may server/ctl common/token common/tls common/base common/codec common/control common/plan server/state server/coordinator server/membership

may worker/include/zenps
may worker/base common/base common/codec
may worker/select common/base common/codec
below="common/base common/codec worker/base worker/select"
may worker/sparsify gpu $below
may worker/control common/tls common/control common/net common/plan proto $below
may worker/schemes common/plan $below
may worker/compute common/codec/simd worker/schemes $below
below="$below common/control common/net common/plan common/session proto worker/control worker/compute worker/schemes"
may worker/plane/shared $below
may worker/plane $below worker/plane/shared
below="$below worker/plane worker/plane/shared"
may worker/round $below
below="$below worker/round"
may worker/device gpu $below
below="$below worker/device"
may worker/served $below
may worker/peer $below
below="$below worker/served worker/peer"
may worker/choice $below
may worker/api $below worker/choice
may worker/tools common/token common/tls common/base common/codec common/control common/plan gpu worker/select
may worker/examples common/base common/codec common/plan worker/tools
