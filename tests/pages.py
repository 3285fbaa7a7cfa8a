"""Pages of the documents, as tests read them."""

import re


def blocks(language: str, page: str) -> list[str]:
    """Return the text of each code block of a page that is in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
