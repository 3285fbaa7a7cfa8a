"""The command line: it parses arguments and prints results. The layers below do the work."""
