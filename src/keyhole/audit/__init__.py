"""The audit log: every decision, in a chain of lines that cannot be changed unnoticed (I8, I9).

`app` opens an `AuditLog` and hands it to the gateway; `keyhole log` reads and verifies it. The room
knows nothing of sandboxes or connections: it receives events, a clock and bounds.
"""
