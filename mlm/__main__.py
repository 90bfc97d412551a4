"""`python -m mlm` is the command `mlm`."""

from mlm.cli import entry

if __name__ == "__main__":
    entry.main()
