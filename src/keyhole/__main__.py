"""`python -m keyhole`: the same command as the installed `keyhole`."""

from keyhole.cli.main import entry

if __name__ == "__main__":
    entry()
