"""The process that reads a pushed pack, and its confinement."""
