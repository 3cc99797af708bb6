"""The self-test: tries from inside whether the walls of a sandbox stand on this host."""
