"""Where programs look for the authorities they trust, on the systems that differ in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.sandbox.files.system_trees import system_files
from keyhole.sandbox.files.trust_paths import bundle_paths, truststore_paths

if TYPE_CHECKING:
    from pathlib import Path


def a_system(root: Path, files: tuple[str, ...] = ()) -> Path:
    """A system with these files. Links in it are relative: they lead the same way on the host."""
    for name in ("usr/bin", "etc"):
        (root / name).mkdir(parents=True)
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return root


def link(root: Path, name: str, to: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to)


def bundles(root: Path) -> tuple[str, ...]:
    return bundle_paths(system_files(root, frozenset()).entries, root)


def stores(root: Path) -> tuple[str, ...]:
    return truststore_paths(system_files(root, frozenset()).entries, root)


def test_a_system_without_roots_has_no_place_for_them(tmp_path: Path) -> None:
    root = a_system(tmp_path)
    assert bundles(root) == ()
    assert stores(root) == ()


def test_debian_has_one_bundle_under_several_names(tmp_path: Path) -> None:
    root = a_system(tmp_path, ("etc/ssl/certs/ca-certificates.crt",))
    link(root, "usr/lib/ssl/cert.pem", "../../../etc/ssl/certs/ca-certificates.crt")
    link(root, "etc/ssl/certs/0a.0", "ca-certificates.crt")
    assert bundles(root) == ("/etc/ssl/certs/ca-certificates.crt",)


def test_fedora_has_it_behind_links(tmp_path: Path) -> None:
    real = "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem"
    root = a_system(tmp_path, (real,))
    link(root, "etc/pki/tls/certs/ca-bundle.crt", f"../../../../{real}")
    link(root, "etc/pki/tls/cert.pem", "certs/ca-bundle.crt")
    link(root, "etc/ssl/certs", "../pki/tls/certs")
    # /etc/pki/tls/cert.pem is shown as a file of its own.
    assert set(bundles(root)) == {f"/{real}", "/etc/pki/tls/cert.pem"}


def test_alpine_has_it_twice(tmp_path: Path) -> None:
    root = a_system(tmp_path, ("etc/ssl/certs/ca-certificates.crt",))
    link(root, "etc/ssl/cert.pem", "certs/ca-certificates.crt")
    assert set(bundles(root)) == {"/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"}


def test_suse_keeps_it_where_nothing_is_shown_so_it_is_made_there(tmp_path: Path) -> None:
    root = a_system(tmp_path, ("var/lib/ca-certificates/ca-bundle.pem",))
    link(root, "etc/ssl/ca-bundle.pem", "../../var/lib/ca-certificates/ca-bundle.pem")
    assert bundles(root) == ("/etc/ssl/ca-bundle.pem",)


def test_a_link_into_the_runtimes_own_trees_is_left_alone(tmp_path: Path) -> None:
    root = a_system(tmp_path, ("etc/ssl/certs/a.pem",))
    for to in ("/proc/self/status", "/dev/null"):
        (root / "etc/ssl/certs/ca-certificates.crt").unlink(missing_ok=True)
        link(root, "etc/ssl/certs/ca-certificates.crt", to)
        assert bundles(root) == ()


def test_each_jvm_has_a_store_of_its_own_or_the_systems(tmp_path: Path) -> None:
    own = "usr/lib/jvm/own/lib/security/cacerts"
    old = "usr/lib/jvm/java-8/jre/lib/security/cacerts"
    root = a_system(tmp_path, (own, old, "etc/ssl/certs/java/cacerts"))
    link(root, "usr/lib/jvm/debians/lib/security/cacerts", f"{'../' * 6}etc/ssl/certs/java/cacerts")
    link(root, "usr/lib/jvm/default", "own")
    assert set(stores(root)) == {f"/{own}", f"/{old}", "/etc/ssl/certs/java/cacerts"}


def test_a_store_that_is_not_shown_is_not_covered(tmp_path: Path) -> None:
    """Nothing of /opt is inside; a link there leads nowhere, and nothing can be made below /usr."""
    root = a_system(tmp_path, ("opt/jdk/lib/security/cacerts",))
    link(root, "usr/lib/jvm/other", "../../../opt/jdk")
    assert stores(root) == ()
