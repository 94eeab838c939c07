"""Command line parsing that answers a mistake with one sentence, as every other mistake is answered."""

from __future__ import annotations

import argparse
from typing import NoReturn

from reverie.orchestration.command_name import reverie_command


class Parser(argparse.ArgumentParser):
    """An argument parser for one command, without abbreviations, that raises ReverieError instead of exiting.

    In the texts ``%(prog)s`` stands for the command as the user calls it.
    """

    def __init__(self, command: str, *, description: str, epilog: str = "", usage: str | None = None) -> None:
        super().__init__(
            prog=reverie_command(command),
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        from reverie.types import ReverieError  # imports torch, which --help must not wait for

        raise ReverieError(f"{message} (see `{self.prog} --help`)")

    def add_allow(self) -> None:
        self.add_argument(
            "--allow",
            action="append",
            default=[],
            metavar="PACKAGE",
            help="trust this package: the run's config may then call what lies in it (may be repeated)",
        )


def positive(text: str) -> int:
    """The type of an argument that counts something."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """The type of a seed."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be zero or a positive integer, got {text!r}")
    return int(text)
