"""`python -m ftcli`, for launchers that start a module."""

import sys

from ftcli.cli.main import main

sys.exit(main())
