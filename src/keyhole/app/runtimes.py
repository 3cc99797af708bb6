"""What makes a sandbox where nobody sits in front of it: for the doctor's trials and the demo."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keyhole.app.tried import Remembered
from keyhole.model.value import dataclass, field
from keyhole.policy.schema import Runtime as Runtimes
from keyhole.sandbox import programs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from keyhole.app.prepare import Prepared
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.interface import Runtime

_OF_ENGINES = ("DOCKER_HOST", "CONTAINER_HOST", "XDG_RUNTIME_DIR")
"""Variables by which an engine is found."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a trial's sandbox is made by and from; bubblewrap, unless somebody says otherwise."""

    runtime: Runtimes = Runtimes.BWRAP
    image: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """By which the engine is found."""

    @property
    def contained(self) -> bool:
        """Whether an engine makes it."""
        return self.runtime is not Runtimes.BWRAP

    @property
    def settings(self) -> str:
        """As a policy says it, below `[sandbox]`."""
        if not self.contained:
            return ""
        # A JSON string of these characters is one of TOML, too.
        return f'runtime = "{self.runtime}"\nimage = {json.dumps(self.image)}\n'

    @property
    def section(self) -> str:
        """All of that, for a policy that has no `[sandbox]` yet."""
        return f"[sandbox]\n{self.settings}" if self.contained else ""

    @property
    def python(self) -> tuple[str, ...]:
        """How an interpreter with few modules is started inside, in any image."""
        if not self.contained:
            return (programs.find().python,)
        from keyhole.sandbox.containers import closure

        return tuple(closure.started())


@contextmanager
def choose(runtime: str, image: str, env: Mapping[str, str], state: Path) -> Iterator[Choice]:
    """This runtime with this image, or with one that is made of the host's programs meanwhile.

    `state` is where what was found in an image is remembered. Raises Refused, Missing.
    """
    chosen = Runtimes(runtime)
    variables = {name: env[name] for name in _OF_ENGINES if name in env}
    if chosen is Runtimes.BWRAP:
        yield Choice()
    elif image:
        yield Choice(chosen, image, variables)
    else:
        from keyhole.app.containers import own_berth

        with own_berth(runtime, env, state) as name:
            yield Choice(chosen, name, variables)


def unattended(
    prepared: Prepared, policy: Policy, tried: Path, session: str, streams: tuple[int, int]
) -> Runtime:
    """A sandbox with these for its input, and for its output and errors."""
    launch = prepared.launch(interactive=False)
    given, taken = streams
    if prepared.berth is None:
        from keyhole.app.bubblewrap import Bubblewrap
        from keyhole.sandbox.terminal import Terminal

        return Bubblewrap(launch, Terminal(given, taken, taken), policy, Remembered(tried))
    from keyhole.app.boxed import Boxed
    from keyhole.sandbox.containers.console import Console

    made = prepared.berth.runtime(launch, Console(given, taken, taken), session)
    return Boxed(made, prepared.berth, policy, Remembered(tried))
