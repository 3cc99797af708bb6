"""What a person types: verbs, flags, exit codes, words. The only room that reads argv and the
environment, and the only one that exits."""
