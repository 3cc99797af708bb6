"""The event log: what was decided, written down so that no one can quietly rewrite it (I8, I9).

`app` opens an `AuditLog` and hands it to the gateway; `keyhole log` reads and verifies. The room
knows nothing of sandboxes or connections: it is given events, a clock and bounds.
"""
