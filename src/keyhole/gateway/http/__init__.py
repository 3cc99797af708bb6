"""Inspected connections: their requests are judged, rewritten, sent on and answered."""
