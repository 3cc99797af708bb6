"""Sandboxes that are containers of an engine: Docker, or what speaks as Docker does.

`holder.py` and `entry.py` run inside, in a holder and a sandbox; all else runs outside.
"""
