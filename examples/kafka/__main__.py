"""``python -m examples.kafka``."""

import sys

from examples.kafka.demo import main

sys.exit(main())
