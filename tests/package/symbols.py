"""What a program takes from the libraries of the machine that it runs on."""

import re
import subprocess


def newest_symbol(program, library):
    """Returns the newest version, such as (2, 28), of the symbols that the program takes from GLIBC or GLIBCXX."""
    needs = subprocess.run(["readelf", "-VW", program], capture_output=True, text=True, check=True).stdout
    return max(tuple(map(int, version.split("."))) for version in re.findall(rf"Name: {library}_([0-9.]+)", needs))
