"""`python -m oomdoc` is the `oomdoc` command."""

from .cli.main import main

if __name__ == "__main__":
    main()
