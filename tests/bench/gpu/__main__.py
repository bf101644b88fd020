"""`python -m tests.bench.gpu`."""

import sys

from tests.bench.gpu import main

sys.exit(main(sys.argv[1:]))
