# One image for a site, for the server and for simulations; the command says which.
#
#   docker build -t fedtilt .                                                                     CPU
#   docker build -t fedtilt:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 . CUDA
#   docker run --rm -v "$PWD/runs:/work/runs" fedtilt fedtilt run
#   docker run --rm --gpus all -v "$PWD/runs:/work/runs" fedtilt:cuda fedtilt run --device cuda
#
# A site or a server keeps its keys, state and runs in /var/lib/fedtilt: docs/deployment.md has the commands.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /source
RUN pip install --no-cache-dir hatchling==1.33.0
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# the fast kernels are compiled on first use: those in C on a CPU, and Triton's driver on CUDA
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -r /var/lib/apt/lists/*
COPY requirements.lock /tmp/
# torch first, from its own index: the lock then finds it installed, without the CUDA packages on a CPU
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" --extra-index-url https://pypi.org/simple \
      "$(grep '^torch==' /tmp/requirements.lock)"
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir -c /tmp/requirements.lock "$(ls /tmp/wheels/*.whl)[flower,report]" \
    && rm -r /tmp/wheels /tmp/requirements.lock
RUN useradd --create-home --uid 10001 fedtilt \
    && install -d -o fedtilt -g fedtilt -m 700 /var/lib/fedtilt /work
ENV FLWR_HOME=/var/lib/fedtilt/flwr \
    FLWR_TELEMETRY_ENABLED=0 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1
USER 10001
WORKDIR /work
CMD ["fedtilt", "--help"]
