#!/usr/bin/env bash
# Builds the Dockerfile for the CPU on a bare Debian and trains in it as its user. With buildah, no Docker engine.
#
#     scripts/build_image_test.sh        # as root, on Debian or Ubuntu; some minutes, and GB in $TMPDIR that go again
#
# The build sees the package registries as this machine does: Debian's mirror with apt's settings, and pip's
# configuration with the local folders and the certificates that it names. MIRROR and TORCH_INDEX_URL choose others.
set -euo pipefail

readonly SUITE=bookworm
CA_BUNDLE=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '\n[%4ds] %s\n' "$SECONDS" "$*"; }
fail() { printf 'image test failed: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "it makes a root file system, so it needs root: sudo $0"

if ! command -v buildah >/dev/null || ! command -v debootstrap >/dev/null; then
    say "installing buildah and debootstrap"
    command -v apt-get >/dev/null || fail "install buildah and debootstrap first; without apt-get this script can't"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        buildah debootstrap debian-archive-keyring
fi

# --- a place of its own, and nothing left of it -----------------------------------------------------------------------
WORK=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/recurrl-image-XXXXXX")")
chmod 755 "$WORK" # the image's user passes through it on the way to its outputs

# buildah also remembers which blobs it saw, in a folder that no option moves.
blob_cache=/var/lib/containers/cache
[ ! -e $blob_cache ] || blob_cache=

# overlay needs a kernel module and a container can't always have it; vfs copies, and works everywhere.
b() { buildah --storage-driver vfs --root "$WORK/storage" --runroot "$WORK/run" "$@"; }

clean_up() {
    local status=$?
    trap - EXIT
    set +e # whatever is not there to be removed, the rest is
    say "cleaning up"
    b umount --all >/dev/null 2>&1
    b rm --all >/dev/null 2>&1
    grep -o " $WORK/[^ ]*" /proc/mounts | sort -r | while read -r mount; do umount "$mount" || umount -l "$mount"; done
    # With this machine's own folders still mounted inside, their contents would go too.
    if grep -q " $WORK/" /proc/mounts; then fail "cleaning up: something is still mounted in $WORK, which stays"; fi
    rm -rf --one-file-system "$WORK" ${blob_cache:+"$blob_cache"}
    [ "$status" != 0 ] || printf '\nimage test passed\n'
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- what the build must know of this machine -------------------------------------------------------------------------
# pip.conf: all of pip's configuration, its files and the PIP_* variables, in one file, and the versions that CI tests.
# volumes: what that refers to.
touch "$WORK/pip.conf" "$WORK/volumes"
chmod 600 "$WORK/pip.conf" # the address of an index may hold a password
python3 - "$WORK/pip.conf" "$WORK/volumes" "$ROOT/.ci/constraints.txt" <<'PYTHON'
import ast, pathlib, subprocess, sys

KEPT = {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "timeout", "retries", "cert"}
CERTIFICATES, CONSTRAINTS = "/etc/host-ca.crt", "/etc/host-constraints.txt"

listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, text=True).stdout
options, volumes = {"constraint": [CONSTRAINTS]}, {CONSTRAINTS: sys.argv[3]}
for line in sorted(listing.splitlines(), key=lambda line: line.startswith(":env:")):  # the variables overrule the files
    name, _, value = line.partition("=")
    key = name.rpartition(".")[2].removeprefix("default-")
    if key in KEPT:
        options[key] = ast.literal_eval(value).split()

if "cert" in options:
    volumes[CERTIFICATES] = options["cert"][0]
    options["cert"] = [CERTIFICATES]
for key in options.keys() & {"index-url", "extra-index-url", "find-links"}:
    for place in options[key]:
        folder = pathlib.Path(place.removeprefix("file://"))
        if folder.is_absolute() and folder.exists():
            # The pages of an index may link to files beside its folder.
            folder = folder if key == "find-links" or folder.parent == pathlib.Path("/") else folder.parent
            volumes[str(folder)] = str(folder)

