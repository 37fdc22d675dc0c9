"""Runs pytest on files: what Bazel starts for each `py_test` of BUILD."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
