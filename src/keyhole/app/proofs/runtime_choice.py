"""The runtime of an unattended sandbox: for the doctor and the demo."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keyhole.app.selftest.wall_trial import WallTrial
from keyhole.policy.schema import RuntimeName as Runtimes
from keyhole.sandbox import programs
from keyhole.sandbox.bwrap.bwrap_runtime import BubblewrapRuntime
from keyhole.sandbox.bwrap.terminal import Terminal
from keyhole.sandbox.containers import holder_image
from keyhole.sandbox.containers.console import ContainerConsole
from keyhole.sandbox.containers.container_target import host_image_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from keyhole.app.setup.launch_preparation import PreparedLaunch
    from keyhole.policy.policy import Policy
    from keyhole.sandbox.interface import SandboxRuntime

_OF_ENGINES = ("DOCKER_HOST", "CONTAINER_HOST", "XDG_RUNTIME_DIR")
"""Variables by which an engine is found."""


class RuntimeChoice(Struct, frozen=True):
    """The runtime and image of a trial's sandbox; bubblewrap by default."""

    runtime: Runtimes = Runtimes.BWRAP
    image: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The variables by which the engine is found."""

    @property
    def contained(self) -> bool:
        """Whether an engine makes it."""
        return self.runtime is not Runtimes.BWRAP

    @property
    def settings(self) -> str:
        """The settings as a policy has them, below `[sandbox]`."""
        if not self.contained:
            return ""
        # These characters are written alike in a JSON string and in one of TOML.
        return f'runtime = "{self.runtime}"\nimage = {json.dumps(self.image)}\n'

    @property
    def section(self) -> str:
        """The whole section, for a policy that has no `[sandbox]` yet."""
        return f"[sandbox]\n{self.settings}" if self.contained else ""

    @property
    def python(self) -> tuple[str, ...]:
        """The words that start an interpreter with few modules inside, in any image."""
        if not self.contained:
            return (programs.find_programs().python,)
        return tuple(holder_image.interpreter_command())


@contextmanager
def choose_runtime(
    runtime: str, image: str, env: Mapping[str, str], state: Path
) -> Iterator[RuntimeChoice]:
    """This runtime with this image, or with one made of the host's programs while the block lasts.

    `state` has the cached facts about images. Raises Refused, ResourceUnusable.
    """
    chosen = Runtimes(runtime)
    variables = {name: env[name] for name in _OF_ENGINES if name in env}
    if chosen is Runtimes.BWRAP:
        yield RuntimeChoice()
    elif image:
        yield RuntimeChoice(chosen, image, variables)
    else:
        with host_image_target(runtime, env, state) as name:
            yield RuntimeChoice(chosen, name, variables)


def unattended_runtime(
    prepared: PreparedLaunch, policy: Policy, tried: Path, session: str, streams: tuple[int, int]
) -> SandboxRuntime:
    """A sandbox with these descriptors for its input, and for its output and errors."""
    launch = prepared.launch(interactive=False)
    given, taken = streams
    trial = WallTrial(policy, tried)
    if prepared.container_target is None:
        return BubblewrapRuntime(launch, Terminal(given, taken, taken), trial.in_bubblewrap)
    console = ContainerConsole(given, taken, taken)
    return prepared.container_target.runtime(
        launch, console, session, trial.in_container(prepared.container_target)
    )
