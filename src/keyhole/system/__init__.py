"""The room that all shells share and that imports none of them.

The one dialler (resolve, judge, race, proxy, verify) with the one client for HTTPS; walks over
paths; programs of the host, run within bounds; the clock; system calls; fault reports. May import
`policy`, `http` and `model`; knows nothing of sandboxes, services or the audit log.
"""
