"""`keyhole watch` on a whole terminal: what sandboxes do now, and what a person does about it."""
