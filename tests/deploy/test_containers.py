"""Files for containers and for a Ray cluster: valid, with commands that run; containers without root, which write to
their volumes only."""

import fnmatch
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from commands import output_of

ROOT = Path(__file__).parents[2]
KUBERNETES = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
OUTPUTS, HOME = "/app/outputs", "/home/recurrl"
WRITABLE = {OUTPUTS, HOME, "/tmp"}
RAY = (ROOT / "deploy" / "ray" / "cluster.yaml").read_text(encoding="utf-8")
by_name = pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
by_service = pytest.mark.parametrize("service", COMPOSE["services"].values(), ids=COMPOSE["services"])


def documents(path):
    """The documents of a file by their kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))}


def test_what_the_image_copies_is_not_ignored():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in lines if line.startswith("!")]
    copied = [word for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.M) for word in line.split()[:-1]]
    assert "hydra_plugins" in copied
    assert [word for word in copied if not any(fnmatch.fnmatch(word, pattern) for pattern in allowed)] == []


@by_name
def test_kubernetes_takes_the_file(path):
    validation = pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate")
    for document in documents(path).values():
        validation.validate(document, validation.latest_version(), strict=True)


@by_name
def test_a_pod_has_no_root_writes_to_its_volumes_only_and_limits_its_gpu(path):
    pod = documents(path)["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    allowed = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == allowed
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {*WRITABLE, "/dev/shm"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


@by_name
def test_a_pod_that_ends_is_replaced_and_continues_in_the_same_claim(path):
    by_kind = documents(path)
    job, pod = by_kind["Job"]["spec"], by_kind["Job"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert job["backoffLimit"] > 0
    ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert ignored in job["podFailurePolicy"]["rules"]
    claims = {each["persistentVolumeClaim"]["claimName"] for each in pod["volumes"] if "persistentVolumeClaim" in each}
    assert claims == {by_kind["PersistentVolumeClaim"]["metadata"]["name"]}
    arguments = pod["containers"][0]["args"]
    assert "resume=auto" in arguments
    assert any(each.startswith("hydra.run.dir=outputs/") for each in arguments)


def test_the_pods_of_an_indexed_job_find_the_first():
    by_kind = documents(ROOT / "deploy" / "kubernetes" / "torchrun.yaml")
    job, service = by_kind["Job"], by_kind["Service"]
    pod, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    arguments = pod["containers"][0]["args"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert "--nnodes=2" in arguments
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", {"job-name": name})
    assert pod["subdomain"] == service["metadata"]["name"]
    assert f"--master-addr={name}-0.{pod['subdomain']}" in arguments
    gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus}" in arguments


@by_name
def test_the_arguments_of_a_pod_configure_a_run(recurrl_train, tmp_path, path):
    (container,) = documents(path)["Job"]["spec"]["template"]["spec"]["containers"]
    words = container["args"]
    settings = words[words.index("recurrl") + 1 :] if "recurrl" in words else words  # after those of torchrun
    recurrl_train(*settings, "--cfg", "job", cwd=tmp_path).succeeded()


def test_the_command_for_a_ray_cluster_configures_a_run(recurrl_train, tmp_path):
    (command,) = re.findall(r"# +ray exec --tmux \S+ '(.*)'", re.sub(r"\\\n#\s*", "", RAY))
    program, *words = shlex.split(command)
    assert program == "recurrl-train"
    recurrl_train(*words, "--cfg", "job", cwd=tmp_path).succeeded()


@pytest.mark.slow
def test_ray_takes_the_file():
    util = pytest.importorskip("ray.autoscaler._private.util", reason="needs pip install 'recurrl[ray]'")
    util.validate_config(util.prepare_config(yaml.safe_load(RAY)))


@by_service
def test_a_service_has_no_root_and_writes_to_its_volumes_only(service):
    assert re.fullmatch(r"\$\{UID:-[1-9]\d*\}:\$\{GID:-[1-9]\d*\}", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    mounts = [each.rpartition(":")[2] for each in service["volumes"]]
    # Kernels compiled at run time are loaded from these, which Docker mounts noexec by default.
    places = dict(each.split(":") for each in service["tmpfs"])
    assert {*mounts, *places} == WRITABLE
    assert all({"mode=1777", "exec"} <= set(options.split(",")) for options in places.values())


COMMANDS = ["recurrl-train", "torchrun --standalone --nproc-per-node 2 -m recurrl", "recurrl-evaluate outputs/run"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_need_no_other_place_to_write_to(tiny, tmp_path, finished_run, command):
    outputs, home = tmp_path / "outputs", tmp_path / "home"
    outputs.mkdir()
    home.mkdir()
    program, *rest = shlex.split(command)
    words = [str(Path(sys.executable).parent / program), *rest]
    if program == "torchrun":
        words = [sys.executable, "-m", "torch.distributed.run", *rest]
    if program == "recurrl-evaluate":
        shutil.copytree(finished_run, outputs / "run")
    else:
        words += [*tiny, "backend=native", "hydra.run.dir=outputs/run"]
    variables = {name: f"{home}{place}" for name, place in re.findall(rf"(\w+)={HOME}(\S*)", DOCKERFILE)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RECURRL_", "XDG_"))}
    env = kept | variables | {"OMP_NUM_THREADS": "1"}
    output_of([*_read_only_but(outputs, home), *words], cwd=tmp_path, env=env, timeout=300)


def _read_only_but(outputs, home):
    """What to write before a command for it to see a file system that it cannot write to elsewhere."""
    script = (
        'mount --bind "$0" "$0" && mount -t tmpfs none "$1" && mount -t tmpfs none /dev/shm && '
        'for place in / /tmp; do mountpoint -q "$place" && mount -o remount,bind,ro "$place"; done; '
        'export TMPDIR="$1"; ! touch "$0/../elsewhere" 2>/dev/null && shift 2 && exec "$@"'
    )
    return ["unshare", "--map-root-user", "--mount", "bash", "-c", script, str(outputs), str(home), "--"]
