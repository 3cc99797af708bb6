"""The exit codes of all verbs."""

from __future__ import annotations

EXIT_OK = 0
EXIT_DENIED = 1
EXIT_UNUSABLE = 2
EXIT_REFUSED = 125
"""Keyhole itself refused or failed, in a verb whose exit code is otherwise the command's."""
EXIT_INTERRUPTED = 130
