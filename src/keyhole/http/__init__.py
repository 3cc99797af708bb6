"""HTTP messages: heads, fields and bodies, read strictly and rebuilt.

Pure: bytes in, values out. Called by `gateway/` for both sides of an inspected connection, and by
the other rooms that speak HTTP. Nothing is repaired: a message that two servers could read in two
ways is refused, since that difference is what request smuggling is made of (I4).
"""
