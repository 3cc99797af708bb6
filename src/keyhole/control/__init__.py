"""The Unix-socket API: how a person's commands reach a gateway that lives longer than they do.

`server.py` and `client.py` are the two ways in. What can be asked is one table (`table.py`), from
which requests are read, answers written and documents made; who does what is asked is handed in
(`interface.py`). Knows nothing of doors' inner life, policies, secrets or the audit log.
"""
