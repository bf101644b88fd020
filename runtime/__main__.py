"""`python -m runtime`, the same as `l2r-runtime`."""

import sys

from runtime.cli import main

sys.exit(main())
