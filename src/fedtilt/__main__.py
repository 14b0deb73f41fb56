"""`python -m fedtilt`: the command line, also from a source tree that is not installed."""

from fedtilt.cli import main

if __name__ == "__main__":
    main()
