"""The driver of the tests on a cluster, whose programs share a session.

Each line that it reads, of JSON, ``[PLACE, MODULE, ARGUMENT, ...]``, asks it to run a module as the
main program with these arguments, in the directory PLACE: functions of a main program travel to
executors by value. It answers each with a line, which is ``null``
or the traceback.
"""

import json
import os
import runpy
import sys
import traceback


def main() -> None:
    """Do what standard input asks for until it ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    for line in sys.stdin:
        place, module, *arguments = json.loads(line)
        os.chdir(place)
        sys.argv[1:] = arguments
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except Exception:  # noqa: BLE001 - the one who asked has to know
            answers.write(json.dumps(traceback.format_exc()) + "\n")
        else:
            answers.write("null\n")


if __name__ == "__main__":
    main()
