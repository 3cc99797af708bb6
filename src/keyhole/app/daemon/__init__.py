"""The long-lived gateway of `keyhole up`: control process, data plane and keeper."""
