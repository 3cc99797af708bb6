"""Sandboxes that are containers of an engine: Docker, or Podman over its Docker-compatible API.

`holder.py` and `entrypoint.py` run inside, in a holder and a sandbox; all other modules run
outside.
"""
