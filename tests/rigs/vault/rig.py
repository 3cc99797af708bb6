"""What the vault's tests share: a value, a small world, and all that an error could tell."""

from __future__ import annotations

import base64
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from keyhole.model.secret import SecretRef
from keyhole.vault.keyrings import Keyrings
from keyhole.vault.store_source import PassphrasePrompt
from keyhole.vault.vault import Vault, VaultContext

VALUE = "tok-5f2c9d417ab0-correct-horse"
SHELL = Path("/bin/sh")


def ref(text: str) -> SecretRef:
    """A reference as the policy has it."""
    return SecretRef.parse(text)


def shell(script: str) -> SecretRef:
    """`exec:sh -c SCRIPT`; the script has no single quote."""
    return ref(f"exec:sh -c '{script}'")


@dataclass
class World:
    """A home, a project and a store of their own."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    writable: tuple[Path, ...] = ()
    ask: PassphrasePrompt | None = None
    keyrings: Keyrings = field(default_factory=lambda: Keyrings(lambda: None))

    def __post_init__(self) -> None:
        self.home.mkdir(exist_ok=True)
        self.project.mkdir(exist_ok=True)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def store(self) -> Path:
        return self.root / "state" / "secrets"

    def write(self, path: str, content: str | bytes = VALUE + "\n", mode: int = 0o600) -> Path:
        """A file below the root."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
        target.chmod(mode)
        return target

    def vault(self, **programs: Path) -> Vault:
        """A vault on this ground, in which every `exec:sh` is the system's."""
        return Vault(self.ground(Programs(programs)))

    def ground(self, programs: Programs) -> VaultContext:
        return VaultContext(
            home=self.home,
            directory=self.project,
            store=self.store,
            env=self.env,
            programs=programs,
            writable=self.writable,
            ask=self.ask,
            keyrings=self.keyrings,
        )


class Programs(dict[SecretRef, Path]):
    """The trust step's answer: `sh`, and what a test names."""

    def __init__(self, named: dict[str, Path]) -> None:
        super().__init__()
        self._named = {"sh": SHELL} | named

    def get(self, key: SecretRef, default: object = None) -> Path:
        return self._named.get(key.argv[0], Path("missing"))


def told(error: BaseException) -> str:
    """All that an error can put into a log: its text, its repr, its tracebacks with all locals."""
    found = [str(error), repr(error), repr(error.args), repr(vars(error))]
    # The first frame is the test's, which knows the value.
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    seen: BaseException | None = error
    while seen is not None:
        walk = traceback.walk_tb(frames)
        found += traceback.StackSummary.extract(walk, capture_locals=True).format()
        seen = seen.__context__
        found.append(f"{seen} {seen!r} {vars(seen) if seen else ''}")
        frames = seen.__traceback__ if seen else None
    return "".join(found)


def forms(value: str) -> tuple[str, ...]:
    """The value as it could turn up in a text."""
    raw = value.encode()
    return (value, raw.hex(), base64.b64encode(raw).decode().rstrip("=")[:-1])
