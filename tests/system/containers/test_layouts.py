"""Where images keep what programs trust, and images that have next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import ResourceUnusable
from keyhole.sandbox.containers import holder_image
from tests.rigs.containers.engines import TOOLS, OwnEngine, make_image

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.containers.conftest import Boxed

pytestmark = pytest.mark.outside

_FEDORA = "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
_SUSE = "/var/lib/ca-certificates/ca-bundle.pem"
_ARCH = "/etc/ca-certificates/extracted/tls-ca-bundle.pem"
LAYOUTS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "fedora": (
        _FEDORA,
        {
            "/etc/pki/tls/cert.pem": "certs/ca-bundle.crt",
            "/etc/pki/tls/certs/ca-bundle.crt": f"../../../..{_FEDORA}",
            "/etc/ssl/certs": "../pki/tls/certs",
            "/etc/ssl/cert.pem": "/etc/pki/tls/cert.pem",
        },
        (_FEDORA, "/etc/ssl/certs/ca-bundle.crt", "/etc/pki/tls/cert.pem", "/etc/ssl/cert.pem"),
    ),
    "suse": (
        _SUSE,
        {"/etc/ssl/ca-bundle.pem": _SUSE, "/etc/ssl/certs": "/var/lib/ca-certificates/pem"},
        (_SUSE, "/etc/ssl/ca-bundle.pem"),
    ),
    "arch": (
        _ARCH,
        {
            "/etc/ssl/certs/ca-certificates.crt": f"../../..{_ARCH}",
            "/etc/ssl/cert.pem": f"../..{_ARCH}",
        },
        (_ARCH, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"),
    ),
}
"""The file with the roots, links, and every name by which programs read it. Debian's, Alpine's and
none at all are asked by a client in test_walls.py."""

POLICY = """
[services.billing]
hosts = ["billing.example"]
allow = ["GET /**"]
"""

_TEMPORARY = "/var/tmp"  # noqa: S108 - of images
STATIC = "/sbin/ldconfig"
"""A program that every glibc brings and that is linked with nothing."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_name_of_the_list_of_roots_leads_to_the_sessions_own(
    new_project: Callable[..., Boxed], dockerd: OwnEngine, layout: str
) -> None:
    """Through links, relative and absolute. Control: the image's own says something else."""
    file, links, names = LAYOUTS[layout]
    image = make_image(dockerd.engine, f"names:{layout}", TOOLS, {file: "the image's own"}, links)
    script = 'for f; do test "$(cat $f)" = "$(cat /etc/keyhole/bundle.pem)" && echo $f; done'
    done = new_project(POLICY, image=image).run("sh", "-c", script, "sh", *names)
    assert done.lines == list(names), done
    if layout == "arch":
        plain = new_project(image=image).run("cat", names[-1])  # control: nothing is inspected
        assert plain.out == "the image's own", plain


def test_an_image_of_one_static_program_will_do(
    new_project: Callable[..., Boxed], dockerd: OwnEngine
) -> None:
    """Without a shell, accounts, libraries or /etc: its walls are tried and its program runs."""
    with pytest.raises(ResourceUnusable):
        holder_image.interpreter_of(STATIC)  # it names no loader
    image = make_image(dockerd.engine, "static:1", [STATIC], {})
    project = new_project(POLICY, image=image)
    done = project.run("ldconfig", "--version", flags=("-q", "--self-test"))
    assert done.code == 0, done
    assert "ldconfig" in done.out
    assert project.run("sh").code == 127


def test_an_image_has_no_say_in_the_process_that_asserts(
    new_project: Callable[..., Boxed], dockerd: OwnEngine
) -> None:
    """I2: nothing of it is loaded before the command, and nothing mounted over our own programs.

    What an image preloads is missing, so that each program which looks for it says so: the command
    alone (control), once; and a link elsewhere is followed."""
    preloads = {"/etc/ld.so.preload": "/nowhere.so\n"}
    links = {_TEMPORARY: "/elsewhere"}
    image = make_image(dockerd.engine, "preloads:1", TOOLS, preloads, links)
    done = new_project(image=image).run("sh", "-c", "test -w /elsewhere", flags=("-q",))
    assert (done.code, done.err.count("/nowhere.so")) == (0, 1), done
    for number, to in enumerate(("/.keyhole/lib", "/one")):
        links = {_TEMPORARY: to, "/one": "two", "/two": "/.keyhole"}
        image = make_image(dockerd.engine, f"links:{number}", TOOLS, {}, links)
        refused = new_project(image=image).run("id")
        assert (refused.code, f"a link {_TEMPORARY} to /.keyhole" in refused.err) == (125, True), (
            refused
        )
