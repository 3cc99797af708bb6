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


def save_schema(places: HostPaths) -> str:
    """Write the schema and return its URL. Raises OSError."""
    target = places.schema
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".schema-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(policy_schema(), file, indent=2)
    Path(name).replace(target)
    return target.absolute().as_uri()
