"""`python -m cotenant`: the command line, also where its program is not on the PATH."""

from cotenant.cli.main import main

if __name__ == "__main__":
    main()
