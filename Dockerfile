# Trains in a container as a non-root user:
#
#     docker build -t recurrl .
#     mkdir -p outputs        # otherwise Docker creates it as root, and the run cannot write to it
#     docker run --rm --init --gpus all --ipc=host --user "$(id -u):$(id -g)" -v "$PWD/outputs:/app/outputs" \
#         recurrl device=cuda env=gym env.id=...
#
# - Arguments after the image go to `recurrl-train`. For another command: --entrypoint recurrl-evaluate.
# - --ipc=host (or --shm-size=8g): worker processes share weights in /dev/shm. Docker's default of 64 MB may fill up, which
#   kills them with a bus error. A run in a single process needs neither.
# - --init: forwards signals and reaps dead workers, as a container's first process must.
# - --user: any id works, and owns what the run writes. The default is UID, below.
# - wandb reads its key at run time, `-e WANDB_API_KEY`; never put a secret in a build argument or an image.
# - For an environment from another package: `FROM recurrl`, `USER 0`, `RUN pip install <package>`, `USER 1000`.
#
# Without a GPU: docker build --build-arg TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu -t recurrl:cpu .
# Requires BuildKit, the default since Docker 23. scripts/build_image_test.sh builds and runs the image without Docker.

# No CUDA base: torch's wheels bring the CUDA libraries, Triton its assembler, and `--gpus` mounts the driver, so a CUDA
# base would duplicate them. Any Debian or Ubuntu that has or can install Python 3.11 or newer works.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# The compiler stays in the image: Triton compiles a launcher against Python.h when a kernel first runs, and torch.compile
# needs g++ on a CPU. Python itself is installed only if the base lacks it or its headers.
RUN set -eu; \
    packages="ca-certificates g++"; \
    python3 -c 'import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null \
        || packages="$packages python3 python3-dev python3-venv"; \
    apt-get update; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*; \
    python3 -c 'import sys; \
        sys.exit(None if sys.version_info >= (3, 11) else "BASE_IMAGE has no Python 3.11 or newer: choose another")'; \
    python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# Dependencies come before the code, so that changing code does not reinstall them.
# TORCH_INDEX_URL is an extra index for torch: .../whl/cpu for a CPU build, .../whl/cu126 for an older driver. A build of
# torch that names its variant (2.14.1+cpu) wins over the same version from PyPI, which is the CUDA one.
# Behind a private index: docker build --secret id=pip.conf,src=$HOME/.config/pip/pip.conf .  No layer keeps that file.
ARG TORCH_INDEX_URL=""
ARG EXTRAS="popgym,tensorboard"
WORKDIR /usr/src/recurrl
COPY pyproject.toml ./
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    set -eu; \
    python -c 'import os, tomllib; \
        p = tomllib.load(open("pyproject.toml", "rb")); \
        extras = p["project"]["optional-dependencies"]; \
        extras = [r for e in os.environ["EXTRAS"].split(",") if e for r in extras[e]]; \
        print(*p["build-system"]["requires"], *p["project"]["dependencies"], *extras, sep="\n")' \
        > /tmp/requirements.txt; \
    pip install ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} \
        "$(grep '^torch[^a-z]' /tmp/requirements.txt)"; \
    pip install -r /tmp/requirements.txt; \
    rm /tmp/requirements.txt

# The code itself needs no index.
COPY README.md LICENSE ./
COPY recurrl recurrl
COPY hydra_plugins hydra_plugins
COPY configs configs
RUN pip install --no-index --no-deps --no-build-isolation . && rm -rf build ./*.egg-info
WORKDIR /app

# Any user can write to the folders that a run writes to, for `--user` and for clusters that assign the id.
# -o: Ubuntu's base already has a user 1000. USER is a number because Kubernetes' runAsNonRoot cannot check a name.
ARG UID=1000
RUN useradd -o -u "$UID" -d /home/recurrl -M -s /usr/sbin/nologin recurrl \
    && install -d -m 1777 /app/outputs /home/recurrl /home/recurrl/.cache /home/recurrl/.cache/triton \
        /home/recurrl/.cache/torchinductor /home/recurrl/.cache/matplotlib
# USER and LOGNAME: an id that is not in /etc/passwd has no name, and Python's getpass.getuser() would raise.
# NVIDIA_DRIVER_CAPABILITIES: the parts of the driver that `--gpus` mounts; CUDA bases set it, others do not.
ENV HOME=/home/recurrl \
    USER=recurrl \
    LOGNAME=recurrl \
    TRITON_CACHE_DIR=/home/recurrl/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/recurrl/.cache/torchinductor \
    MPLCONFIGDIR=/home/recurrl/.cache/matplotlib \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1
USER ${UID}
VOLUME /app/outputs
# The signal of Ctrl-C: `docker stop` and a cluster's eviction then end a run as interrupted, with a summary.
STOPSIGNAL SIGINT
ENTRYPOINT ["recurrl-train"]
