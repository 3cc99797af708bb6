"""The canary file and the search for its key in bodies."""

from __future__ import annotations

import configparser
import hashlib

import pytest

from keyhole.inject.canary import CANARY, CANARY_PATH, NOISE, Canary, CanaryScanner
from keyhole.model.errors import Unparsable
from keyhole.policy.schema import read_service_name


def make(seed: int = 1) -> Canary:
    return Canary(hashlib.shake_128(b"%d" % seed).digest(NOISE))


def test_the_file_is_one_that_a_client_of_aws_reads() -> None:
    canary = make()
    file = canary.file()
    assert (file.path, file.mode) == (CANARY_PATH, 0o600)
    read = configparser.ConfigParser()
    read.read_string(file.content)
    section = dict(read["default"])
    assert tuple(section.values()) == canary.texts
    assert section["aws_access_key_id"].startswith("AKIA")
    assert [len(text) for text in canary.texts] == [20, 40]
    assert all(text.isalnum() for text in canary.texts)


def test_each_session_has_its_own() -> None:
    assert not set(make(1).texts) & set(make(2).texts)


def test_no_service_can_have_its_name() -> None:
    with pytest.raises(Unparsable):
        read_service_name(CANARY)


@pytest.mark.parametrize("size", [1, 2, 7, 39, 40, 41, 1000])
def test_the_key_is_found_wherever_the_body_is_cut(size: int) -> None:
    values = [text.encode() for text in make().texts]
    for value in values:
        body = b"x" * 50 + value + b"y" * 50
        pieces = [memoryview(body)[at : at + size] for at in range(0, len(body), size)]
        scanner = CanaryScanner(values)
        found = [scanner.found_in(piece) for piece in pieces]
        end = 50 + len(value)
        assert found.index(True) == (end - 1) // size


def test_half_a_key_is_not_found() -> None:
    """The control of the tests above."""
    values = [text.encode() for text in make().texts]
    scanner = CanaryScanner(values)
    assert not any(scanner.found_in(value[:-1] + b"!") for value in values)
    assert not scanner.found_in(b"")
