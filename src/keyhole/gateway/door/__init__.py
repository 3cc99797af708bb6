"""The way in: accepted connections, DNS, tunnels, and the first bytes of each connection."""
