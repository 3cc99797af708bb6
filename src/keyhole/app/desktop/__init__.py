"""Questions as notifications of the desktop, with buttons."""
