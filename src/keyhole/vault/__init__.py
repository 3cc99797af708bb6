"""Where secrets come from, and custody in memory.

`app` makes a `Vault` from what `cli` hands it and fetches what a policy's services name; `keyhole
secret` keeps entries in the store. Sources are small files behind one interface. Nothing that was
read is in a message, a repr or an exception: what cannot be used is described, not quoted (I8).
"""
