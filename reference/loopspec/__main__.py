"""``python -m loopspec`` is the command line."""

from loopspec.cli import main

if __name__ == "__main__":
    main(prog_name="loopspec")
