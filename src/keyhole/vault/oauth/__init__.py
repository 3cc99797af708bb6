"""Logins by OAuth that a person makes with `keyhole login`: the messages, without a socket, and
above them the steps that send them. No library is used: those that exist bring an HTTP client of
their own, and every request here must go through the one dialler, which judges the address."""
