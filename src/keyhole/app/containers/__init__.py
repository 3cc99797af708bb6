"""Sandboxes that outlive a command: named containers, and those that another tool makes."""
