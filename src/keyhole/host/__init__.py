"""Reads facts about this host: package managers, their settings, agents, git remotes, suffixes.

Called by `app` (presets, suffixes) and by `keyhole init`. It reads files and runs programs, but
only through the `HostEnvironment` that it is given, and never trusts a tree that the sandbox can
write (I11).
"""
