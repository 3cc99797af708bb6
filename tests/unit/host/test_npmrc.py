"""npmrc files, read the way npm reads them."""

from __future__ import annotations

import base64

import pytest

from keyhole.host import npmrc
from keyhole.host.fetch_location import FetchLocation
from tests.rigs.host.building import PASSWORD

AT = FetchLocation.parse("https://npm.corp.example/api/npm/feed/")


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("registry=https://npm.corp.example/", "registry", "https://npm.corp.example/"),
        ("  a = b ; comment", "a", "b"),
        ("a = b # comment", "a", "b"),
        (r"a = b\;c\#d\\e\f", "a", r"b;c#d\e\f"),
        ('a = "b ; c"', "a", "b ; c"),
        ("a = 'b ; c'", "a", "b ; c"),
        ('a = "b" c"', "a", '"b" c"'),
        ("a = ${NAME}/x", "a", "value/x"),
        ("//${NAME}/:_authToken = x", "//value/:_authToken", "x"),
        ("a = ${MISSING?}x", "a", "x"),
        ("a = ${MISSING}", "a", "${MISSING}"),
        ("a = b = c", "a", "b = c"),
    ],
)
def test_a_line_is_a_key_and_a_value(line: str, key: str, value: str) -> None:
    assert npmrc.parse(line, {"NAME": "value"}) == {key: value}


@pytest.mark.parametrize("line", ["", "; a=b", "# a=b", "flag", "[section]\na=b"])
def test_what_is_no_setting_is_passed_over(line: str) -> None:
    assert npmrc.parse(f"{line}\n", {}) == {}


@pytest.mark.parametrize(
    ("key", "scope"),
    [
        ("//npm.corp.example/api/npm/feed/", ("api", "npm", "feed")),
        ("//npm.corp.example/api/npm/feed", ("api", "npm", "feed")),
        ("//npm.corp.example/api/", ("api",)),
        ("//npm.corp.example/", ()),
        ("//npm.corp.example", ()),
    ],
)
def test_a_credential_is_found_upwards_from_the_registry(key: str, scope: tuple[str, ...]) -> None:
    found = npmrc.credential({"~/.npmrc": {f"{key}:_authToken": PASSWORD}}, AT)
    assert found is not None
    assert (found[0].secret.reveal(), found[1]) == (PASSWORD, scope)


@pytest.mark.parametrize(
    "key",
    ["//npm.corp.example/other/", "//corp.example/", "//npm.corp.example:8443/", "//evil.example/"],
)
def test_a_credential_for_elsewhere_is_not_taken(key: str) -> None:
    assert npmrc.credential({"~/.npmrc": {f"{key}:_authToken": PASSWORD}}, AT) is None


@pytest.mark.parametrize(
    ("settings", "how", "secret"),
    [
        ({"_authToken": PASSWORD, "_auth": "x"}, "Bearer {secret}", PASSWORD),
        ({"_auth": "bWU6eA=="}, "Basic {secret}", "bWU6eA=="),
        (
            {"username": "me", "_password": base64.b64encode(PASSWORD.encode()).decode()},
            "Basic me:{secret}",
            PASSWORD,
        ),
        # Node does not mind a missing end.
        ({"username": "me", "_password": "eHg"}, "Basic me:{secret}", "xx"),
    ],
)
def test_each_kind_of_credential_is_understood(
    settings: dict[str, str], how: str, secret: str
) -> None:
    keys = {f"//npm.corp.example/:{name}": value for name, value in settings.items()}
    found = npmrc.credential({"~/.npmrc": keys}, AT)
    assert found is not None
    assert str(found[0].inject) == f"header Authorization: {how}"
    assert found[0].secret.reveal() == secret


@pytest.mark.parametrize(
    "settings",
    [
        {"_authToken": "${MISSING}"},
        {"_authToken": "a\x07b"},
        {"username": "me"},
        {"_password": "eA=="},
        {"username": "me", "_password": "%"},
        {"username": "me", "_password": "a"},
        {"username": "me", "_password": "/w=="},
    ],
)
def test_what_is_no_whole_credential_is_none(settings: dict[str, str]) -> None:
    keys = {f"//npm.corp.example/:{name}": value for name, value in settings.items()}
    assert npmrc.credential({"~/.npmrc": keys}, AT) is None


def test_the_stronger_file_wins_and_is_named() -> None:
    key = "//npm.corp.example/:_authToken"
    found = npmrc.credential({"/etc/npmrc": {key: "weak"}, "~/.npmrc": {key: "strong"}}, AT)
    assert found is not None
    assert (found[0].secret.reveal(), found[0].where) == ("strong", "~/.npmrc")
