"""``python -m examples.flights``."""

import sys

from examples.flights.demo import main

sys.exit(main())
