"""The floor that the shells share: what any process of Keyhole needs of the system it runs on.

It may import the pure rooms and nothing above itself.
"""
