"""The streams of all gateways, for a person who watches."""
