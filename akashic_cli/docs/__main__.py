"""`python -m akashic_cli.docs write|check`."""

from __future__ import annotations

import sys

from akashic_cli.docs.generate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
