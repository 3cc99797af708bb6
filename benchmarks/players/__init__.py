"""The processes that take part in a measurement: client, origin, gateway, and its rival."""
