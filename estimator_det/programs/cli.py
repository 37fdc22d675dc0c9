"""The `estimator-det` command; its verbs are modules of `estimator_det.programs.verbs`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import itertools
import logging
import os
import platform
import re
import sys
from typing import Any, Iterable, List, Optional, Sequence

import estimator_det
from estimator_det.console import printing
from estimator_det.programs import console, other_trainers
from estimator_det.programs.verbs import base

# In the order of the help.
GROUPS = {
    "start": ("demo", "init", "info", "completion"),
    "data": ("convert", "check-data", "show-data"),
    "training": ("check-config", "train", "evaluate", "report", "replay", "data-worker"),
    "models": ("pretrained", "import", "export", "detect", "suggest", "benchmark"),
    "serving": ("serve",),
    "cloud": ("submit", "sync"),
}
VERBS = tuple(itertools.chain(*GROUPS.values()))

# All other verbs have a result, which other programs read.
VERBS_WITHOUT_JSON = ("completion", "data-worker", "serve")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help in one notation: values are named by what they are, and defaults are shown."""

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        name = action.dest
        for end, metavar in (("_dir", "DIR"), ("secs", "SECONDS"), ("seconds", "SECONDS")):
            if name.endswith(end):
                return metavar
        names = {int: "N", base.positive: "N", base.natural: "N", float: "X", base.above_zero: "X"}
        return names.get(action.type) or name.rpartition("_")[2].upper()

    def _iter_indented_subactions(self, action: argparse.Action) -> Any:
        """No verbs below `VERB`: `make_parser` puts them under headings."""
        return iter(())

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_shown = action.option_strings and not action.required and "(default" not in text
        if is_shown and action.default not in (None, argparse.SUPPRESS, False, "", []):
            text += " (default: %(default)s)"
        return text


class _ShortHelp(argparse.Action):
    """`-h`: of a verb with many options, only those that most users need."""

    def __call__(self, parser: Any, *_: Any) -> None:
        hidden = [each for each in parser._actions if each.option_strings]
        if parser.common:
            parser.usage = "%(prog)s [CONFIG] [options]"
            for action in hidden:
                if not {"-h", "--help_all", *parser.common}.intersection(action.option_strings):
                    action.help = argparse.SUPPRESS
        parser.print_help()
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Its errors repeat arguments, which may be names of files."""

    lists = "--help lists all verbs"

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, add_help=False, **settings)
        self._negative_number_matcher = re.compile(r"-\d")  # a value may begin so, such as -1,300
        self.common: Sequence[str] = ()  # options in the help by `-h`; empty for all
        text = "show this help message and exit"
        self.add_argument("-h", "--help", action=_ShortHelp, nargs=0, help=text)

    def error(self, message: str) -> Any:
        """Prints the error without the usage, which is long."""
        self.exit(console.EXIT_USAGE, f"error: {message}\n{self.prog} {self.lists}\n")

    def refuse_unknown(self, what: str, name: str, known: Iterable[str]) -> None:
        """Ends with an error if a name is not known; the error contains the nearest one."""
        names = list(known)
        if name not in names:
            from estimator_det.config.text import nearest

            # The dashes and short names of options make any two of them half alike.
            self.error(f"unknown {what} {name}{nearest(name, names, likeness=0.7)}")

    def refuse_unknown_options(self, arguments: Iterable[str]) -> None:
        """Comes before argparse, which first reports a required option that is only misspelt."""
        known = self._option_string_actions
        verb = self.prog.rpartition(" ")[2]
        before = ""
        for text in arguments:
            name = text.partition("=")[0]
            if name == "--":
                break
            is_value = before in known and " " in text  # '--a=1 --b=2', as argparse reads it
            if name.startswith("--") and not is_value:
                if name not in known and (refusal := other_trainers.refusal(verb, name[2:])):
                    self.error(refusal)
                self.refuse_unknown("option", name, known)
            before = text

    def _print_message(self, message: str, file: Any = None) -> None:
        printing.report(message.rstrip("\n"), file or sys.stderr)


class _VerbParser(_Parser):
    """Takes arguments before, between and after options."""

    lists = "--help lists all options"
    _is_within = False

    def shorten_help(self, common: Sequence[str]) -> None:
        """Leaves options that are not `common` to `--help_all`."""
        self.common, self.lists = common, "--help_all lists all options"
        text = "show all options and exit"
        self.add_argument("--help_all", action="help", help=text)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_within:
            return super().parse_known_args(args, namespace)
        self.refuse_unknown_options(args)
        self._is_within = True
        try:
            options, others = self.parse_known_intermixed_args(self._separated(args), namespace)
        finally:
            self._is_within = False
        if others:
            is_pattern = all(os.path.exists(text) for text in others)
            remedy = "; if they come from a pattern (*, ?), put it in quotes" if is_pattern else ""
            self.error(f"unknown arguments: {' '.join(others)}{remedy}")
        return options, others

    def _separated(self, arguments: Sequence[str]) -> List[str]:
        """The arguments, with paths kept away from an option before them that may have a value.

        `evaluate --calibrate run` calibrates the evaluation of `run`.
        """
        separated = []
        for text, after in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
            action = self._option_string_actions.get(text)
            if action is not None and action.nargs == "?" and _is_path(after):
                text = f"{text}={action.const}"
            separated.append(text)
        return separated


def _is_path(text: str) -> bool:
    return "://" in text or os.path.exists(text)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the command; returns an exit code of `console`. `argv` is `sys.argv[1:]` by default."""
    printing.open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        options = _parse(arguments)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    console.quiet_logging(logging.WARNING if options.quiet else logging.INFO)
    console.use_json(getattr(options, "json", False))
    printing.use_json(getattr(options, "log_format", "text") == "json")
    return console.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> Any:
    """Imports plug-ins, then runs the verb, which does not see their option."""
    from estimator_det.config import plugins

    # In the folder that check-config names, a training is only planned.
    runs = () if options.verb == "check-config" else ("model_dir", "checkpoint_dir")
    folders = (getattr(options, name, None) for name in runs)
    plugins.load(vars(options).pop("plugins"), folders)
    del options.quiet
    return options.run(options)


