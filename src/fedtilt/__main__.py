"""`python -m fedtilt`: the command line from a source tree, where nothing is installed."""

from fedtilt.cli import main

if __name__ == "__main__":
    main()
