"""Sandboxes made by bubblewrap, without a daemon and without root."""
