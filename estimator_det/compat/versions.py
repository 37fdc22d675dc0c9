"""The supported versions, and errors with the command that repairs an installation.

Each error is an ImportError with this package as its `name`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import re
import sys
import types
from typing import Any, Iterator, Optional, Tuple

import estimator_det

OLDEST_TENSORFLOW = (2, 15)
NEWEST_TENSORFLOW = (2, 21)
# From this release on, TensorFlow contains Keras 3 and no Estimator.
WITHOUT_ESTIMATOR = (2, 16)

PACKAGES = "'tensorflow>=2.15.1,<2.22' 'tensorflow-estimator==2.15.0'"


def release(version: str) -> Tuple[int, int]:
    """Returns the first two numbers of a version: "2.16.0-rc1" -> (2, 16)."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        raise ValueError(f"not a version: {version!r}; use numbers such as 2.15.1")
    return int(match[1]), int(match[2])


def installed(package: str) -> Optional[str]:
    """Returns the installed version of a package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_tensorflow(version: str) -> None:
    """Raises ImportError unless this version is supported, with the command that installs one."""
    if not OLDEST_TENSORFLOW <= release(version) <= NEWEST_TENSORFLOW:
        raise ImportError(
            "TensorFlow {4} is not supported; estimator-det runs on {0}.{1} to {2}.{3}. Remedy: "
            "pip install {5} tf-keras".format(
                *OLDEST_TENSORFLOW, *NEWEST_TENSORFLOW, version, PACKAGES
            ),
            name=__package__,
        )


def import_tensorflow() -> types.ModuleType:
    """Imports TensorFlow; ImportError if it is missing or not of a supported version."""
    try:
        with _standard_distutils():
            tensorflow = _import_uncollected("tensorflow")
        version = tensorflow.__version__
    except (ImportError, AttributeError) as error:
        installed_version = installed("tensorflow")
        raise ImportError(
            (
                f"TensorFlow {installed_version} is installed but broken"
                if installed_version
                else "TensorFlow is not installed"
            )
            + f" ({error}). Remedy: pip install --force-reinstall {PACKAGES} tf-keras",
            name=__package__,
        ) from error
    check_tensorflow(version)
    check_keras(version, installed("tf-keras"))
    return tensorflow


@contextlib.contextmanager
def _standard_distutils() -> Iterator[None]:
    """Lets `import distutils` find the module of Python, not setuptools' own.

    TensorFlow 2.15 asks it for one folder, and setuptools would import all of itself: 40 ms. The
    module is forgotten again, so that setuptools may replace it later.
    """
    finders = [finder for finder in sys.meta_path if type(finder).__module__ == "_distutils_hack"]
    if not finders or "distutils" in sys.modules or sys.version_info >= (3, 12):  # has none
        yield
        return
    for finder in finders:
        sys.meta_path.remove(finder)
    try:
        yield
    finally:
        sys.meta_path[:0] = finders
        for name in [name for name in sys.modules if name.partition(".")[0] == "distutils"]:
            del sys.modules[name]


def _import_uncollected(module: str) -> types.ModuleType:
    """Imports a module without garbage collection; programs never collect its objects.

    The collector would visit all objects of TensorFlow again and again during the import, and once
    more when the process ends: a second each.
    """
    if module in sys.modules or not gc.isenabled():
        return importlib.import_module(module)
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if estimator_det.is_program:
            gc.freeze()
        gc.enable()


def import_estimator() -> Any:
    """Imports the `tf.compat.v1.estimator` namespace from tensorflow-estimator.

    TensorFlow 2.16 and newer have no `tf.estimator`; in 2.15 it is this module.
    """
    return _import("tensorflow_estimator._api.v1.estimator", "tensorflow-estimator==2.15.0")


def import_slim() -> Any:
    """Imports tf-slim; after the patches."""
    return _import("tf_slim", "tf-slim==1.1.0")


def check_keras(tensorflow_version: str, keras_version: Optional[str]) -> None:
    """Raises ImportError if TensorFlow 2.16 or newer has no Keras 2 of the same release."""
    tensorflow_release = release(tensorflow_version)
    if tensorflow_release < WITHOUT_ESTIMATOR or (
        keras_version and release(keras_version) == tensorflow_release
    ):
        return
    fault = f"tf-keras {keras_version} does not fit" if keras_version else "tf-keras is missing for"
    raise ImportError(
        f"{fault} TensorFlow {tensorflow_version}. Remedy: "
        "pip install 'tf-keras~={}.{}.0'".format(*tensorflow_release),
        name=__package__,
    )


def _import(module: str, requirement: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a wrong version or a broken installation may raise any error
        package = requirement.partition("==")[0]
        installed_version = installed(package)
        state = (
            f"{package} {installed_version} does not work here"
            if installed_version
            else f"{package} is missing"
        )
        raise ImportError(
            f"{state} ({type(error).__name__}: {error}). Remedy: "
            f"pip install --force-reinstall --no-deps '{requirement}'",
            name=__package__,
        ) from error


def require_v2_behavior() -> None:
    """Raises RuntimeError if a script called `disable_v2_behavior()` or a part of it.

    Target assignment needs sizes that are plain numbers, and summaries run Python in a branch,
    which control flow of TensorFlow 1 cannot. Eager execution and resource variables may be off.
    """
    import tensorflow as tf

    switches = {
        "disable_v2_tensorshape": isinstance(tf.TensorShape([1])[0], int),
        "disable_control_flow_v2": tf.compat.v1.control_flow_v2_enabled(),
    }
    calls = [f"{name}()" for name, is_on in switches.items() if not is_on]
    if calls:
        raise RuntimeError(
            "this process switched parts of TensorFlow 2 off, which detectors need: "
            f"{', '.join(calls)}; tf.compat.v1.disable_v2_behavior() calls both, and so does "
            "TF2_BEHAVIOR=0. Remedy: remove the call. Estimators and graphs of TensorFlow 1 "
            "do not need it; tf.compat.v1.disable_eager_execution() may stay"
        )
