"""A value that holds something which must not be printed (I8)."""

from __future__ import annotations

from msgspec import Struct

from keyhole.model.redacted import redacted_repr


class Login(Struct, frozen=True):
    """A user, and what must not be shown."""

    user: str
    password: str
    port: int = 443

    __repr__ = redacted_repr("password")


class Host(Struct, frozen=True):
    """Has one."""

    name: str
    login: Login


def test_a_hidden_field_is_in_no_repr_and_the_others_are() -> None:
    login = Login("ann", "hunter2hunter2")
    assert repr(login) == str(login) == "Login(user='ann', port=443)"
    assert "hunter2" not in repr(Host("a.example", login))
    assert login.password == "hunter2hunter2"  # the control: it is there
    assert login != Login("ann", "other")