conf, volume_lines = (pathlib.Path(path) for path in sys.argv[1:3])
conf.write_text("[global]\n" + "".join(f"{key} = {' '.join(values)}\n" for key, values in options.items()))
volume_lines.write_text("".join(f"{source}:{target}:ro\n" for target, source in volumes.items()))
PYTHON
volumes=()
torch_index_url=${TORCH_INDEX_URL-https://download.pytorch.org/whl/cpu}
while read -r volume; do
    volumes+=(--volume "$volume")
    # A folder that pip already looks in has the CPU build: no need of an index that this machine may not reach.
    if compgen -G "${volume%%:*}/torch-*+cpu-*.whl" >/dev/null; then torch_index_url=${TORCH_INDEX_URL-}; fi
done <"$WORK/volumes"

# shellcheck disable=SC2016 # apt-get fills these in
own_mirror=$(apt-get indextargets --format '$(RELEASE) $(SITE)' 'Created-By: Packages' |
    awk -v suite=$SUITE '$1 == suite && !seen++ { print $2 }')
mirror=${MIRROR:-${own_mirror:-http://deb.debian.org/debian}}

# --- the base ---------------------------------------------------------------------------------------------------------
say "making a bare Debian $SUITE from $mirror"
base=$(b from scratch)
rootfs=$(b mount "$base")
debootstrap --variant=minbase "$SUITE" "$rootfs" "$mirror" >"$WORK/debootstrap.log" 2>&1 ||
    { tail -20 "$WORK/debootstrap.log"; fail "debootstrap; its last lines are above"; }
apt-config dump | grep -E '^Acquire::(http|https|Retries|Check-Valid-Until|Check-Date|ForceIPv4)' \
    >"$rootfs/etc/apt/apt.conf.d/99host" || true
if [[ $mirror == https:* && -f $CA_BUNDLE ]]; then
    cp "$CA_BUNDLE" "$rootfs/etc/apt/host-ca.crt"
    echo 'Acquire::https::CAInfo "/etc/apt/host-ca.crt";' >>"$rootfs/etc/apt/apt.conf.d/99host"
fi
echo "base: $(du -sh --one-file-system "$rootfs" | cut -f1)"
b umount "$base" >/dev/null
b commit --quiet --rm "$base" localhost/bare-debian >/dev/null

# --- the image --------------------------------------------------------------------------------------------------------
say "building the image (CPU)"
b bud --isolation chroot --network host --pull-never --secret "id=pip.conf,src=$WORK/pip.conf" "${volumes[@]}" \
    --build-arg BASE_IMAGE=localhost/bare-debian --build-arg "TORCH_INDEX_URL=$torch_index_url" \
    --tag localhost/recurrl "$ROOT" 2>&1 | tee "$WORK/build.log" | grep --line-buffered -o '^STEP [0-9/]*: .\{0,90\}' ||
    { tail -40 "$WORK/build.log"; fail "the build; its last lines are above"; }

image=$(b from --pull-never localhost/recurrl)
echo "image: $(du -sh --one-file-system "$(b mount "$image")" | cut -f1)"
b umount "$image" >/dev/null
user=$(b inspect --format '{{.OCIv1.Config.User}}' "$image")
entrypoint=$(b inspect --format '{{index .OCIv1.Config.Entrypoint 0}}' "$image")
inside_as() { b run --isolation chroot --user "$1" "$image" -- "${@:2}"; }
inside() { inside_as "$user" "$@"; }

# --- what a user does with it -----------------------------------------------------------------------------------------
say "looking around inside, as user $user"
uid=$(inside id -u)
[ "$uid" != 0 ] || fail "the image's user is root"
[ "$(inside pwd)" = /app ] || fail "the working directory is not /app"
# shellcheck disable=SC2016 # the variables are the image's
for anyone in "$user" 4321:4321; do
    inside_as "$anyone" sh -euc '
        for folder in /app/outputs "$HOME" "$TRITON_CACHE_DIR" "$TORCHINDUCTOR_CACHE_DIR" "$MPLCONFIGDIR"; do
            mkdir "$folder/of-$(id -u)"
        done
        python -c "import getpass; getpass.getuser()"' || fail "user $anyone can not run in it"
done
inside python -c '
import os, subprocess, sysconfig, torch
assert torch.version.cuda is None, f"torch {torch.__version__} is not a CPU build"
source = "/tmp/launcher.c"
open(source, "w").write("#include <Python.h>\n")
subprocess.run(["gcc", "-c", source, "-o", "/tmp/launcher.o", "-I", sysconfig.get_path("include")], check=True)
print("torch", torch.__version__, "and a C compiler with Python.h, as user", os.getuid())'

say "training two iterations: $entrypoint"
install -d -o "$uid" "$WORK/outputs"
b run --isolation chroot --user "$user" --volume "$WORK/outputs:/app/outputs" "$image" -- \
    "$entrypoint" total_frames=2048 frames_per_batch=1024 evaluation.episodes=2
summary=$(find "$WORK/outputs" -name summary.json)
[ -n "$summary" ] || fail "no summary.json under outputs"
python3 - "$summary" "$uid" <<'PYTHON' || fail "that is not a completed run of user $uid"
import json, os, sys

path, uid = sys.argv[1], int(sys.argv[2])
summary = json.load(open(path))
print(json.dumps(summary, indent=1))
assert summary["status"] == "completed", summary["status"]
assert summary["frames"] == 2048, summary["frames"]
assert os.stat(path).st_uid == uid != 0, os.stat(path).st_uid
PYTHON
