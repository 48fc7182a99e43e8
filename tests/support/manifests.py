"""Kubernetes folders, read without kubectl: their objects, and what must hold of those of the base.

  manifests.py FOLDER [RENDERED]   prints what does not hold; RENDERED: what kubectl kustomize made of the folder
  manifests.py --trainer FOLDER    the same of the trainer's folder
  manifests.py --admitted FOLDER...  prints which pods of these folders the namespace's level "restricted" refuses
  manifests.py --schema FOLDER...  prints what Kubernetes' schemas refuse (kubernetes-validate of PyPI)
"""
import os
import shutil
import sys

import yaml

SELECTED_BY = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}


def read(folder):
    """Objects, and config maps as {name: {file: path}}."""
    with open(os.path.join(folder, "kustomization.yaml"), encoding="utf-8") as file:
        kustomization = yaml.safe_load(file)
    objects = []
    for name in kustomization["resources"]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            objects += [thing for thing in yaml.safe_load_all(file) if thing]
    maps = {made["name"]: {text.partition("=")[0]: text.rpartition("=")[2] for text in made["files"]}
            for made in kustomization.get("configMapGenerator", [])}
    return objects, {name: {key: os.path.join(folder, path) for key, path in files.items()} for name, files in maps.items()}


def of(objects, kind):
    return [thing for thing in objects if thing["kind"] == kind]


def pods(objects):
    return {thing["metadata"]["name"]: thing["spec"]["template"] for kind in ("StatefulSet", "Deployment", "Job") for thing in of(objects, kind)}


def selectors(objects):
    """(what selects, labels) of everything that selects pods of ours."""
    for thing in objects:
        name, spec = f"{thing['kind']} {thing['metadata']['name']}", thing.get("spec", {})
        if thing["kind"] == "Service":
            yield name, spec["selector"]
        elif thing["kind"] in ("StatefulSet", "PodDisruptionBudget"):
            yield name, spec["selector"]["matchLabels"]
        if thing["kind"] == "StatefulSet":
            affinity = spec["template"]["spec"].get("affinity", {}).get("podAntiAffinity", {})
            for term in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []):
                yield name + "'s anti-affinity", term["podAffinityTerm"]["labelSelector"]["matchLabels"]


def check_selectors(objects):
    templates = {name: template["metadata"]["labels"] for name, template in pods(objects).items()}
    for what, labels in selectors(objects):
        if set(labels) != SELECTED_BY:
            yield f"{what} selects by {sorted(labels)}"
        chosen = [name for name, template in templates.items() if labels.items() <= template.items()]
        if len(chosen) != 1 or not what.split()[1].startswith(chosen[0]):
            yield f"{what} selects the pods of {chosen}"
    for policy in of(objects, "NetworkPolicy"):
        labels = policy["spec"]["podSelector"].get("matchLabels", {})
        if set(labels) != SELECTED_BY - {"app.kubernetes.io/component"}:
            yield f"NetworkPolicy {policy['metadata']['name']} selects by {sorted(labels)}"
        if not all(labels.items() <= template.items() for template in templates.values()):
            yield f"NetworkPolicy {policy['metadata']['name']} does not cover every pod"


def check_budgets(objects):
    allowed = {thing["metadata"]["name"]: thing["spec"]["maxUnavailable"] for thing in of(objects, "PodDisruptionBudget")}
    if allowed != {"zenps-coordinator": 1, "zenps-server": 1}:
        yield f"disruption budgets are {allowed}"


def check_services(objects):
    services = {thing["metadata"]["name"]: thing["spec"] for thing in of(objects, "Service")}
    for thing in of(objects, "StatefulSet"):
        if services.get(thing["spec"]["serviceName"], {}).get("clusterIP") != "None":
            yield f"{thing['metadata']['name']}: its pods have no names, since its Service is not headless"


def claims(objects, name):
    """Volumes of a pod that outlive it: where they are mounted, by name."""
    made = [claim for thing in of(objects, "StatefulSet") if thing["metadata"]["name"] == name
            for claim in thing["spec"].get("volumeClaimTemplates", [])]
    names = {claim["metadata"]["name"] for claim in made}
    (container,) = pods(objects)[name]["spec"]["containers"]
    return {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] in names}


