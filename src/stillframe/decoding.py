"""What goes wrong when bytes are decoded. Apart from ``errors``, which is read where there is no
msgspec: by tasks on the executors of a Spark cluster."""

import msgspec

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be: no text, or nested too deep."""
