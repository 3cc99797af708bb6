"""Proofs on this host: doctor, demo, trials of clients and secrets, each in a real sandbox."""
