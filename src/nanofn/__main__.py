"""`python -m nanofn` is `nanofn`."""

import sys

from nanofn.cli import main

sys.exit(main())
