"""Paths that a sandbox must not be given, with the reason: tables, and how a path is compared with
them.

If the policy names such a path, the run stops; inside a bound tree it is masked. `unsafe_paths`
lifts this for one path at a time (I1, I11).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct

from keyhole.sandbox.files.paths import is_below, is_within

if TYPE_CHECKING:
    from collections.abc import Iterable

_NEVER_AT = {
    "/": "the whole file system",
    "/home": "everyone's home",
    "/var": "the system's state",
    "/var/lib": "the system's state",
    "/tmp": "everyone's temporary files and sockets; the sandbox has a /tmp of its own",  # noqa: S108
    "/var/tmp": "everyone's temporary files and sockets",  # noqa: S108
    "/run/media": "everyone's disks",
}
_NEVER_BELOW = {
    "/proc": "the host's processes",
    "/sys": "the host's devices and network",
    "/dev": "the host's devices",
    "/run": "sockets of the host's services",
    "/boot": "the host's kernel",
    "/var/run": "sockets of the host's services",
    "/var/lib/docker": "every container's files",
    "/var/lib/containers": "every container's files",
    "/var/spool/cron": "what the host executes",
}
_EXCEPT_BELOW = ("/run/media",)
_ENGINE_SOCKETS = (
    "docker.sock", "podman.sock", "containerd.sock", "crio.sock", "buildkitd.sock",
)  # fmt: skip
_NOT_WRITABLE_BELOW = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix", "/gnu")
_WRITABLE_ANYWAY = ("/usr/src", "/usr/local/src")
_NOT_SHOWN_AT = ("/etc", "/usr")

_CREDENTIALS = """
.ssh .aws .azure .config/gcloud .config/gh .config/glab-cli .config/hub .netrc _netrc
.git-credentials .config/git/credentials .gnupg .docker/config.json .kube .npmrc .pypirc .yarnrc.yml
.cargo/credentials .cargo/credentials.toml .m2/settings.xml .m2/settings-security.xml
.gradle/gradle.properties .gem/credentials .composer/auth.json .config/composer/auth.json
.config/pip/pip.conf .pip/pip.conf .terraform.d/credentials.tfrc.json .terraformrc .vault-token
.config/op .config/doctl .config/hcloud .oci .s3cfg .boto .pgpass .my.cnf .databrickscfg .fly
.config/rclone .config/sops .config/helm .config/containers/auth.json .config/heroku .wrangler
.local/share/keyrings .local/share/kwalletd .kde/share/apps/kwallet .password-store
.config/1Password .config/Bitwarden .config/KeePassXC .config/keybase .pki
""".split()
_BROWSERS = """
.mozilla .librewolf .thunderbird .config/google-chrome .config/google-chrome-beta .config/chromium
.config/BraveSoftware .config/microsoft-edge .config/vivaldi .config/opera .config/Slack
.config/discord .config/Signal snap/firefox snap/chromium .var/app
""".split()
_AGENTS = """
.claude/.credentials.json .claude.json .codex/auth.json .gemini/oauth_creds.json
.gemini/google_accounts.json .local/share/opencode/auth.json .config/github-copilot
.config/goose/secrets.yaml .aider.conf.yml .continue/config.json .config/anthropic
.config/openai .config/Cursor .cursor/mcp.json .config/Code
""".split()
_STARTUP = """
.bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile
.zlogin .inputrc .xprofile .xsession .xinitrc .gitconfig .config/git .config/fish .config/autostart
.config/systemd .config/environment.d .config/nvim .config/emacs .config/direnv .config/mise
.config/zsh .vim .vimrc .emacs .emacs.d .tmux.conf .gdbinit .local/bin .local/share/applications
.local/share/systemd .local/lib .local/share/nvim bin go/bin .cargo/bin .cargo/config.toml
.cargo/env .pyenv .nvm .rbenv .asdf .sdkman .rustup .bun/bin .deno/bin .volta .npm-global .vscode
.vscode-server .pythonrc .pythonstartup .config/containers .local/share/containers .config/docker
.local/share/docker
""".split()


_OF_THE_SYSTEM = """
/etc/shadow /etc/gshadow /etc/sudoers /etc/sudoers.d /etc/ssh /etc/ssl/private /etc/pki/tls/private
/etc/apt/auth.conf /etc/apt/auth.conf.d /etc/npmrc /etc/krb5.keytab /etc/wireguard /etc/openvpn
/etc/NetworkManager/system-connections /etc/kubernetes /etc/rancher /etc/docker /var/lib/kubelet
/var/lib/rancher /var/lib/private
""".split()


class DangerousPath(Struct, frozen=True):
    """A path and why it is one."""

    path: str
    reason: str


def homes(home: str, paths: Iterable[str]) -> tuple[str, ...]:
    """The user's home, root's, and those of others that these paths lie in."""
    others = {"/".join(path.split("/")[:3]) for path in paths if is_below(path, "/home")}
    return tuple(dict.fromkeys([home, "/root", *sorted(others)]))


def never_bindable(path: str, homes: tuple[str, ...], *, writable: bool) -> str | None:
    """Why this path can never be bound, whatever the policy allows."""
    if path in homes:
        return "it is a home directory itself; name directories in it"
    if any(is_below(home, path) for home in homes):
        return "a home directory lies in it"
    if path in _NEVER_AT:
        return f"it is {_NEVER_AT[path]}"
    if not any(is_below(path, tree) for tree in _EXCEPT_BELOW):
        for tree, what in _NEVER_BELOW.items():
            if is_within(path, tree) and os.path.basename(path) not in _ENGINE_SOCKETS:
                return f"{tree} is {what}"
    if path in _NOT_SHOWN_AT:
        return "the parts of it that programs need are shown anyway"
    executed = any(is_within(path, tree) for tree in _NOT_WRITABLE_BELOW)
    if writable and executed and not any(is_below(path, tree) for tree in _WRITABLE_ANYWAY):
        return "the host executes what lies there"
    return None


def engine_socket(path: str) -> bool:
    """Whether it is the socket that controls a container engine, which means root on the host."""
    return os.path.basename(path) in _ENGINE_SOCKETS


def dangerous_to_see(homes: tuple[str, ...], secrets: tuple[str, ...]) -> tuple[DangerousPath, ...]:
    """Paths below these homes that must not be seen; `secrets` are files that the policy reads."""
    found = [DangerousPath(path, "it is a secret of this policy") for path in secrets]
    found += [DangerousPath(path, "it holds credentials") for path in _OF_THE_SYSTEM]
    for names, reason in (
        (_CREDENTIALS, "it holds credentials"),
        (_BROWSERS, "it holds a person's sessions and passwords"),
        (_AGENTS, "it holds an agent's credentials"),
    ):
        found += [DangerousPath(f"{home}/{name}", reason) for home in homes for name in names]
    return with_real_paths(found)


def dangerous_to_write(homes: tuple[str, ...]) -> tuple[DangerousPath, ...]:
    """Paths that must not be writable, because the host executes them without a question."""
    reason = "the host executes what lies there"
    return with_real_paths(
        [DangerousPath(f"{home}/{name}", reason) for home in homes for name in _STARTUP]
    )


def with_real_paths(found: list[DangerousPath]) -> tuple[DangerousPath, ...]:
    """The same paths and the targets of their links: `~/.aws` may be a link to ~/dotfiles/aws."""
    real = [
        DangerousPath(os.path.realpath(danger.path), danger.reason)
        for danger in found
        if os.path.lexists(danger.path)
    ]
    return tuple(dict.fromkeys([*found, *real]))
