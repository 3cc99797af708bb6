"""Namespaces, by what the kernel says of them."""

from __future__ import annotations

import os
import re

from keyhole.system.namespaces import own_network


def test_a_network_is_named_as_the_kernel_names_it() -> None:
    found = re.fullmatch(r"net:\[([0-9]+)\]", own_network())
    assert found is not None
    assert int(found[1]) == os.stat("/proc/self/ns/net").st_ino
