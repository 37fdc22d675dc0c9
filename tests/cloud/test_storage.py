"""Copies to and from a bucket of an emulator."""

from __future__ import annotations

import os
import pathlib
from typing import Any, List

import pytest

from estimator_det.errors import StorageError, UsageError
from estimator_det.programs.cloud import connection, storage
from estimator_det.programs.cloud.connection import connect
from tests.cloud.emulator import cut, status


def names_in(folder: pathlib.Path) -> List[str]:
    """Names of what a download brought, beside its mark."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def send(path: pathlib.Path) -> storage.Copied:
    return storage.upload([str(path)], "gs://data")


def fetch(folder: pathlib.Path) -> storage.Copied:
    return storage.download(["gs://data"], str(folder))


def test_folder_there_and_back(emulator, tmp_path, waits, large):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "a.record").write_bytes(b"a")
    (source / "sub" / "b.record").write_bytes(b"bb")
    (source / "empty").write_bytes(b"")
    (source / "training.lock").write_text("of this machine")
    (source / large.name).write_bytes(large.read_bytes())
    done = storage.upload([str(source)], "gs://data/x/")
    names = sorted(emulator.storage.objects["data"])
    assert names == [f"x/{n}" for n in ("a.record", "empty", large.name, "sub/b.record")]
    assert (done.files, done.same) == (4, 0)
    assert emulator.content("x/large.record") == large.read_bytes()

    again = storage.upload([str(source)], "gs://data/x")
    assert (again.files, again.same, again.size) == (0, 4, 0)

    target = tmp_path / "target"
    done = storage.download(["gs://data/x"], str(target))
    assert done.files == 4 and done.size == large.stat().st_size + 3
    found = {
        str(p.relative_to(target)): p.read_bytes() for p in target.rglob("[!.]*") if p.is_file()
    }
    assert found == {
        "a.record": b"a", "empty": b"", "sub/b.record": b"bb", large.name: large.read_bytes()
    }  # fmt: skip
    (target / "a.record").write_bytes(b"A")  # the same size
    again = storage.download(["gs://data/x"], str(target))
    assert (again.files, again.same) == (1, 3)
    assert (target / "a.record").read_bytes() == b"a"
    assert not waits


def test_names_like_those_of_unfinished_files(emulator, tmp_path, caplog):
    """Files of users are copied, and never removed, whatever other programs call theirs."""
    caplog.set_level("INFO")
    source, target = tmp_path / "source", tmp_path / "target"
    kept = ["my_temp/a", "train", "train.part-00000", "train.part-00001", "x.tmp-new"]
    unfinished = ["checkpoint.tmp" + "0f" * 16, "model.ckpt-5_temp/part-0", "x.json.tmp-123"]
    for name in (*kept, *unfinished):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode())
    send(source)
    assert sorted(emulator.storage.objects["data"]) == kept
    assert [name for name in unfinished if f"{name} is left out" in caplog.text] == unfinished
    target.mkdir()
    (target / "train.part-00000").write_bytes(b"of the user")
    storage.download(["gs://data/train"], str(target))
    assert (target / "train.part-00000").read_bytes() == b"of the user"


def test_links_to_folders_are_followed(emulator, tmp_path):
    source, other = tmp_path / "source", tmp_path / "other"
    source.mkdir()
    other.mkdir()
    (other / "a.record").write_bytes(b"a")
    (source / "linked").symlink_to(other, target_is_directory=True)
    send(source)
    assert list(emulator.storage.objects["data"]) == ["linked/a.record"]
    (other / "loop").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(UsageError, match=r"loop is a link to a folder that contains it"):
        send(tmp_path)


def test_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    def refuse(folder: str) -> Any:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError):
        storage.upload([str(tmp_path)], "gs://data")


def test_listing_and_patterns(emulator, tmp_path):
    for name in ("train.record-0", "train.record-1", "val.record", "deep/train.record-2"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    names = ("train.record-0", "train.record-1", "val.record", "deep")
    sources = [str(tmp_path / name) for name in names]
    storage.upload(sources, "gs://data/d")
    storage.download(["gs://data/d/train*-[01]"], str(tmp_path / "t"))
    assert names_in(tmp_path / "t") == ["train.record-0", "train.record-1"]
    storage.download(["gs://data"], str(tmp_path / "u"), exclude=["d/train*", "nothing"])
    assert os.listdir(tmp_path / "u" / "d") == ["val.record"]


def test_missing_bucket(emulator, tmp_path, waits, large, small):
    message = "there is no bucket gs://none. Correct its name .* gcloud storage buckets create"
    with pytest.raises(FileNotFoundError, match=message):
        storage.upload([str(small)], "gs://none/x")
    with pytest.raises(FileNotFoundError, match=message):
        storage.download(["gs://none/x"], str(tmp_path))
    # Deleted after it was listed.
    emulator.fail("GET", "/o?", lambda handler: emulator.storage.buckets.pop("data") and False)
    with pytest.raises(FileNotFoundError, match="there is no bucket gs://data"):
        send(large)
    assert not waits


def test_no_permission(emulator, tmp_path, waits, large, small):
    denied = status(403, "me@x.com does not have storage.objects.create access.")
    for method, part, path in (
        ("POST", "multipart", small),
        ("POST", "resumable", large),
        ("PUT", "upload_id", large),
    ):
        emulator.fail(method, part, denied)
        with pytest.raises(StorageError) as caught:
            send(path)
        assert str(caught.value) == (
            f"gs://data/{path.name}: no permission to write (HTTP 403: me@x.com does not have "
            "storage.objects.create access). Give your account the role: gcloud storage buckets "
            "add-iam-policy-binding gs://data --member=user:YOU --role=roles/storage.objectAdmin; "
            "or log in as an account that has it"
        )
    emulator.fail("GET", "/o?", denied)
    with pytest.raises(StorageError, match=r"gs://data/: no permission to read .*objectViewer"):
        fetch(tmp_path / "l")
    emulator.fail("PUT", "upload_id", status(401))
    with pytest.raises(StorageError, match=r"the credentials .* are not valid.* gcloud auth"):
        send(large)
    assert not waits


def test_no_credentials(no_login, monkeypatch):
    with pytest.raises(StorageError, match=r"^no usable credentials .* gcloud auth application-de"):
        connect()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/none/key.json")
    with pytest.raises(StorageError, match=r"in GOOGLE_APPLICATION_CREDENTIALS=/none/key.json"):
        connect()


def test_nothing_secret_is_logged(emulator, monkeypatch, caplog, large):
    monkeypatch.setattr(connection, "ATTEMPTS", 3)
    caplog.set_level("DEBUG")
    emulator.fail("PUT", "upload_id", cut, times=99, after=1)
    with pytest.raises(StorageError) as caught:
        send(large)
    assert "write failed" in caplog.text
    ours = [
        record.getMessage()
        for record in caplog.records
        if not record.name.startswith("gcp_storage_emulator")
    ]
    assert len(ours) > 2 and not [line for line in ours if "upload_id" in line]
    assert "upload_id" not in str(caught.value)


def test_files_that_name_others_come_last(emulator, tmp_path):
    names = ["checkpoint", "model.ckpt-2.index", "z.record", "model.ckpt-2.data-00000-of-00001"]
    source = tmp_path / "source"
    source.mkdir()
    for name in names:
        (source / name).write_text(name)
    storage.upload([str(source)], "gs://data/run")
    sent = list(emulator.storage.objects["data"])
    assert sent[2:] == ["run/model.ckpt-2.index", "run/checkpoint"]

    # The data file is deleted after the listing: `checkpoint` is not copied by that pass.
    def vanish(handler: Any) -> bool:
        emulator.storage.delete_file("data", "run/model.ckpt-2.data-00000-of-00001")
        return False

    emulator.fail("GET", "model.ckpt-2.data", vanish)
    emulator.requests.clear()
    done = storage.download(["gs://data/run"], str(tmp_path / "l"))
    assert done == (3, sum(len(name) for name in names[:3]), 1)
    assert names_in(tmp_path / "l") == sorted({*names} - {names[3]})
    lines = [line for line in emulator.requests if "/o?" in line or "checkpoint?" in line]
    assert ["/o?" in line for line in lines] == [True, True, False]


def test_names_that_leave_the_folder_are_refused(emulator, tmp_path, small):
    storage.upload([str(small)], "gs://data/x")
    objects = emulator.storage.objects["data"]
    objects["x/../../evil"] = {**objects["x/small"], "name": "x/../../evil"}
    with pytest.raises(StorageError, match=r"x/\.\./\.\./evil: the name leaves the local folder"):
        storage.download(["gs://data/x"], str(tmp_path / "l"))


def test_compressed_files_are_refused(emulator, tmp_path, small):
    send(small)
    emulator.storage.objects["data"]["small"]["contentEncoding"] = "gzip"
    with pytest.raises(StorageError, match=r"is stored compressed .*Upload it again without"):
        fetch(tmp_path / "l")


def test_two_files_of_one_name_are_refused(emulator, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same").write_text(folder)
    with pytest.raises(UsageError, match="two sources have a file 'same'"):
        storage.upload([str(tmp_path / "a"), str(tmp_path / "b")], "gs://data")


def test_named_pipes_are_refused(emulator, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is a named pipe, not a file"):
        storage.upload([str(tmp_path)], "gs://data")
