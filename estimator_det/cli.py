"""The `estimator-det` command; its verbs are modules of `estimator_det.verbs`."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Optional, Sequence

from estimator_det import console
from estimator_det.config import printing
from estimator_det.verbs import (
    benchmark,
    check_config,
    check_data,
    convert,
    data_worker,
    demo,
    detect,
    evaluate,
    export,
    import_model,
    replay,
    show_data,
    submit,
    sync,
    train,
)

DESCRIPTION = "Trains, evaluates, exports and runs object detectors."
VERBS = (
    demo,
    convert,
    check_config,
    check_data,
    show_data,
    import_model,
    train,
    submit,
    data_worker,
    replay,
    evaluate,
    export,
    detect,
    sync,
    benchmark,
)


class _Parser(argparse.ArgumentParser):
    """Its errors repeat arguments, which may be names of files."""

    def _print_message(self, message: str, file: Any = None) -> None:
        printing.report(message.rstrip("\n"), file or sys.stderr)


class _VerbParser(_Parser):
    """Takes arguments before, between and after options."""

    _is_within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self._is_within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_within = False


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command; `argv` is without the program's name, `sys.argv[1:]` by default.

    Returns:
        An exit code of `estimator_det.console`.
    """
    printing.open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parse(arguments)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    console.quiet_logging()
    return console.run(lambda: options.run(options))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; what follows `--` is `passed_on` by the verbs that start another program."""
    own = list(arguments)
    if own[:1] not in [[name_of(verb)] for verb in VERBS if _passes_on(verb)]:
        return make_parser().parse_args([_with_underscores(text) for text in own])
    end = own.index("--") if "--" in own else len(own)
    options = make_parser().parse_args([_with_underscores(text) for text in own[:end]])
    options.passed_on = own[end + 1 :]
    return options


def _passes_on(verb: Any) -> bool:
    return bool(getattr(verb, "PASSES_ON", False))


def name_of(verb: Any) -> str:
    """The name of a verb on the command line; `import` cannot be the name of a module."""
    return getattr(verb, "NAME", verb.__name__.rpartition(".")[2].replace("_", "-"))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command and all its verbs."""
    parser = _parser(
        _Parser,
        prog="estimator-det",
        description=DESCRIPTION,
        example="estimator-det demo --output_dir demo_output",
    )
    verbs = parser.add_subparsers(
        title="verbs", metavar="VERB", dest="verb", required=True, parser_class=_VerbParser
    )
    verb: Any
    for verb in VERBS:
        name = name_of(verb)
        inner = _parser(
            verbs.add_parser,
            name,
            help=verb.SUMMARY,
            description=verb.SUMMARY + ".",
            example=f"estimator-det {name} {verb.EXAMPLE}",
        )
        verb.add_arguments(inner)
        inner.set_defaults(run=verb.run)
    return parser


def _parser(make: Any, *names: str, example: str, **settings: Any) -> Any:
    return make(
        *names,
        epilog=f"example:\n  {example}\n\n{console.EXIT_CODES_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **settings,
    )


def _with_underscores(text: str) -> str:
    """`--model-dir=a-b` -> `--model_dir=a-b`: options may have both spellings."""
    if not text.startswith("--") or text == "--":
        return text
    name, equals, value = text.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


if __name__ == "__main__":
    sys.exit(main())
