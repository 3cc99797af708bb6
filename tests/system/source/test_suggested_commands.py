"""Commands that messages say to type are commands that the parser takes as they are printed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import keyhole
from keyhole.cli.parser import parser_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

SOURCE = Path(keyhole.__file__).parent
COMMAND = re.compile(r"`keyhole ([^`]+)`")
FILLED = "\x01"
"""Stands for a value that is filled in when the message is made."""
NUMBERS = {
    "--uses": "1",
    "--for": "10m",
    "--gateway": "gateway.example:8443",
    "--listen": "127.0.0.1:8443",
}


def texts(path: Path) -> Iterator[str]:
    """The texts of a module, without docstrings; a value in one is `x`."""
    text = path.read_text()
    tree = ast.parse(text if "`keyhole " in text else "")
    said = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else FILLED
                for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in said | inner
        ):
            yield node.value


def suggested() -> list[str]:
    found = {
        command
        for path in SOURCE.rglob("*.py")
        for text in texts(path)
        for command in COMMAND.findall(text)
        if not command.startswith(FILLED)  # the verb itself is filled in
    }
    return sorted(found)


ALL = suggested()


def words_of(command: str) -> list[str]:
    """The words of a command, with something in each place that a person fills."""
    plain = re.sub(r"\{[a-z]+\}", "x", command).replace(" …", "").replace("…", "")
    # A flag that may be missing follows the verb without a space.
    plain = re.sub(rf"(?<=\w){FILLED}", "", plain).replace(FILLED, "x")
    words = shlex.split(plain)
    for flag, value in NUMBERS.items():
        if flag in words[:-1]:
            words[words.index(flag) + 1] = value
    return words


def test_they_are_found() -> None:
    """The control: an f-string and a plain text."""
    assert "init --yes" in ALL
    assert f"services show {FILLED}" in ALL
    assert len(ALL) > 40


def test_a_command_that_a_message_says_to_type_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """Control: one with a flag that does not exist is not."""
    refused = [command for command in (*ALL, "check --nonsense") if not _is_taken(command, capsys)]
    assert refused == ["check --nonsense"]


def _is_taken(command: str, capsys: pytest.CaptureFixture[str]) -> bool:
    words = words_of(command)
    try:
        parser_for(words).parse_args(words)
    except SystemExit as error:
        needs_more = "the following arguments are required" in capsys.readouterr().err
        # A verb that is named alone, as in "`keyhole secret set`", is completed by the person.
        return error.code == 0 or (needs_more and len(words) <= 2)
    return True