def check_state(objects, maps):
    """The coordinator's state is on a volume that outlives its pod."""
    with open(maps["zenps-coordinator"]["zenpsd.conf"], encoding="utf-8") as file:
        named = [line.split(" = ")[1].strip() for line in file if line.startswith("state_dir")]
    if named != list(claims(objects, "zenps-coordinator").values()):
        yield f"zenps-coordinator: its state is in {named}, and its claims are {claims(objects, 'zenps-coordinator')}"


def check_probe(name, container, kind, lines):
    probe = container.get(kind)
    if not probe:
        return
    if "exec" in probe:
        command = probe["exec"]["command"]
        if not shutil.which(command[0]):
            yield f"{name}: {kind} runs {command[0]}, which is no program"
        mounted = [mount["mountPath"] for mount in container.get("volumeMounts", []) if not mount.get("readOnly")]
        if command[:2] == ["test", "-e"]:
            if not any(os.path.dirname(command[2]) == path for path in mounted):
                yield f"{name}: {kind} looks for {command[2]}, where no volume is that can be written"
            if not any(line.strip() == f"ready_file = {command[2]}" for line in lines):
                yield f"{name}: {kind} looks for {command[2]}, which its configuration does not name"
    elif probe["tcpSocket"]["port"] not in [port["name"] for port in container["ports"]]:
        yield f"{name}: {kind} asks a port that the container does not name"


def check_token(name, container, volumes, lines):
    """The coordinator, and it alone, has the key of tokens."""
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "token"]
    names_it = [line for line in lines if line.startswith("token_key")]
    if name != "zenps-coordinator":
        if mounts or names_it:
            yield f"{name}: has the key of tokens"
        return
    if volumes.get("token", {}).get("secret") != {"secretName": "zenps-token", "defaultMode": 0o440}:
        yield f"{name}: its key of tokens is in {volumes.get('token')}"
    if names_it != [f"token_key = {at}/token.key\n" for at in mounts] or not mounts:
        yield f"{name}: its configuration does not name the key of tokens in {mounts}"


ADMITTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def check_admitted(name, spec):
    """Kubernetes' Pod Security Standard "restricted", which namespace.yaml enforces, and a little more."""
    if spec.get("enableServiceLinks") is not False:
        yield f"{name}: enableServiceLinks is on"
    if spec.get("automountServiceAccountToken") is not False:
        yield f"{name}: has a token of the API"
    if spec.get("hostNetwork") or spec.get("hostPID") or spec.get("hostIPC"):
        yield f"{name}: is in namespaces of its host"
    user = spec.get("securityContext", {})
    if user.get("runAsNonRoot") is not True or not user.get("runAsUser"):
        yield f"{name}: may be root"
    if user.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield f"{name}: may make any system call"
    for volume in spec.get("volumes", []):
        if not ADMITTED_VOLUMES & set(volume):
            yield f"{name}: volume {volume['name']} is of a kind that is refused"
    for container in spec.get("initContainers", []) + spec["containers"]:
        context = container.get("securityContext", {})
        if (context.get("capabilities") != {"drop": ["ALL"]} or context.get("allowPrivilegeEscalation") is not False
                or context.get("privileged")):
            yield f"{name}: has privileges"
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{name}: can write to its image"


def pod_specs(folder):
    """(name, specification) of all pods of a folder: of each object in its files, whether its kustomization names it or not."""
    for path in sorted(os.listdir(folder)):
        if not path.endswith(".yaml") or path == "kustomization.yaml":
            continue
        with open(os.path.join(folder, path), encoding="utf-8") as file:
            objects = [thing for thing in yaml.safe_load_all(file) if thing]
        for name, template in {**pods(objects), **replicated_jobs(objects)}.items():
            yield f"{path}: {name}", template["spec"]


def replicated_jobs(objects):
    return {f"{thing['metadata']['name']}-{job['name']}": job["template"]["spec"]["template"]
            for thing in of(objects, "JobSet") for job in thing["spec"]["replicatedJobs"]}


