"""`make lint` refuses a class name that is there twice, and words that the glossary bans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.check_names import ROOT, banned_words, problems, words_of

if TYPE_CHECKING:
    from pathlib import Path

GLOSSARY = """\
# Glossary

| term | meaning | carried by |
|---|---|---|
| **session** | One use of a gateway. | `Session`, `app/` |

## Words that are not used

- `tenant`, `tenancy`: session
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One class, which the glossary names."""
    for name, text in {
        "docs/GLOSSARY.md": GLOSSARY,
        "src/keyhole/app/session.py": "class Session:\n    lieutenant = 1\n",
        "src/keyhole/app/other.py": "class _Private: ...\n",
        "src/keyhole/app/third.py": "class _Private: ...\n# a tenant\nprint('tenant')\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_this_repository_and_a_small_one_have_no_such_names(tree: Path) -> None:
    assert list(problems(ROOT)) == []
    assert list(problems(tree)) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("app/other.py", "class Session: ...", "class Session is defined more than once: src/"),
        ("app/other.py", "def f():\n    class Session: ...", "class Session is defined more than"),
        ("app/other.py", "_tenant = 1", "other.py:1: _tenant: not `tenant` but: session"),
        ("app/other.py", "\nx.end_tenancy()", "other.py:2: end_tenancy: not `tenancy` but"),
        ("app/other.py", "class TenantStore: ...", "TenantStore: not `tenant`"),
        ("app/other.py", "TENANT_SECONDS = 1", "TENANT_SECONDS: not `tenant`"),
        ("app/other.py", "f(tenant=1)", "tenant: not `tenant`"),
        ("app/tenant.py", "", "tenant.py:1: tenant: not `tenant`"),
        ("app/session.py", "", "**session** names `Session`, which does not exist"),
    ],
)
def test_what_does_not_fit_is_named(tree: Path, name: str, text: str, said: str) -> None:
    (tree / "src/keyhole" / name).write_text(text)
    (line,) = problems(tree)
    assert said in line


def test_the_words_are_those_of_the_glossary() -> None:
    banned = banned_words((ROOT / "docs/GLOSSARY.md").read_text("utf-8"))
    assert {"tenant", "lodging", "berth"} <= banned.keys()
    assert all(banned.values())
    with pytest.raises(ValueError, match="has no section"):
        banned_words("# Glossary")


def test_an_identifier_is_read_as_words() -> None:
    assert words_of("_HTTPServer2_of_Tenants") == ["http", "server", "2", "of", "tenants"]
