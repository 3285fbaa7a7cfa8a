"""Services behind a bad network, whose every observation is judged.

``python -m tests.soak.services --observations 1000 --seed 1`` prints ``SEED=`` first. Three banks,
one with two processes, pay each other through proxies that lose, delay and double requests and
answers. The messages of the collector are late on purpose: otherwise a wrong rule would hardly ever
be noticed. Every total of an exact observation must be right. Sometimes three banks open their
vaults for each other at once, in an order that can end in a deadlock: an observation must find each
one that its calls prove, and none must be reported at another time. At the end instances are killed
-9 and started again, and each is named.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import httpx
import msgspec

from examples.services.bad_network import BadNetwork, Faults
from examples.services.bank import BALANCE, RING_TIMEOUT_S
from stillframe.detect.call_waits import find_call_deadlock
from stillframe.protocol.activities import InstanceState
from stillframe.protocol.calls import CallPlace, Observation
from stillframe.runtime.network.addresses import Address
from stillframe.services.observer import Observer, ObserverConfig
from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent
SECRET = "the secret of the soak"
LATE_S_MAX = 0.4
FAULTS = Faults(lost_requests=0.02, lost_answers=0.02, doubled=0.02, delayed=0.1)
RATE = 30.0
PROCESS_COUNTS = {"A": 1, "B": 2, "C": 1, "D": 1}
RING = ("A", "C", "D")
"""Banks with one process, so that a request reaches the vault that is meant."""
