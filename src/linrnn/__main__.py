"""``python -m linrnn`` is the command ``linrnn``."""

import sys

from linrnn.cli import main

sys.exit(main())
