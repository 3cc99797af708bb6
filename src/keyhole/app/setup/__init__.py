"""Prepares a launch from files on this host: policy, trust, secrets, files for the sandbox."""
