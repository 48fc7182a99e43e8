#!/usr/bin/env bash
# attacks.sh against a coordinator that speaks TLS: handshakes held open, slow, and broken; junk; floods by the owner of a
# worker's certificate, and calls that are others'.
ZPS_ATTACK_TLS=yes
. "$(dirname "$0")/attacks.sh"
