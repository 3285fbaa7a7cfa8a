"""The metrics of one scrape, as prometheus-client has them, and as they travel."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from math import inf, isinf

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder

from stillframe.watch.meanings import COUNTER, GAUGE, HISTOGRAM, MEANINGS

PREFIX = "stillframe_"
_UNITS = frozenset({"seconds", "bytes"})
"""Of these the format of OpenMetrics is told: the names end with them."""

Number = int | float


class Histogram:
    """How often values were in which bucket.

    Args:
        name: of the metric.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.sum = 0.0
        self._bounds = MEANINGS[name].bounds
        self._counts = [0] * (len(self._bounds) + 1)

    def take(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Return the upper bounds of the buckets, as text, each with how many values are not above
        it."""
        found, count = [], 0
        for bound, in_it in zip((*self._bounds, inf), self._counts, strict=True):
            count += in_it
            found.append(("+Inf" if isinf(bound) else str(bound), float(count)))
        return found


class Families:
    """Takes what is known, metric by metric, in any order."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def put(self, name: str, value: Number | None, *labels: str) -> None:
        """Say a value of a gauge or a counter; None is said of nothing.

        Args:
            name: as `MEANINGS` has it.
            value: what it is.
            labels: which series of the metric, in the order that its meaning has them.
        """
        if value is None:
            return
        family = self._family(name)
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily), name
        family.add_metric(labels, value)

    def put_all(self, name: str, values: Mapping[str, Number]) -> None:
        """Say the values of a metric with one label."""
        for label, value in values.items():
            self.put(name, value, label)

    def put_histogram(self, histogram: Histogram) -> None:
        """Say what a histogram has counted."""
        family = self._family(histogram.name)
        assert isinstance(family, HistogramMetricFamily), histogram.name
        family.add_metric((), buckets=histogram.buckets(), sum_value=histogram.sum)

    def collect(self) -> Iterator[Metric]:
        """Yield what was said, in the order of `MEANINGS`."""
        yield from (self._families[name] for name in MEANINGS if name in self._families)

    def _family(self, name: str) -> Metric:
        if name not in self._families:
            kind, unit, words, labels, _ = MEANINGS[name]
            make = {
                GAUGE: GaugeMetricFamily,
                COUNTER: CounterMetricFamily,
                HISTOGRAM: HistogramMetricFamily,
            }[kind]
            base = PREFIX + name.removesuffix("_total")
            is_unit = unit in _UNITS and base.endswith(f"_{unit}")
            self._families[name] = make(base, words, labels=labels, unit=unit if is_unit else "")
        return self._families[name]


def exposed(families: Families, accept: str) -> tuple[bytes, str]:
    """Return what was said in the format that whoever asks likes best, and the name of the format.

    Args:
        families: what was said.
        accept: the header of that name.
    """
    registry = CollectorRegistry()
    registry.register(families)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


def zero_of(names: Iterable[str]) -> dict[str, Number]:
    """Return zero for each name: a series that is there from the beginning shows its first rise."""
    return dict.fromkeys(names, 0)