def _parse(arguments: List[str]) -> argparse.Namespace:
    """The options; what follows `--` is `passed_on` by `submit`, which starts another program."""
    if arguments[:1] in ([], ["help"]):  # `help train`
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0] if arguments else ""
    parser = make_parser([name] if name in VERBS else VERBS)
    if name.startswith("-"):
        parser.refuse_unknown_options([_with_underscores(name)])
    elif name:
        parser.refuse_unknown("verb", name, VERBS)
    end = arguments.index("--") if name == "submit" and "--" in arguments else len(arguments)
    options = parser.parse_args([_with_underscores(text) for text in arguments[:end]])
    if name == "submit":
        options.passed_on = arguments[end + 1 :]
    return options


def load_verb(name: str) -> Any:
    """The module of a verb; `import` cannot be the name of a module."""
    module = "import_model" if name == "import" else name.replace("-", "_")
    return importlib.import_module(f"estimator_det.programs.verbs.{module}")


def make_parser(names: Sequence[str] = VERBS) -> _Parser:
    """The parser of the command and some of its verbs; a run needs a single one."""
    parser = _Parser(
        prog="estimator-det",
        description="Trains, evaluates, exports and runs object detectors.",
        epilog=f"{_example('demo --output_dir demo_output')}\n{console.EXIT_CODES_HELP}",
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"estimator-det {estimator_det.__version__}\nTensorFlow {_installed_tensorflow()}\n"
        f"Python {platform.python_version()}",
        help="print the versions of estimator-det and TensorFlow, and exit",
    )
    verbs = parser.add_subparsers(
        metavar="VERB", dest="verb", required=True, parser_class=_VerbParser,
        help="what to do; `estimator-det help VERB` describes it",
    )  # fmt: skip
    for name in names:
        verb = load_verb(name)
        inner = verbs.add_parser(
            name,
            help=verb.SUMMARY,
            description=verb.SUMMARY + ".",
            epilog=_example(f"{name} {verb.EXAMPLE}"),
        )
        verb.add_arguments(inner)
        inner.add_argument(
            "--import",
            dest="plugins",
            action="append",
            default=[],
            metavar="MODULE",
            help="import a module of yours, from the working folder or installed, that registers "
            "components; may be repeated",
        )
        base.add_options(inner, bool, {"--quiet": "print results, warnings and errors only"})
        if name not in VERBS_WITHOUT_JSON and "--json" not in inner._option_string_actions:
            base.add_options(inner, bool, {"--json": "print the result as JSON, and nothing else"})
        if hasattr(verb, "COMMON_OPTIONS"):
            inner.shorten_help(verb.COMMON_OPTIONS)
        inner.set_defaults(run=verb.run)
    lines = {action.dest: action for action in verbs._choices_actions}
    for title, members in GROUPS.items():
        group = parser.add_argument_group(title)
        group._group_actions += [lines[name] for name in members if name in lines]
    return parser


def _installed_tensorflow() -> str:
    """Version of the package; TensorFlow is not imported, which takes seconds."""
    for package in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "is not installed"


def _example(arguments: str) -> str:
    return f"example:\n  estimator-det {arguments}\n"


def _with_underscores(text: str) -> str:
    """`--model-dir=a-b` -> `--model_dir=a-b`: options may have both spellings."""
    if not text.startswith("--") or text == "--":
        return text
    name, equals, value = text.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value
