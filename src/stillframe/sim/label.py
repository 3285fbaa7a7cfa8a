"""Messages as people read them in a trace."""

from stillframe.process import Message
from stillframe.trace import clean_label

LABEL_CHARACTER_MAX = 60


def shown(message: Message) -> str:
    """Return a message as a label: as it prints itself, on one line, shortened."""
    text = clean_label(str(message))
    return text if len(text) <= LABEL_CHARACTER_MAX else f"{text[: LABEL_CHARACTER_MAX - 1]}…"
