"""What is shown of the system (I1, I2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyhole.model.errors import Refused
from keyhole.sandbox.files.generated_files import NAMESERVER, Account, generated_files
from keyhole.sandbox.files.mount_plan import Bind, Mask, MountKind, Symlink, TextFile, Tmpfs
from keyhole.sandbox.files.system_trees import SystemFiles, system_files

if TYPE_CHECKING:
    from pathlib import Path

USERINFO = "https://user:hunter2@mirror.example/"


def a_root(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    for name, content in files.items():
        path = tmp_path / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


def shown(root: Path) -> SystemFiles:
    return system_files(root, frozenset())


def targets(found: SystemFiles) -> set[str]:
    return {entry.target for entry in found.entries if not isinstance(entry, Mask)}


def test_a_merged_system_keeps_its_links(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    (root / "bin").symlink_to("usr/bin")
    entries = shown(root).entries
    assert Bind(str(root / "usr"), "/usr", MountKind.DIR) in entries
    assert Symlink("/bin", "usr/bin") in entries


def test_a_split_system_keeps_its_directories(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    (root / "lib64").mkdir()
    assert Bind(str(root / "lib64"), "/lib64", MountKind.DIR) in shown(root).entries


def test_of_etc_only_what_is_listed_is_shown(tmp_path: Path) -> None:
    hidden = ["shadow", "npmrc", "gitconfig", "environment", "ssh/ssh_host_rsa_key", "machine-id",
              "ssl/private/site.key", "apt/auth.conf", "apt/auth.conf.d/corp.conf", "krb5.keytab",
              "passwd", "resolv.conf", "hosts"]  # fmt: skip
    root = a_root(tmp_path, **dict.fromkeys([*hidden, "ld.so.cache", "ssl/certs/a.pem"], "x"))
    found = {t for t in targets(shown(root)) if t.startswith("/etc/")}
    assert found == {"/etc/ld.so.cache", "/etc/ssl/certs", "/etc/mtab"}


def test_nothing_of_run_home_or_var_is_shown(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    for name in ("run", "home", "var", "root", "boot", "sys", "opt", "srv"):
        (root / name).mkdir()
    found = shown(root)
    assert not {e.target for e in found.entries if isinstance(e, Bind)} - {"/usr"}
    assert {e.target for e in found.entries if isinstance(e, Tmpfs)} == {"/run", "/var/tmp"}  # noqa: S108


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pip.conf", f"[global]\nindex-url = {USERINFO}\n"),
        ("apt/sources.list", f"deb {USERINFO} stable main\n"),
        ("apt/apt.conf", f'Acquire::http::Proxy "{USERINFO}";\n'),
        ("wgetrc", "http_password = hunter2\n"),
    ],
)
def test_a_settings_file_is_shown_unless_a_credential_is_in_it(
    tmp_path: Path, name: str, content: str
) -> None:
    root = a_root(tmp_path, **{name: content})
    assert f"/etc/{name}" not in targets(shown(root))
    assert shown(root).withheld == (f"/etc/{name}",)
    (root / "etc" / name).write_text("# nothing to hide\n")
    assert f"/etc/{name}" in targets(shown(root))
    assert shown(root).withheld == ()


def test_one_file_of_a_directory_is_masked_and_the_rest_shown(tmp_path: Path) -> None:
    root = a_root(
        tmp_path,
        **{
            "apt/sources.list.d/corp.sources": f"Types: deb\nURIs: {USERINFO}\n",
            "apt/sources.list.d/debian.sources": "Types: deb\nURIs: http://deb.example/\n",
            "profile.d/proxy.sh": "export API_TOKEN=hunter2\n",
        },
    )
    found = [entry.target for entry in shown(root).entries if isinstance(entry, Mask)]
    assert found == ["/etc/profile.d/proxy.sh", "/etc/apt/sources.list.d/corp.sources"]
    assert "/etc/apt/sources.list.d" in targets(shown(root))


def test_the_time_zone_stays_a_link_that_tells_its_name(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert Symlink("/etc/localtime", "/usr/share/zoneinfo/Europe/Berlin") in shown(root).entries


def test_a_link_out_of_etc_is_not_followed(tmp_path: Path) -> None:
    root = a_root(tmp_path / "root", **{"pki/real/cert.pem": "x"})
    (root / "etc/ssl").mkdir()
    (root / "etc/ssl/certs").symlink_to(root / "etc/pki/real")
    assert Bind(str(root / "etc/pki/real"), "/etc/ssl/certs", MountKind.DIR) in shown(root).entries
    (tmp_path / "elsewhere").mkdir()
    (root / "etc/ssl/certs").unlink()
    (root / "etc/ssl/certs").symlink_to(tmp_path / "elsewhere")
    assert "/etc/ssl/certs" not in targets(shown(root))


def test_a_package_managers_settings_in_usr_are_masked_when_they_tell(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    (root / "usr/etc").mkdir()
    (root / "usr/etc/npmrc").write_text("prefix=/usr\n")
    assert not [e for e in shown(root).entries if isinstance(e, Mask)]
    (root / "usr/etc/npmrc").write_text("//registry.example/:_authToken=hunter2\n")
    assert Mask("/usr/etc/npmrc", MountKind.FILE) in shown(root).entries


def account(user: str = "dev", uid: int = 1000, home: str = "/home/dev") -> Account:
    return Account(user, uid, uid, home)


def generated(who: Account) -> dict[str, str]:
    return {e.target: e.content for e in generated_files(who, "keyhole") if isinstance(e, TextFile)}


def test_the_accounts_are_root_nobody_and_the_user() -> None:
    lines = generated(account())["/etc/passwd"].splitlines()
    assert [line.split(":")[0] for line in lines] == ["root", "dev", "nobody"]
    assert lines[1] == "dev:x:1000:1000::/home/dev:/bin/sh"


def test_an_account_is_never_listed_twice() -> None:
    lines = generated(account("nobody", 65534))["/etc/passwd"].splitlines()
    assert [line.split(":")[2] for line in lines] == ["0", "65534"]


@pytest.mark.parametrize("bad", [account("a:b"), account("a\nb"), account(home="/h\nroot::0")])
def test_an_account_cannot_write_lines_of_its_own(bad: Account) -> None:
    with pytest.raises(Refused):
        generated_files(bad, "keyhole")


def test_the_name_server_is_neither_loopback_nor_synthetic() -> None:
    assert generated(account())["/etc/resolv.conf"] == f"nameserver {NAMESERVER}\n"
    assert not NAMESERVER.startswith(("127.", "198.18.", "198.19."))
