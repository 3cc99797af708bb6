"""The plugin in the node's configuration: a network plugin may write it anew at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.rigs.kube.estate import Estate


def test_a_pod_gets_its_door_although_the_plugin_was_just_removed_i2(estate: Estate) -> None:
    """The control: an unselected pod that starts in the same moment has its interface."""
    file = Path(f"/proc/{estate.pid}/root/etc/cni/net.d/10-pods.conflist")
    configuration = json.loads(file.read_text())
    configuration["plugins"] = configuration["plugins"][:-1]
    for count in range(3):
        names = f"selected-{count}", f"plain-{count}"
        file.write_text(json.dumps(configuration))
        estate.run(names[0], selected=True)
        file.write_text(json.dumps(configuration))
        estate.run(names[1], selected=False)
        try:
            links = [estate.inside(name, "ip", "-o", "link")[1] for name in names]
            assert [len(each.strip().splitlines()) for each in links] == [1, 2]
        finally:
            for name in names:
                estate.remove(name)
