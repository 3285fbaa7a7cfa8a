"""Rings of idle processes with small states; a module that loads nothing else."""

import stillframe


class Token(stillframe.Message):
    """What would go round."""

    serial: int


class Idle(stillframe.Process):
    """Waits for a token that never comes."""

    count: int = 0

    def receive(self, channel: stillframe.Channel, message: Token) -> None:
        """Count it."""
        self.count += 1


def _ring(count: int) -> stillframe.Topology:
    names = [f"P{index}" for index in range(count)]
    channels = [(name, names[(index + 1) % count]) for index, name in enumerate(names)]
    return stillframe.Topology({name: Idle() for name in names}, channels)


ring_of_5 = _ring(5)
ring_of_50 = _ring(50)
ring_of_200 = _ring(200)
