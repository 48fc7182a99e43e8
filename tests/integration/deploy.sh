#!/usr/bin/env bash
# What is shipped for systemd and Kubernetes, as far as a machine without them can tell.
. "$(dirname "$0")/../support/tap.sh"

unit=$scratch/zenpsd.service
sed -e "s#@sbindir@/zenpsd#$build/zenpsd#; s#@sysconfdir@#/etc#; /^Documentation/d" "$top/deploy/systemd/zenpsd.service.in" >"$unit"
if command -v systemd-analyze >/dev/null; then
  ok "systemd: the unit is valid" systemd-analyze verify "$unit"
  is "systemd: without a warning" "$(cat "$scratch/out")" ""
  ok "systemd: exposure below 2 of 10" systemd-analyze security --offline=true --threshold=20 "$unit"
  mkdir "$unit.d" && cp "$top/deploy/systemd/rdma.conf" "$unit.d/"
  ok "systemd: valid with the drop-in for RDMA devices" systemd-analyze verify "$unit"
else
  skip "systemd: the unit" "systemd-analyze is not installed"
fi

if command -v kubectl >/dev/null; then
  ok "kubernetes: the base builds" kubectl kustomize "$top/deploy/k8s/base"
  cp "$scratch/out" "$scratch/all.yaml"
  is "kubernetes: objects" "$(grep -c '^kind:' "$scratch/all.yaml")" 9
  is "kubernetes: nobody runs as root" "$(grep -c 'runAsNonRoot: true' "$scratch/all.yaml")" "$(grep -c '^kind: StatefulSet' "$scratch/all.yaml")"
else
  skip "kubernetes: the base" "kubectl is not installed"
fi
ok "systemd: zenpsd accepts the sample configuration" zenpsd --config="$top/deploy/systemd/zenpsd.conf" --check
# The daemon itself must take what the config maps say.
for role in coordinator server; do
  ok "kubernetes: zenpsd accepts $role.conf" zenpsd --config="$top/deploy/k8s/base/$role.conf" --check
done

done_testing
