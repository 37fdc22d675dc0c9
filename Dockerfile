# Images for training and for serving; docs/cloud.md describes their use.
#
#   docker build --target train --tag estimator-det .
#   docker build --target serving --build-arg EXPORT=exported --tag detector .
#
# Every RUN installs packages and does nothing else.

ARG BASE=python:3.11-slim-bookworm
ARG SERVING=tensorflow/serving:2.15.1

# Training, evaluation and export: `docker run estimator-det train …`.
FROM ${BASE} AS train
WORKDIR /opt/estimator-det
# A change of code keeps the layers of these three.
COPY requirements_lock.txt ./
RUN pip install --no-cache-dir --require-hashes --requirement requirements_lock.txt
# For GPUs: tensorflow[and-cuda]==2.15.1. The layer above is the same for both.
ARG TENSORFLOW=tensorflow
RUN pip install --no-cache-dir "${TENSORFLOW}"
RUN apt-get update && apt-get install --yes --no-install-recommends libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/*
# Steps take less time than with glibc's allocator.
ENV LD_PRELOAD=libtcmalloc_minimal.so.4
COPY setup.py pyproject.toml LICENSE NOTICE README.md ./
COPY estimator_det estimator_det
COPY inputs inputs
COPY model_fn model_fn
COPY exporters exporters
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
# Extras of pyproject.toml with commas between, such as serve,onnx. pip takes no checksums for them.
ARG EXTRAS=
COPY requirements_extras_lock.txt ./
RUN [ -z "${EXTRAS}" ] || grep == requirements_extras_lock.txt | tr -d '\\' \
    | pip install --no-cache-dir --constraint /dev/stdin "estimator-det[${EXTRAS}]" "${TENSORFLOW}"
# `docker run --user` and Kubernetes may choose another: caches are where all can write to.
USER 1000:1000
ENV HOME=/tmp
WORKDIR /tmp
# model_main: docker run --entrypoint python estimator-det -m estimator_det.model_main …
ENTRYPOINT ["estimator-det"]

# TensorFlow Serving with an export of `estimator-det export` as model "detector", version 1.
FROM ${SERVING} AS serving
# The folder of the export, inside the build context.
ARG EXPORT=exported
COPY ${EXPORT}/saved_model /models/detector/1
ENV MODEL_NAME=detector
