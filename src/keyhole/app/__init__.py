"""The composition root: builds the rooms below from files and hands them to one another."""
