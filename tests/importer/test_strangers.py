"""Whatever bytes a log has, the answer is a trace or a sentence."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillframe import tracefile
from stillframe.errors import StillframeError
from stillframe.importer.jsonlines import read_json_lines
from stillframe.importer.shiviz import read_shiviz

PIECES = st.sampled_from(
    [
        *(b"a", b"b", b" ", b"\n", b"{", b"}", b'"', b":", b",", b"1", b"2", b"0", b"-", b"\xff"),
        *(b'{"a":1}', b'\na {"a":1}\n', b'{"a":2,"b":1}', b"null", b"[", b"]", b"1e999"),
        *(b'{"node":"a","event":"<","pkt":{"vc":{"a":1},"snd":"a"}}\n', b'"stillframe_trace":1,'),
        *(b"\xef\xbb\xbf", b"\xff\xfe", b"=== Execution #1 ===\n", b'{"a":1,"a":1}', b"{\n"),
        b'{"node":"b","event":">","pkt":{"vc":{"a":1,"b":1},"rcv":"a"}}\n',
        b'{"stillframe_trace":1,"processes":["a","b"],"channels":[]}\n',
        b'{"type":"event","process":"a","sent":[{"channel":{"source":"a","target":"b"},"number":1}]}\n',
    ]
)


@pytest.mark.parametrize(
    "read", [partial(read_shiviz, fill_gaps=True), read_shiviz, read_json_lines, tracefile.read]
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(PIECES, max_size=12).map(b"".join))
def test_nothing_but_a_sentence_comes_of_nonsense(
    tmp_path: Path, read: Callable[[Path], object], content: bytes
) -> None:
    """No reader fails in another way than by an error of ours."""
    path = tmp_path / "log"
    path.write_bytes(content)
    sentence = "log"
    try:
        read(path)
    except StillframeError as error:
        sentence = str(error)
    assert sentence.startswith(("log", str(path)))
