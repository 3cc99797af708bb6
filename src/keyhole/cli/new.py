"""`keyhole new NAME [-- CMD…]`: a sandbox that stays, started in the background."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.app.containers import find_berth
from keyhole.app.named import NotPossible, Record, make, new_volume, refuse_taken
from keyhole.app.supervise import destroy
from keyhole.cli.main import EXIT_OK
from keyhole.cli.parser import CliError
from keyhole.cli.pulling import shown
from keyhole.cli.setting import environment, find_places
from keyhole.cli.start import accepted, begin
from keyhole.model.text import visible
from keyhole.model.value import replace
from keyhole.policy.schema import Runtime
from keyhole.sandbox.files.fileplan import Refused

if TYPE_CHECKING:
    import argparse

    from keyhole.app.places import Places
    from keyhole.app.policyfile import PolicyFile


def run(options: argparse.Namespace) -> int:
    """Make it, and return when it runs; else leave nothing of it."""
    command = tuple(options.command)
    places = find_places()
    try:
        refuse_taken(places.sandboxes, options.name)
    except NotPossible as error:
        raise CliError(f"no sandbox was made: {error}") from None
    file = accepted(options.policy, places, options.trust)
    try:
        named = make(places.sandboxes, _record(options, command, file, places))
    except (NotPossible, Refused) as error:
        raise CliError(f"no sandbox was made: {visible(str(error))}") from None
    try:
        begin(named, places)
    except BaseException:  # Ctrl-C among them
        try:
            destroy(named, places)
        except NotPossible as error:
            raise CliError(f"{error}; `keyhole destroy {named.name}` removes it") from None
        raise
    print(f"{named.name} runs; `keyhole exec {named.name} -- CMD` runs CMD in it")
    return EXIT_OK


def _record(
    options: argparse.Namespace, command: tuple[str, ...], file: PolicyFile, places: Places
) -> Record:
    sandbox = file.loaded.policy.sandbox
    runtime = Runtime(options.runtime) if options.runtime else sandbox.runtime
    if runtime is Runtime.BWRAP:
        raise Refused(
            "sandboxes with a name are containers: add --runtime docker, or `runtime` to the policy"
        )
    image = options.image or sandbox.image
    # The engine and the image, while somebody is there to see what is wrong with them.
    wanted = replace(sandbox, runtime=runtime, image=image)
    berth = find_berth(wanted, environment(), places.state, shown())
    berth.engine.close()
    return Record(
        name=options.name,
        runtime=str(runtime),
        image=str(image),
        engine=berth.engine.path,
        policy=str(file.path),
        directory=str(Path.cwd()),
        command=command,
        volume=new_volume(options.name),
        created=int(time.time()),
    )
