"""Systems to run, read and change: ``stillframe run stillframe.examples.bank:bank --store money``.

``examples/``, in the sources, has the demonstrations and a notebook, which need more packages.
"""
