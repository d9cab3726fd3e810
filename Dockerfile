# docker build -t ftcli . && docker run --rm -v "$PWD:/data" ftcli tokenize corpus --tokenizer-path tokenizer --output-dir prepared
# For a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130, then docker run --gpus all. Several loader processes want --shm-size 1g.
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# --torch-compile: a C++ compiler for CPUs, a C compiler for GPUs
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt ./
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE optimize_env.sh ./
COPY src src
COPY plugins plugins
COPY profiles profiles
RUN pip install --no-cache-dir --constraint constraints.txt ".[peft]" && useradd --create-home ftcli
USER ftcli
WORKDIR /data
ENTRYPOINT ["ftcli"]
