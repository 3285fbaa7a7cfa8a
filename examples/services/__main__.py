"""``python -m examples.services``."""

import sys

from examples.services.demo import main

sys.exit(main())
