"""The session's own authority and the leaves it signs, and whom the gateway and the sandbox trust.

`app` makes one `Authority` a session and hands the gateway its leaves and a client's context; the
sandbox is given certificates alone. Knows nothing of connections, mounts or the environment.
"""
