"""`python -m the_code CODE …`: as `python -c CODE …`, in a process that the nursery can bear."""

import sys

del sys.argv[0]
exec(sys.argv[0], {"__name__": "__main__"})
