"""The command line: words in, words out. What it does is done in the layers below."""
