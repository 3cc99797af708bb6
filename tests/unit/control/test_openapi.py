"""What is published is what the server does: one table, several outputs (I10)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.control import openapi, prometheus, values
from keyhole.control.operation_table import BY_NAME, FAULT, OPERATIONS
from keyhole.control.shapes import (
    BooleanShape,
    ChoiceShape,
    FieldShape,
    IntegerShape,
    ListShape,
    OptionalShape,
    ParsedShape,
    RecordShape,
    TextShape,
)
from keyhole.model.errors import Unparsable
from tests.rigs.control import publish
from tests.rigs.control.rig import ASK, KNOWN, Rig, request

RECORDS = {
    record.name: record
    for operation in OPERATIONS
    for top in (operation.query, operation.body, operation.answer, FAULT)
    if top is not None
    for record in top.nested()
}


def validator(record: RecordShape[Any]) -> jsonschema.Draft202012Validator:
    document: dict[str, Any] = openapi.openapi_document()
    document["components"]["schemas"] |= {record.name: record.definition()}
    return jsonschema.Draft202012Validator(document | record.schema())


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_openapi_file_is_what_the_table_says() -> None:
    said = "run `python -m tests.rigs.control.publish`"
    assert publish.DOCUMENT.read_text("utf-8") == openapi.openapi_text(), said


def test_the_page_is_what_the_table_says() -> None:
    page = publish.PAGE.read_text("utf-8")
    assert page == publish.renewed(page), "run `python -m tests.rigs.control.publish`"
    for operation in OPERATIONS:
        assert f"`{operation.method} {operation.path}`" in page


def test_every_reference_of_the_document_leads_somewhere() -> None:
    document = openapi.openapi_document()
    found = set(_references(document))
    assert found
    assert found == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    operations = [o for path in document["paths"].values() for o in path.values()]
    assert {o["operationId"] for o in operations} == set(BY_NAME)
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [each for inner in value.values() for each in _references(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in _references(inner)]
    return []


def test_no_member_of_an_answer_has_the_name_of_a_secret() -> None:
    """I1: `secrets` are names of services; there is no place for a value."""
    members = {name for record in RECORDS.values() for name in record.fields}
    assert not members & {"secret", "value", "token", "password", "key", "credential"}


# ── the server keeps to it ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_real_answers_are_valid_by_the_published_schema(rig: Rig, operation: Any) -> None:  # noqa: ANN401
    bodies: dict[str, object] = {
        "open_session": {
            "policy": "/p",
            "trusted": "sha256:" + "0" * 64,
            "label": "x",
            "granted": "sha256:" + "1" * 64,
        },
        "invite": {
            "policy": "/p",
            "trusted": "sha256:" + "0" * 64,
            "label": "x",
            "granted": "sha256:" + "1" * 64,
        },
        "open_door": {"door": ["tcp", "udp"]},
        "grant": {"host": "a.example", "seconds": 60, "uses": 1},
        "answer_ask": {"answer": "for", "seconds": 60},
    }
    body = bodies.get(operation.name)
    if body is not None:
        validator(operation.body).validate(body)
    path = operation.path.format(id=KNOWN, name="github", ask=ASK.id)
    data = None if body is None else json.dumps(body).encode()
    head, _, sent = rig.talk(request(operation.method, path, data)).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if operation.name == "open_door":
        assert status == 400  # no descriptors come with it
        validator(FAULT).validate(json.loads(sent))
        return
    assert status == operation.status
    if operation.answer is not None:
        validator(operation.answer).validate(json.loads(sent))
    documented = openapi.openapi_document()["paths"][operation.path][operation.method.lower()]
    assert str(status) in documented["responses"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 100_000) | st.text(max_size=8)
    | st.sampled_from([KNOWN, "a.example", "/p", "sha256:" + "0" * 64, "tcp", "udp", "claude"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize(
    "name", ["SessionRequest", "DoorRequest", "GrantRequest", "GrantView", "ErrorBody"]
)
@given(data=st.data())
def test_schema_and_reader_agree(name: str, data: st.DataObject) -> None:
    """What one refuses, the other refuses: the published schema is no wish."""
    record = RECORDS[name]
    value = data.draw(
        st.fixed_dictionaries(
            {n: _JSON for n, f in record.fields.items() if not f.optional},
            optional={n: _JSON for n, f in record.fields.items() if f.optional} | {"other": _JSON},
        )
        | _JSON
    )
    try:
        record.read(value, "value")
        read = True
    except Unparsable:
        read = False
    valid = validator(record).is_valid(value)
    if name == "GrantRequest" and valid:
        return  # what a host is takes more than a pattern
    if any(isinstance(v, str) and v.endswith("\n") for v in _texts(value)):
        return  # `$` of Python's re, which jsonschema uses, and of ECMA's are not the same
    assert read == valid


def _texts(value: object) -> list[object]:
    if isinstance(value, dict):
        return [t for inner in value.values() for t in _texts(inner)]
    if isinstance(value, list):
        return [t for inner in value for t in _texts(inner)]
    return [value]


def test_what_is_written_is_read_again() -> None:
    stand_ins = (values.ServicePlaceholder("github", ("ghp_x",)),)
    opening = values.SessionRequest(
        "/p", "sha256:" + "0" * 64, "x", "sha256:" + "1" * 64, stand_ins, "/usr/bin:/bin",
        ("/a", "/b"), ("tcp", "udp"),
    )  # fmt: skip
    record = RECORDS["SessionRequest"]
    assert record.read(json.loads(json.dumps(record.write(opening, "o"))), "o") == opening


# ── shapes ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (TextShape("[a-z]+", 3, "letters"), ["a", "abc"], ["", "abcd", "A", "a\n", 1, None, ["a"]]),
        (TextShape("[^/]*", 9, "any"), ["ü", ""], ["/", "\ud800"]),
        (IntegerShape(1, 3), [1, 3], [0, 4, True, 1.0, "1", None]),
        (BooleanShape(), [True, False], [0, 1, "true", None]),
        (ChoiceShape(("a", "b")), ["a", "b"], ["c", "", 1, None, ["a"]]),
        (OptionalShape(IntegerShape(1, 3)), [None, 1], [0, "1"]),
        (ListShape(IntegerShape(1, 3), 2), [[], [1, 1]], [[1, 1, 1], [4], {}, "a", None, (1,)]),
        (ListShape(ChoiceShape(("a", "b")), 2, distinct=True), [["a", "b"]], [["a", "a"]]),
        (ListShape(BooleanShape(), 2, least=1), [[True]], [[], [True] * 3]),
    ],
)
def test_a_shape_takes_what_it_says(shape: Any, good: list[object], bad: list[object]) -> None:  # noqa: ANN401
    for value in good:
        read = shape.read(value, "it")
        assert shape.write(read, "it") == value
    for value in bad:
        with pytest.raises(Unparsable, match=r"^it"):
            shape.read(value, "it")


def test_a_record_and_its_class_have_the_same_members() -> None:
    with pytest.raises(TypeError, match="different fields"):
        RecordShape(values.Revoked, {"other": FieldShape(BooleanShape(), "no")})


def test_what_a_parser_refuses_is_refused_with_its_words() -> None:
    def parse(text: str) -> object:
        from keyhole.model.errors import Unparsable

        raise Unparsable("no such thing")

    with pytest.raises(Unparsable, match="it: no such thing"):
        ParsedShape(TextShape(".*", 9, "any"), parse).read("x", "it")


def test_labels_of_metrics_cannot_break_a_line() -> None:
    sample = prometheus.Sample(1.5, (("host", 'a"} 9\n\\x'),), "_sum")
    family = prometheus.Family("n", "histogram", "two\nlines", (sample,))
    assert prometheus.exposition([family]).decode() == (
        '# HELP n two\\nlines\n# TYPE n histogram\nn_sum{host="a\\"} 9\\n\\\\x"} 1.5\n'
    )
    surrogate = prometheus.Family("n", "gauge", "x", (prometheus.Sample(1, (("a", "\ud800"),)),))
    assert b'n{a="\\\\ud800"} 1.0' in prometheus.exposition([surrogate])


# ── the client's start ────────────────────────────────────────────────────────────────────────────


def test_the_client_imports_little() -> None:
    """The verbs' start counts: no loop, no gateway, no server, nothing that takes long."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.append(sys.argv[2]); "
        # A tool of the desk brings it; msgspec looks for it, and does without.
        "sys.modules['typing_extensions'] = None; "
        "import keyhole.control.client; print(*sys.modules)"
    )
    packages = str(Path(msgspec.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, _source(), packages],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stdout.split())
    unwanted = {"asyncio", "ssl", "http", "subprocess", "logging", "threading", "uvloop", "email",
                "dataclasses", "pathlib", "ipaddress", "inspect", "urllib"}  # fmt: skip
    assert not loaded & unwanted
    ours = {name for name in loaded if name.startswith("keyhole.control.")}
    assert ours == {
        f"keyhole.control.{n}"
        for n in ("client", "socket_directory", "shapes", "operation_table", "values")
    }


def _source() -> str:

    import keyhole

    return str(Path(keyhole.__file__).parents[1])
