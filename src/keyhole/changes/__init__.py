"""Changes of a sandbox that are held for review: read, shown, applied, undone, discarded.

`sandbox.changes = "review"` gives the sandbox an overlay over each writable tree. This room reads
the overlay's upper directory, which hostile code has written, and writes the person's tree.
"""
