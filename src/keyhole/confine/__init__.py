"""Restrictions that the kernel enforces on our processes: seccomp, Landlock, control groups."""
