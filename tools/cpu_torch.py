#!/usr/bin/env python3
"""Installs torch without anything of CUDA into the environment of this interpreter, for tests on the CPU.

    PYTHON tools/cpu_torch.py [VERSION]

torch's wheel for Linux wants 2 GB of CUDA libraries besides, and does not load without them. Here each of them gets a
stub: what torch looks for in it, as functions that answer that there is no device. What remains is a torch for the CPU,
with torch.distributed and Gloo.
"""

import ctypes
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections import defaultdict

VERSION = "2.15.0"
# What torch imports besides.
NEEDS = ["filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec"]
# Parts of the wheel that nothing loads here.
LEFT_OUT = re.compile(r"torch/(lib/libtorch_cuda_linalg\.so|include/|share/|test/)")
# It returns cudaErrorNoDevice.
FUNCTION = "int {}(void) {{ return 100; }}\n"


def pip(*arguments):
    subprocess.check_call([sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"])


def unpack(version, site):
    """Unpacks the wheel, but for what is left out."""
    with tempfile.TemporaryDirectory() as directory:
        pip("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", directory, f"torch=={version}")
        (path,) = pathlib.Path(directory).glob("torch-*.whl")
        with zipfile.ZipFile(path) as wheel:
            wheel.extractall(site, [name for name in wheel.namelist() if not LEFT_OUT.match(name)])


def symbols(library):
    """Dynamic symbols of a library: name, version or nothing, and whether it is defined there."""
    table = subprocess.check_output(["readelf", "--wide", "--dyn-syms", library], text=True)
    for line in table.splitlines():
        fields = line.split()
        is_symbol = len(fields) >= 8 and fields[3] in ("FUNC", "OBJECT", "NOTYPE")
        # A weak symbol may be missing.
        if is_symbol and (fields[4], fields[6]) != ("WEAK", "UND"):
            name, _, version = fields[7].partition("@")
            yield name, version.lstrip("@"), fields[6] != "UND"


def loads(library):
    """Whether a library is on this machine. Its symbols are found from now on."""
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def needs(library):
    """What a library needs: names of others, and for each version of symbols the library that has it."""
    text = subprocess.check_output(["readelf", "--wide", "--dynamic", "--version-info", library], text=True)
    homes, home = {}, None
    for line in text.splitlines():
        if found := re.search(r" Version: \d+ +File: (\S+)", line):
            home = found[1]
        elif found := re.search(r" Name: (\S+) +Flags: .* Version: \d+", line):
            homes[found[1]] = home
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text), homes


def stubs(directory):
    """Libraries that torch's need and that are not there: for each, names of symbols by their version."""
    libraries = sorted(directory.glob("lib*.so"))
    needed, homes = set(), {}
    for library in libraries:
        names, versions = needs(library)
        needed.update(names)
        homes.update(versions)
    absent = {name for name in needed if not (directory / name).exists() and not loads(name)}
    found = [symbol for library in libraries for symbol in symbols(library)]
    defined, here = {name for name, _, is_defined in found if is_defined}, ctypes.CDLL(None)
    versioned, others = defaultdict(lambda: defaultdict(set)), set()
    for name, version, _ in found:
        if homes.get(version) in absent:
            versioned[homes[version]][version].add(name)
        elif not version and name not in defined and not hasattr(here, name):
            others.add(name)
    # A symbol without a version may be in any library that has none.
    return {library: versioned.get(library, {"": others}) for library in absent}


def write_stub(path, by_version):
    """Links a library of these symbols."""
    with tempfile.TemporaryDirectory() as directory:
        source, script = pathlib.Path(directory, "stub.c"), pathlib.Path(directory, "versions")
        source.write_text("".join(FUNCTION.format(name) for names in by_version.values() for name in names))
        named = {version: names for version, names in by_version.items() if version}
        script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in named.items()))
        versions = [f"-Wl,--version-script={script}"] if named else []
        command = ["cc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{path.name}", *versions]
        subprocess.check_call([*command, "-o", path, source])


def main():
    site = pathlib.Path(sysconfig.get_path("platlib"))
    pip("install", *NEEDS)
    unpack(sys.argv[1] if len(sys.argv) > 1 else VERSION, site)
    directory = site / "torch" / "lib"
    for library, by_version in stubs(directory).items():
        write_stub(directory / library, by_version)
    subprocess.check_call([sys.executable, "-c", "import torch.distributed as d; assert d.is_gloo_available()"])


if __name__ == "__main__":
    main()
