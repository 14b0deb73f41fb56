"""`python -m reproduction WHAT`."""

from reproduction.command import main

main()
