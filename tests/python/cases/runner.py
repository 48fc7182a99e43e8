"""A rank: runs cases one after the other in one job, and writes what became of each. Arguments: module, folder, cases."""

import importlib
import json
import os
import sys
import traceback
import unittest

import zenps


def main():
    name, folder, chosen = sys.argv[1], sys.argv[2], sys.argv[3:]
    module = importlib.import_module(name)
    cases = chosen or [each for each in vars(module) if each.startswith("case_")]
    outcome = {}
    path = os.path.join(folder, os.environ["ZENPS_RANK"] + ".json")
    job = zenps.init(round_timeout=getattr(module, "ROUND_TIMEOUT", 240))
    for case in cases:
        try:
            getattr(module, case)(job)
            outcome[case] = "ok"
        except unittest.SkipTest as skip:
            outcome[case] = f"skipped: {skip}"
        except BaseException:  # a failure is this case's alone; the next ones show whether the job goes on
            outcome[case] = traceback.format_exc()
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(outcome, file)
        os.replace(path + ".new", path)
    job.close()


if __name__ == "__main__":
    main()
