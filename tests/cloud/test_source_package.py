import pathlib
import shutil
import tarfile

import pytest

from estimator_det.errors import RunError, UsageError
from estimator_det.programs.cloud import source_package


def without(package, folder, *prefixes):
    """A copy of an archive without some files."""
    target = folder / package.name
    with tarfile.open(package) as source, tarfile.open(target, "w:gz", compresslevel=1) as copy:
        for member in source:
            below = member.name.partition("/")[2]
            if not below.startswith(prefixes):
                copy.addfile(member, source.extractfile(member) if member.isfile() else None)
    return target


def test_the_package_of_this_checkout_is_complete(source_distribution):
    source_package.check(source_distribution)
    with tarfile.open(source_distribution) as archive:
        names = {pathlib.PurePath(*pathlib.PurePath(n).parts[1:2]).name for n in archive.getnames()}
    assert {"estimator_det", "exporters", "inputs", "model_fn", "setup.py"} <= names
    assert not {"tests", "benchmarks", "docs"} & names


def test_building_leaves_the_checkout_as_it_is(source_distribution):
    root = source_package.installed_root()
    assert not list(root.glob("dist")) and source_distribution.parent != root
    assert list(source_distribution.parent.glob("*.egg-info"))


def test_a_package_without_inputs_is_refused(source_distribution, tmp_path):
    with pytest.raises(RunError, match=r"the package has no inputs/: \d+ files of estimator-det"):
        source_package.check(without(source_distribution, tmp_path, "inputs/"))


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such package"):
        source_package.check(tmp_path / "none.tar.gz")
    (tmp_path / "text.tar.gz").write_text("text")
    with pytest.raises(RunError, match="not a source distribution"):
        source_package.check(tmp_path / "text.tar.gz")


def test_an_archive_that_is_cut_off_or_damaged_is_refused(source_distribution, tmp_path):
    content = source_distribution.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes(255 - each for each in content[middle : middle + 99])
    for damaged in (content[:-9], content[:middle], flipped + content[middle + 99 :]):
        (tmp_path / "damaged.tar.gz").write_bytes(damaged)
        with pytest.raises(RunError, match=r"damaged.tar.gz: not a source distribution"):
            source_package.check(tmp_path / "damaged.tar.gz")


def test_the_package_of_an_earlier_submission_may_be_given(source_distribution, tmp_path):
    target = tmp_path / "package.tar.gz"
    shutil.copyfile(source_distribution, target)
    assert source_package.get(str(target), target) == target
    assert target.read_bytes() == source_distribution.read_bytes()


def test_outside_of_a_checkout_a_package_must_be_given(tmp_path, monkeypatch):
    monkeypatch.setattr(source_package, "installed_root", lambda: tmp_path)
    with pytest.raises(UsageError, match=r"is no checkout of estimator-det.* give --package"):
        source_package.build(tmp_path)


def test_a_setup_that_fails_is_reported(tmp_path, monkeypatch):
    root = tmp_path / "root"
    shutil.copytree(source_package.installed_root() / "inputs" / "records", root / "inputs")
    (root / "setup.py").write_text("raise SystemExit('no such version')")
    monkeypatch.setattr(source_package, "installed_root", lambda: root)
    with pytest.raises(RunError, match=r"cannot be built .*no such version"):
        source_package.build(tmp_path)
