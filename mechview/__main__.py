"""`python -m mechview` is `mechview`."""

from mechview.cli import main

main()
