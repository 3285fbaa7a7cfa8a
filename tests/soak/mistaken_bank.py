"""The bank of the examples with a mistake of ``tests.services.mistakes``, which BANK_MISTAKE names.

``uvicorn tests.soak.mistaken_bank:app`` runs it.
"""

import os

from examples.services.bank import agent, app
from tests.services import mistakes

__all__ = ["app"]

getattr(mistakes, os.environ["BANK_MISTAKE"])(agent)
