# Images for training and for serving; docs/cloud.md describes their use.
#
#   docker build --target train --tag estimator-det .
#   docker build --target serving --build-arg EXPORT=exported --tag detector .
#
# Every RUN installs packages and does nothing else.

ARG BASE=python:3.11-slim-bookworm
ARG SERVING=tensorflow/serving:2.15.1

# Training, evaluation and export: arguments are flags of model_main.
FROM ${BASE} AS train
# For GPUs: tensorflow[and-cuda]==2.15.1
ARG TENSORFLOW=tensorflow==2.15.1
WORKDIR /opt/estimator-det
# The versions of all packages for Python 3.11 and this TensorFlow; for others /dev/null.
ARG CONSTRAINTS=requirements_lock.txt
COPY requirements_lock.txt ./
RUN pip install --no-cache-dir --constraint "${CONSTRAINTS}" "${TENSORFLOW}"
COPY setup.py pyproject.toml MANIFEST.in LICENSE README.md ./
COPY estimator_det estimator_det
COPY inputs inputs
COPY model_fn model_fn
COPY exporters exporters
RUN pip install --no-cache-dir --constraint "${CONSTRAINTS}" . "${TENSORFLOW}"
# Kubernetes may run it as any user: caches need a folder that all can write to.
ENV HOME=/tmp
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "estimator_det.model_main"]

# TensorFlow Serving with an export of `estimator-det export` as model "detector", version 1.
FROM ${SERVING} AS serving
# The folder of the export, inside the build context.
ARG EXPORT=exported
COPY ${EXPORT}/saved_model /models/detector/1
ENV MODEL_NAME=detector
