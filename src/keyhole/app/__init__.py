"""The composition root: builds the parts from files, and hands them to one another."""
