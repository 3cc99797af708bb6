"""The OAuth messages of `keyhole login`, read and written without a socket.

`vault/login_flow.py` sends them. No OAuth library is used: each comes with its own HTTP client, and
every request here must go through the one dialler, which judges the address."""
