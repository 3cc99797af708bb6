"""Documents that try to leave the granted repository (I3, I9).

Each is first executed by the forge itself, as the control: there it reads what is not granted, or
writes. Through the judge it does neither. Most of them are in `tests/rigs/git/github_escapes.txt`.
"""

from __future__ import annotations

import json

import pytest

from keyhole.policy.graphql.judge import prepare_graphql
from keyhole.policy.graphql.table import github_table
from tests.rigs.git.github import SECRET
from tests.rigs.git.github_escapes import VAULT, WIDGETS, read_escapes
from tests.rigs.git.judged import JudgedForge

READS, WRITES = read_escapes()

AT_ONCE = {
    "a batch": [{"query": f"{{ {VAULT} {{ description }} }}"}],
    "a batch behind a granted one": [
        {"query": f"{{ {WIDGETS} {{ name }} }}"},
        {"query": f"{{ {VAULT} {{ description }} }}"},
    ],
    "two operations": {
        "query": f"query a {{ {WIDGETS} {{ name }} }} query b {{ {VAULT} {{ description }} }}",
        "operationName": "b",
    },
    "an operation by its name": {
        "query": f"query a {{ {VAULT} {{ description }} }}",
        "operationName": "a",
    },
}


@pytest.fixture(scope="module")
def behind() -> JudgedForge:
    """One session that has learnt all ids of the granted repository, and may write."""
    made = JudgedForge('api = "pull-requests"\npush = ["agent/*"]')
    made.learn()
    return made


def check_reads(behind: JudgedForge, body: object) -> None:
    assert SECRET in json.dumps(behind.forge.execute(json.dumps(body).encode()))
    assert SECRET not in behind.send(body).text
    assert not behind.forge.done


@pytest.mark.parametrize("name", READS)
def test_a_document_reads_nothing_that_is_not_granted(behind: JudgedForge, name: str) -> None:
    """I3. The control: without the judge, it does."""
    check_reads(behind, READS[name].body(behind.forge))


@pytest.mark.parametrize("name", AT_ONCE)
def test_several_at_once_read_nothing_either(behind: JudgedForge, name: str) -> None:
    """I3. The control: without the judge, they do."""
    check_reads(behind, AT_ONCE[name])


@pytest.mark.parametrize("name", WRITES)
def test_a_mutation_writes_nothing_that_is_not_granted(behind: JudgedForge, name: str) -> None:
    """I3. The control: without the judge, it does."""
    body = WRITES[name].body(behind.forge)
    behind.forge.execute(json.dumps(body).encode())
    assert behind.forge.done
    behind.forge.done.clear()
    told = behind.send(body)
    assert behind.forge.done == []
    assert told.errors.startswith("keyhole: ")


def test_there_are_a_hundred_of_them() -> None:
    assert len(READS) + len(AT_ONCE) + len(WRITES) >= 100


def test_tables_are_read_before_the_first_document() -> None:
    """I12: where sessions share a process, none waits for another's first document."""
    prepare_graphql()
    assert github_table.cache_info().currsize == 1
