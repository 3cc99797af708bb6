"""Processes of Keyhole: how they start, watch and talk to one another."""
