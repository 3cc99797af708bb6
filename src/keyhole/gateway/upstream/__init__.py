"""The way out: connections to origins, and the requests that the gateway makes itself."""
