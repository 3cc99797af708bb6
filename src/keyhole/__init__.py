"""Let code that nobody trusts use a credential without ever holding it."""

__version__ = "0.1.0"
