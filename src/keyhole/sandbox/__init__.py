"""The runtimes that untrusted code is run by, and the helper that makes its empty network.

Two processes of this room run outside of Keyhole's own: `helper_main.py` (the helper: makes the
namespaces, hands over the door, becomes bubblewrap) and `sandbox_init.py` (the first process in the
sandbox: asserts that the walls stand, becomes the command). Neither ever holds a secret.
"""
