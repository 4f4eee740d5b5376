"""``python -m app.cli``: the command line where the console script is not installed."""

from app.cli.main import main

main()
