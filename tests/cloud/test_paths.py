"""Paths in Cloud Storage."""

import pytest

from estimator_det.errors import UsageError
from estimator_det.programs.cloud.paths import CloudPath, parse


@pytest.mark.parametrize(
    ("text", "bucket", "name", "folder", "prefix"),
    [
        ("gs://my-bucket", "my-bucket", "", "", ""),
        ("gs://my-bucket/", "my-bucket", "", "", ""),
        ("gs://b.example.com/a/b", "b.example.com", "a/b", "a/b/", "a/b"),
        ("gs://b_2/a/b/", "b_2", "a/b/", "a/b/", "a/b/"),
        ("gs://b_2/a/t-*.x[01]", "b_2", "a/t-*.x[01]", "a/t-*.x[01]/", "a/t-"),
    ],
)
def test_parts(text, bucket, name, folder, prefix):
    path = parse(text)
    assert path == CloudPath(bucket, name)
    assert (path.folder, path.prefix) == (folder, prefix)
    assert str(path) == (text if "/" in text[5:] else f"{text}/")
    assert path.join("c") == CloudPath(bucket, f"{folder}c")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data/a", "is not in Cloud Storage"),
        ("gs://", "has no valid name of a bucket"),
        ("gs://Bucket/a", "has no valid name of a bucket"),
        ("gs://bucket//a", "two slashes in a row"),
    ],
)
def test_other_forms_are_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("gs://bkt/a", "a", True),
        ("gs://bkt/a", "a/b/c", True),
        ("gs://bkt/a", "ab", False),
        ("gs://bkt", "a/b", True),
        ("gs://bkt/a/", "a/b", True),
        ("gs://bkt/a/*", "a/b", True),
        ("gs://bkt/a/*", "a/b/c", False),
        ("gs://bkt/*/c-?", "a/c-1", True),
        ("gs://bkt/*/c-?", "a/c-12", False),
    ],
)
def test_matches(path, name, expected):
    assert parse(path).matches(name) == expected
