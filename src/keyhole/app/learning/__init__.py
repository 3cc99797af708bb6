"""What sandboxes did, read from the audit log: for `keyhole learn` and `keyhole replay`."""
