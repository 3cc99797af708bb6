"""The command line: verbs, flags, exit codes and messages.

No other room reads argv or the environment, and no other room exits.
"""
