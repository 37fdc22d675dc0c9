"""`estimator-det completion`: completion of verbs and options in a shell."""

from __future__ import annotations

import argparse
import importlib.util

from estimator_det.console import printing
from estimator_det.errors import UsageError

SUMMARY = "Prints a script that completes verbs and options in your shell"
EXAMPLE = "bash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = 'its script goes to standard output: eval "$(estimator-det completion bash)"'
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help=text)


def run(options: argparse.Namespace) -> None:
    if importlib.util.find_spec("shtab") is None:
        raise UsageError("completion needs shtab; run pip install 'estimator-det[completion]'")
    import shtab

    from estimator_det.programs import cli

    printing.report(shtab.complete(cli.make_parser(), options.shell), whole=True)
