"""How credentials are written and kept out: the services catalogue, injection, placeholders.

Pure: it takes texts, secrets and random bytes, and returns values. Used by `policy` (which service
is which) and by the gateway.
"""
