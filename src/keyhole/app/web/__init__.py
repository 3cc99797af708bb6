"""The page of `keyhole web`: a server on loopback, in a process of its own, without any secret."""
