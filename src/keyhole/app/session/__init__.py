"""One session: its certificates, live policy, audit events and the record that outlives a crash."""
