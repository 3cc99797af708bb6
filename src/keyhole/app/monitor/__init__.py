"""The data behind `keyhole web` and `keyhole watch`: sessions, the log, questions, usage."""
