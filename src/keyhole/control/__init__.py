"""The control API on a Unix socket, by which commands reach a running gateway.

`server.py` and `client.py` are its two ends. One table (`operation_table.py`) has every operation:
requests are read, answers written and documents made from it. The operations are implemented
elsewhere and handed in (`interface.py`). The room knows nothing of policies, secrets or the audit
log."""
