"""How credentials are written and kept out: the services catalogue, injection, placeholders.

Pure: it is handed texts, secrets and random bytes, and gives back values. Used by `policy` (which
service is which) and by the gateway.
"""
