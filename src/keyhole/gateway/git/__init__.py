"""Requests of git and of LFS: fetches, pushes and large files."""
