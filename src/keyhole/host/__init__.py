"""What this host has: package managers and their settings, agents, git remotes, public suffixes.

Called by `app` (presets, suffixes) and by `keyhole init`. It reads files and asks programs, but
only through the `Surroundings` it is handed, and never believes a tree that the sandbox can write
(I11).
"""
