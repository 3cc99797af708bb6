"""The data plane: doors, DNS, tunnels, upstream connections.

`gateway.py` is the way in. Protocol callbacks on one loop; decisions come from `policy/`, parsers
from `wire/`. Knows nothing of sandboxes, files, the command line or the audit log's format.
"""
