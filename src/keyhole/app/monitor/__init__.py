"""What a person watches: sessions, the log, usage. Shared by `app/web` and `app/watch`."""