def check_pod(name, template, maps):
    spec = template["spec"]
    (container,) = spec["containers"]
    yield from check_admitted(name, spec)
    if name == "zenps-server" and container["resources"]["requests"] != container["resources"]["limits"]:
        yield f"{name}: requests are not limits"
    if "readinessProbe" not in container:
        yield f"{name}: has no readiness probe"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    if volumes["tls"]["secret"] != {"secretName": f"{name}-tls", "defaultMode": 0o440}:
        yield f"{name}: its keys are in {volumes['tls']}"
    with open(maps[volumes["config"]["configMap"]["name"]]["zenpsd.conf"], encoding="utf-8") as file:
        lines = file.readlines()
    at = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "tls")
    for key, file in (("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")):
        if f"{key} = {at}/{file}\n" not in lines:
            yield f"{name}: its configuration does not name {at}/{file}"
    yield from check_token(name, container, volumes, lines)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield from check_probe(name, container, kind, lines)


def check_rendered(objects, path):
    """kubectl must leave the objects as they are, but for the namespace, images and the names of config maps."""
    with open(path, encoding="utf-8") as file:
        rendered = [thing for thing in yaml.safe_load_all(file) if thing]
    names = sorted((thing["kind"], thing["metadata"]["name"]) for thing in rendered if thing["kind"] != "ConfigMap")
    if names != sorted((thing["kind"], thing["metadata"]["name"]) for thing in objects):
        yield f"kubectl makes {names}"
    maps = {thing["metadata"]["name"] for thing in of(rendered, "ConfigMap")}
    used = {volume["configMap"]["name"] for template in pods(rendered).values() for volume in template["spec"]["volumes"]
            if "configMap" in volume}
    if maps != used or len(maps) != 2:
        yield f"pods use the config maps {sorted(used)}, of {sorted(maps)}"
    if any(thing["metadata"].get("namespace") != "zenps" for thing in rendered if thing["kind"] != "Namespace"):
        yield "not everything is in the namespace"
    yield from check_selectors(rendered)


def check_trainer(folder):
    """The JobSet has the pods of the Job, but for the first one's name."""
    objects, _ = read(folder)
    (job,) = of(objects, "Job")
    with open(os.path.join(folder, "jobset.yaml"), encoding="utf-8") as file:
        (jobset,) = yaml.safe_load_all(file)
    (ranks,) = jobset["spec"]["replicatedJobs"]
    set_name = f"{jobset['metadata']['name']}-{ranks['name']}-0-0.{jobset['metadata']['name']}"
    one, other = job["spec"]["template"]["spec"], ranks["template"]["spec"]["template"]["spec"]
    if one.pop("subdomain") not in [thing["metadata"]["name"] for thing in of(objects, "Service")]:
        yield "the Job's pods have no Service"
    for container in other["containers"]:
        container["args"] = [text.replace(set_name, f"{job['metadata']['name']}-0.trainer") for text in container["args"]]
    if one != other:
        yield "the pods of job.yaml and jobset.yaml differ"


def check_schemas(folders):
    import kubernetes_validate
    for folder in folders:
        objects = read(folder)[0]
        jobset = os.path.join(folder, "jobset.yaml")
        if os.path.exists(jobset):  # a kind that Kubernetes itself does not have, made of Jobs
            with open(jobset, encoding="utf-8") as file:
                objects += [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"jobset {job['name']}"}, **job["template"]}
                            for job in yaml.safe_load(file)["spec"]["replicatedJobs"]]
        for thing in objects:
            try:
                kubernetes_validate.validate(thing, "1.31", strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{thing['kind']} {thing['metadata']['name']}: {error.message}"


def main():
    if sys.argv[1] == "--admitted":
        specs = [pod for folder in sys.argv[2:] for pod in pod_specs(folder)]
        found = [text for name, spec in specs for text in check_admitted(name, spec)]
        print("\n".join(found) if found else f"{len(specs)} pods are let in")
        return
    if sys.argv[1] in ("--trainer", "--schema"):
        found = [*(check_trainer(sys.argv[2]) if sys.argv[1] == "--trainer" else check_schemas(sys.argv[2:]))]
        print("\n".join(found) if found else "all holds")
        return
    objects, maps = read(sys.argv[1])
    found = [*check_selectors(objects), *check_budgets(objects), *check_services(objects), *check_state(objects, maps)]
    for name, template in pods(objects).items():
        found += check_pod(name, template, maps)
    if len(sys.argv) > 2:
        found += check_rendered(objects, sys.argv[2])
    print("\n".join(found) if found else f"{len(objects)} objects hold")


if __name__ == "__main__":
    main()
