"""The JSON Schema of a policy as a file of this host, which the first line of a policy names.

Used by `keyhole init` and `keyhole policy schema --save`. A file, since an editor then needs no
network and sees the keys of the Keyhole that is installed.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.app.setup.catalogue import FileCatalogue
from keyhole.host import presets
from keyhole.policy.reference import json_schema

if TYPE_CHECKING:
    from keyhole.app.setup.host_paths import HostPaths


def policy_schema() -> dict[str, Any]:
    """The schema with the services of the catalogue and the presets."""
    return json_schema(FileCatalogue(), presets.NAMES)


def schema_reference(places: HostPaths, project: Path) -> str:
    """The schema as the first line of the project's policy names it; empty if that would tell
    readers of the policy whose it was.

    Editors take a path relative to the policy. Below the home it has neither the person's name nor
    a path of this host in it, and a policy may be committed.
    """
    home, here = (Path(os.path.realpath(each)) for each in (places.home, project))
    schema = Path(os.path.realpath(places.schema.parent)) / places.schema.name
    if not (schema.is_relative_to(home) and here.is_relative_to(home)):
        return ""
    return os.path.relpath(schema, here)


def save_schema(places: HostPaths) -> None:
    """Write the schema. Raises OSError."""
    target = places.schema
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".schema-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(policy_schema(), file, indent=2)
    Path(name).replace(target)
