"""Parsers for bytes that someone else chose: ClientHello, DNS, HTTP heads.

Pure: bytes in, values out, and nothing that the bytes hold makes a parser raise. Called by
`gateway/`, which owns the sockets. A parser never repairs: what it does not understand it refuses.
"""
