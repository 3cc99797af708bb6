"""A session's certificate authority and its leaves, and the roots that gateway and sandbox trust.

`app` makes one `Authority` a session and hands the gateway its leaves and a client's context; the
sandbox gets certificates alone. The room knows nothing of connections, mounts or the environment.
"""
