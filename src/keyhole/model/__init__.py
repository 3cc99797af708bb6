"""The frozen vocabulary that every room speaks: names, paths, refs, secrets, decisions.

Called by every room; imports nothing of Keyhole's. Each type is made by one `parse` that accepts
one spelling of a thing or raises, so that strings stop at the edge.
"""
