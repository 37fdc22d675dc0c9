"""`estimator-det info`: what this installation and this machine have."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import re
from typing import Any, Dict, List

from estimator_det.console import printing
from estimator_det.programs import console

SUMMARY = "Prints versions, devices and extras, which a report of a problem needs"
EXAMPLE = "--json"

_PACKAGES = ("estimator-det", "tensorflow", "tf-keras", "tensorflow-estimator", "numpy", "protobuf")
_DEVELOPMENT = ("all", "dev", "docs", "protos", "test")  # extras that no verb needs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(options: argparse.Namespace) -> None:
    del options
    from estimator_det.compat import tf
    from inputs import machine

    document: Dict[str, Any] = {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "extras": _extras(),
        "devices": [
            device.name.replace("/physical_device:", "")
            for device in tf.config.list_physical_devices()
        ],
        "cpus": machine.available_cpus(),
        "bfloat16": machine.has_bfloat16(),
        "allocator": machine.allocator(),
    }
    versions = [f"{name} {version}" for name, version in document["packages"].items()]
    complete = [name for name, missing in document["extras"].items() if not missing]
    console.print_line(f"Python:     {document['python']}, {platform.platform()}")
    console.print_line(f"packages:   {', '.join(versions)}")
    console.print_line(f"extras:     {', '.join(complete) or 'none'}")
    cpus = printing.counted(document["cpus"], "CPU")
    console.print_line(f"devices:    {', '.join(document['devices'])}; {cpus}")
    console.print_line(f"bfloat16:   {'in hardware' if document['bfloat16'] else 'emulated, slow'}")
    console.print_line(f"allocator:  {document['allocator']}")
    console.report_result(document)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _extras() -> Dict[str, List[str]]:
    """The packages of each extra that are not installed."""
    try:
        about = importlib.metadata.metadata("estimator-det")
    except importlib.metadata.PackageNotFoundError:  # a checkout in PYTHONPATH
        return {}
    missing: Dict[str, List[str]] = {
        name: [] for name in about.get_all("Provides-Extra") or () if name not in _DEVELOPMENT
    }
    for requirement in importlib.metadata.requires("estimator-det") or ():
        package = re.split(r"[^\w.-]", requirement)[0]
        extra = re.search(r"""extra == ["']([\w-]+)["']""", requirement)
        if extra and extra[1] in missing and _version(package) == "not installed":
            missing[extra[1]].append(package)
    return missing
