#!/usr/bin/env python3
"""Checks that a wheel runs on every Linux and with every Python that its name promises.

    tools/check_wheel.py WHEEL        in an environment with auditwheel and abi3audit

The symbols of the C library and of Python's stable ABI that the wheel uses are those of the oldest versions that it is
for, and every CPython from 3.9 on that this machine has imports it.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

from elftools.elf.elffile import ELFFile

# The newest C library that a wheel may need.
NEWEST_GLIBC = (2, 28)
PYTHONS = range(9, 20)


def tool(name):
    """A program of the environment that runs this."""
    return pathlib.Path(sys.executable).parent / name


def check_platform(wheel):
    report = json.loads(subprocess.check_output([tool("auditwheel"), "show", "--json", wheel], text=True))
    found = re.fullmatch(r"manylinux_(\d+)_(\d+)_\w+", report["overall_tag"])
    assert found, f"{wheel.name}: expected a manylinux wheel, auditwheel finds {report['overall_tag']}"
    needed = (int(found[1]), int(found[2]))
    assert needed <= NEWEST_GLIBC, f"{wheel.name}: needs glibc {needed}, at most {NEWEST_GLIBC} is allowed"
    promised = re.search(r"-cp39-abi3-(?:[^-]*\.)?manylinux_(\d+)_(\d+)_", wheel.name)
    assert promised, f"{wheel.name}: expected a wheel for cp39-abi3 and manylinux"
    promised = (int(promised[1]), int(promised[2]))
    assert needed <= promised, f"{wheel.name}: promises glibc {promised}, needs {needed}"
    print(f"glibc {promised[0]}.{promised[1]} and later")


def check_symbols(library):
    """Every symbol is Python's, or has the version of a library, or may be missing."""
    elf = ELFFile(library.open("rb"))
    versions = elf.get_section_by_name(".gnu.version")
    names = []
    for index, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols()):
        missing = symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
        unversioned = not versions or versions.get_symbol(index)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        if missing and unversioned and not symbol.name.startswith(("Py", "_Py")):
            names.append(symbol.name)
    assert not names, f"{library.name}: no library that the wheel may need has {names}"


def pythons():
    """CPythons of this machine."""
    root = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    for minor in PYTHONS:
        candidates = [shutil.which(f"python3.{minor}"), *root.glob(f"versions/3.{minor}.*/bin/python")]
        for python in filter(None, candidates):
            # A shim of a version that is not selected is there, and fails.
            if subprocess.run([python, "--version"], capture_output=True).returncode == 0:
                yield python
                break


def check_import(directory):
    code = "import sys, oxigemm; oxigemm.set_device('cpu'); print('%d.%d' % sys.version_info[:2])"
    found = []
    for python in pythons():
        environment = {**os.environ, "PYTHONPATH": str(directory)}
        found.append(subprocess.check_output([python, "-c", code], env=environment, text=True).strip())
        subprocess.check_call([python, "-m", "oxigemm", "--version"], env=environment, stdout=subprocess.DEVNULL)
    assert found, "no CPython to import the wheel with"
    print("imported by Python", *found)


def main(wheel):
    wheel = pathlib.Path(wheel).resolve()
    check_platform(wheel)
    subprocess.check_call([tool("abi3audit"), "--strict", wheel])
    with tempfile.TemporaryDirectory() as directory:
        zipfile.ZipFile(wheel).extractall(directory)
        check_symbols(pathlib.Path(directory, "oxigemm", "_oxigemm.abi3.so"))
        check_import(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
