"""The source distribution that a job installs: built from the checkout, and checked."""

from __future__ import annotations

import gzip
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from typing import Mapping, Optional, Set

import estimator_det
from estimator_det.console import printing
from estimator_det.errors import RunError, UsageError

ROOMS = ("estimator_det", "exporters", "inputs", "model_fn")
_DATA = (".py", ".proto", ".config")
_ROOT_FILES = ("setup.py", "pyproject.toml", "LICENSE", "PKG-INFO")
_MOST_NAMED = 3
_PLUGINS = "plugins.txt"  # names of plug-ins, a line each; setup.py installs them


def installed_root() -> pathlib.Path:
    """The folder that contains the packages of this installation."""
    return pathlib.Path(estimator_det.__file__).resolve().parent.parent


def get(
    path: Optional[str], target: pathlib.Path, modules: Optional[Mapping[str, str]] = None
) -> pathlib.Path:
    """The checked source distribution at `target`: a copy of the given one, or built.

    Plug-ins, files of modules by name, are added to it.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(path) if path else build(pathlib.Path(folder))
        check(source)
        if modules:
            source = _with_modules(source, pathlib.Path(folder) / "with_plugins.tar.gz", modules)
        if source.resolve() != target.resolve():
            shutil.copyfile(source, target)
    return target


def _with_modules(
    source: pathlib.Path, target: pathlib.Path, modules: Mapping[str, str]
) -> pathlib.Path:
    """Copies a source distribution and adds modules, which its setup.py installs."""
    for name, file in modules.items():
        if "." in name or not file.endswith(f"{name}.py"):
            raise RunError(
                f"--import {name}: {printing.plain(file)} is part of a package of several files, "
                "but a job gets single files. Put the plug-in into one file, or install it in the "
                "image of --container_image"
            )
    with tarfile.open(source, "r:gz") as old, tarfile.open(target, "w:gz") as new:
        members = old.getmembers()
        top = members[0].name.partition("/")[0]
        replaced = {f"{top}/{_PLUGINS}", *(f"{top}/{name}.py" for name in modules)}
        for member in members:
            if member.name not in replaced:
                new.addfile(member, old.extractfile(member) if member.isfile() else None)
        for name, file in modules.items():
            new.add(file, f"{top}/{name}.py")
        names = target.with_name(_PLUGINS)
        names.write_text("\n".join(modules), encoding="utf-8")
        new.add(names, f"{top}/{_PLUGINS}")
    return target


def build(folder: pathlib.Path) -> pathlib.Path:
    """Builds the source distribution of the checkout that runs.

    Nothing is written but in `folder`.
    """
    root = installed_root()
    if not (root / "setup.py").is_file():
        raise UsageError(
            f"{root} is no checkout of estimator-det: it has no setup.py, from which the package "
            "of a job is built. Run python -m estimator_det submit in a checkout, or give "
            "--package FILE.tar.gz"
        )
    command = [sys.executable, "-W", "ignore", "setup.py", "-q"]
    command += ["egg_info", f"--egg-base={folder}"]
    command += ["sdist", "--formats=gztar", f"--dist-dir={folder}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(
            f"the package cannot be built in {root}: {printing.plain(done.stderr[-2000:])}. "
            "Correct pyproject.toml, or pip install 'setuptools>=77.0.3', and submit again"
        )
    (package,) = folder.glob("*.tar.gz")
    return package


def check(package: pathlib.Path) -> None:
    """Checks that a source distribution contains all that this installation has."""
    names = _names(package)
    missing = sorted(_expected() - names)
    if missing:
        rooms = {name.partition("/")[0] for name in names if "/" in name}
        lost = ", ".join(f"{room}/" for room in ROOMS if room not in rooms)
        raise RunError(
            f"{package}: the package {f'has no {lost}' if lost else 'is not complete'}: "
            f"{printing.counted(len(missing), 'file')} of estimator-det "
            f"{estimator_det.__version__} not found in it "
            f"({printing.listed(missing, _MOST_NAMED)}). Check "
            "packages and package-data in pyproject.toml, and MANIFEST.in; or build the package "
            "from the checkout that runs submit"
        )


def _expected() -> Set[str]:
    """The files that a source distribution of this installation has."""
    root = installed_root()
    files = {
        str(path.relative_to(root))
        for room in ROOMS
        for path in (root / room).rglob("*")
        if path.suffix in _DATA and "__pycache__" not in path.parts
    }
    return files | set(_ROOT_FILES)


def _names(package: pathlib.Path) -> Set[str]:
    """The files of an archive, without its top folder."""
    if not package.is_file():
        raise FileNotFoundError(f"no such package: {package}")
    try:
        # To its checksum: a damaged header of tar may look like the end of the archive.
        with gzip.open(package) as stream:
            while stream.read(2**20):
                pass
        with tarfile.open(package, "r:gz") as archive:
            return {name.partition("/")[2] for name in archive.getnames()}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RunError(
            f"{package}: not a source distribution: {error}. Give the .tar.gz that "
            "`python setup.py sdist` writes, or leave --package out"
        ) from error
