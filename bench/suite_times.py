"""Prints how long the tests of each file took, from JUnit files of pytest: python3 bench/suite_times.py JUNIT...

Set-up counts for the test that asked for it first. Several tests run at once, so the sum is more than the time of the run.
"""

import collections
import sys
import xml.etree.ElementTree as tree


def main(files):
    seconds, tests = collections.Counter(), collections.Counter()
    for file in files:
        for case in tree.parse(file).iter("testcase"):
            name = case.get("classname").replace(".", "/") + ".py"
            seconds[name] += float(case.get("time"))
            tests[name] += 1
    print(f"| file | tests | seconds |\n| --- | --: | --: |\n| all | {tests.total()} | {seconds.total():.0f} |")
    for name, time in seconds.most_common():
        print(f"| {name} | {tests[name]} | {time:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
