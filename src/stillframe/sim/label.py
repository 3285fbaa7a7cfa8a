"""Messages as people read them in a trace."""

from stillframe.process import Message

LABEL_CHARACTER_MAX = 60


def shown(message: Message) -> str:
    """Return a message as a label: as it prints itself, shortened."""
    text = str(message)
    return text if len(text) <= LABEL_CHARACTER_MAX else f"{text[: LABEL_CHARACTER_MAX - 1]}…"
