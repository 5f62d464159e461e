"""Prints how long the tests of each file took, from JUnit files of pytest: python3 bench/suite_times.py ALL SHORT

SHORT is the file of a run with --long=no. Set-up counts for the test that asked for it first. Several tests run at once, so the
sum is more than the time of the run.
"""

import collections
import sys
import xml.etree.ElementTree as tree


def times_in(junit):
    """The seconds and the number of the tests of each file."""
    seconds, tests = collections.Counter(), collections.Counter()
    for case in tree.parse(junit).iter("testcase"):
        name = case.get("classname").replace(".", "/") + ".py"
        seconds[name] += float(case.get("time"))
        tests[name] += 1
    return seconds, tests


def main(whole, short):
    (all_seconds, all_tests), (seconds, tests) = times_in(whole), times_in(short)
    print("| file | tests | seconds | in the short run | seconds |\n| --- | --: | --: | --: | --: |")
    print(f"| all | {all_tests.total()} | {all_seconds.total():.0f} | {tests.total()} | {seconds.total():.0f} |")
    for name, time in all_seconds.most_common():
        print(f"| {name} | {all_tests[name]} | {time:.1f} | {tests[name]} | {seconds[name]:.1f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
