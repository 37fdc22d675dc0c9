"""Installs estimator-det: `pip install -e .[test]` for a developer, `pip install .` for a user."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent


def version():
    """The version in estimator_det/__init__.py, read as text: nothing is imported to build."""
    text = (HERE / "estimator_det" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


def description():
    readme = HERE / "README.md"
    return readme.read_text(encoding="utf-8") if readme.is_file() else ""


def plugins():
    """Modules of a user that `estimator-det submit` adds to the package of a job."""
    names = HERE / "plugins.txt"
    return names.read_text(encoding="utf-8").split() if names.is_file() else []


# Reasons: docs/dependencies.md.
REQUIRED = [
    "absl-py>=1.4",
    "google-cloud-storage>=3.0",
    "google-crc32c>=1.5",
    "jinja2>=3.1",
    "matplotlib>=3.7",
    "numpy>=1.23.5",
    "pillow>=9.5",
    "pooch>=1.7",
    "protobuf>=4.24.4",
    "pycocotools>=2.0.6",
    "pyyaml>=6.0.1",
    "requests>=2.19",
    "tensorboard>=2.15",
    "tensorflow>=2.15.1,<2.22",
    "tensorflow-estimator==2.15.0",
    "tf-keras>=2.15.1,<2.22",
    "tf-slim==1.1.0",
    "tqdm>=4.64",
]

# Pinned, so that a check means the same everywhere. Python 3.9 and 3.10 run the tests; tools that
# read the sources need a newer one.
TEST = [
    'gcp-storage-emulator==2026.7.19; python_version >= "3.10"',
    'import-linter==2.16; python_version >= "3.11"',
    'mypy==2.4.1; python_version >= "3.10"',
    'pytest==9.2.0; python_version >= "3.10"',
    'pytest==8.4.2; python_version < "3.10"',
    'pytest-rerunfailures==16.7; python_version >= "3.10"',
    'pytest-rerunfailures==16.0.1; python_version < "3.10"',
    "pytest-timeout==2.4.0",
    "pytest-xdist==3.8.0",
    "ruff==0.17.5",
    "types-protobuf==4.25.0.20240417",
]

# It needs protobuf 4, whose output all later releases read, so it fits TensorFlow 2.15 only.
PROTOS = ["grpcio-tools==1.62.3"]

# For `--runner` of `convert` and `detect`; the range allows the protobuf of TensorFlow 2.15.
BEAM = ["apache-beam>=2.55,<2.72"]

# For `export --format`: docs/exporting.md.
ONNX = ["onnx>=1.14,<1.19", "onnxruntime>=1.17", "tf2onnx>=1.16"]
MLFLOW = ["mlflow-skinny>=2.14"]  # `train --track mlflow`
OPENVINO = ["openvino>=2024.4"]
SERVE = [
    "prometheus-client>=0.20",
    "python-multipart>=0.0.13",
    "starlette>=0.41",
    "uvicorn>=0.29",
]
VIDEO = ["av>=15"]  # videos of `detect`
TFJS = ["tensorflowjs>=4.22"]

# For `make docs`.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.27"]

setup(
    name="estimator-det",
    version=version(),
    description="Object detection training, evaluation and export on tf.estimator",
    long_description=description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    keywords="object-detection tensorflow estimator ssd tpu",
    python_requires=">=3.9,<3.14",
    install_requires=REQUIRED,
    extras_require={
        "test": [*TEST, *SERVE],
        "protos": PROTOS,
        "beam": BEAM,
        "mlflow": MLFLOW,
        "onnx": ONNX,
        "openvino": OPENVINO,
        "serve": SERVE,
        "tfjs": TFJS,
        "video": VIDEO,
        "docs": DOCS,
        "dev": [*TEST, *SERVE, "build>=1.2", "nox>=2024.4.15", "pre-commit>=3.8"],
    },
    # Tests and benchmarks stay in the checkout: `tests` is a name that others use too.
    packages=find_packages(include=["estimator_det*", "model_fn*", "inputs*", "exporters*"]),
    py_modules=plugins(),
    package_data={
        "estimator_det.protos": ["*.proto", "*.pyi"],
        "estimator_det": ["configs/*.config"],
        "estimator_det.programs": ["*.csv", "*.html"],
        "exporters.importing": ["*.config"],
        "exporters.server": ["*.html"],
    },
    entry_points={"console_scripts": ["estimator-det = estimator_det.cli:main"]},
    zip_safe=False,
)
