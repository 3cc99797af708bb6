"""Homes and caches that Keyhole keeps for sandboxes, below its own state directory."""
