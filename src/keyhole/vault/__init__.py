"""Sources of secrets, and custody in memory.

`app` makes a `Vault` and fetches the secrets that a policy's services name; `keyhole secret` keeps
entries in the store. Sources are small modules behind one interface. No message, repr or exception
quotes a value: it only describes why a value cannot be used (I8).
"""
